package outbox_test

import (
	"fmt"
	"testing"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// queueRows writes n messages in one statement, each with a key of its own if
// keyed.
func queueRows(t *testing.T, db *testbed.DB, topic string, n int, keyed bool) {
	t.Helper()
	exec(t, db, `WITH m AS (
		INSERT INTO oncemill.outbox (topic, logical_id, header, payload, ordering_key, key_hash)
		SELECT $1, 'row ' || i, '', 'x', CASE WHEN $3 THEN 'key ' || i END, CASE WHEN $3 THEN hashint8(i)::bigint END
		FROM generate_series(1, $2::int) i RETURNING id, key_hash)
	INSERT INTO oncemill.outbox_queue (lane, id, xid, key_hash)
	SELECT (coalesce(key_hash, id) & 9223372036854775807) % (SELECT lanes FROM oncemill.outbox_settings), id, pg_current_xact_id(), key_hash FROM m`,
		topic, n, keyed)
}

// Some of the rejected rows is due at any time, and wants to be read again.
func TestC56_C58_ManyRejectedRowsHoldUpNobody(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			db := newDB(t)
			s := testbed.NewStream(t, nil)
			o := newOutbox(t, outbox.Config{})
			queueRows(t, db, "nosuch"+s.Prefix, 60_000, ordered)
			write(t, db, o, s.Subject("a"), newMessage("last"), keyed("last", "k"))
			run(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))
			eventually(t, "the rows behind them are sent", func() bool { return count(t, s) == 2 })
			for i := range 3 {
				write(t, db, o, s.Subject("a"), newMessage(fmt.Sprint(i)), keyed(fmt.Sprint(i), "k"))
				eventually(t, "new rows are sent", func() bool { return count(t, s) == 4+2*i })
			}
		})
	}
}
