package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/schema"
)

// A page of a purge reads its own messages, whatever else is kept, queued or
// was deleted while an old snapshot keeps the index entries.
func TestAPageOfAPurgeCostsTheSameInAnyTable(t *testing.T) {
	db := migrated(t)
	exec := func(query string) {
		_, err := db.Pool.Exec(t.Context(), query)
		require.NoError(t, err)
	}
	exec(`WITH m AS (INSERT INTO oncemill.outbox (topic, logical_id, header, payload)
		SELECT 'ord.x', g::text, '', '' FROM generate_series(1, 50000) g RETURNING id)
		INSERT INTO oncemill.outbox_queue (lane, id, xid) SELECT id % 4, id, pg_current_xact_id() FROM m WHERE id > 40000`)
	exec(`ANALYZE oncemill.outbox, oncemill.outbox_queue`)
	old, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer old.Rollback(t.Context()) // It only reads.
	_, err = old.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM oncemill.outbox`)
	require.NoError(t, err)

	o, err := New(Config{})
	require.NoError(t, err)
	p, err := o.NewPurger(db.Pool, PurgeConfig{Keep: time.Hour, Batch: 100})
	require.NoError(t, err)
	_, err = p.RunOnce(t.Context())
	require.NoError(t, err)
	exec(`DELETE FROM oncemill.outbox_sent WHERE first_id > 49000`)
	exec(`UPDATE oncemill.outbox_sent SET seen_at = seen_at - interval '2 hours' WHERE first_id <= 30000`)
	gone, err := p.RunOnce(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 30000, gone)
	exec(`DELETE FROM oncemill.outbox_sent WHERE first_id > 49000`)
	exec(`UPDATE oncemill.outbox_sent SET seen_at = seen_at - interval '2 hours'`)

	s := expand(schema.Name{})
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		for query, args := range map[string]string{s.look: "100", s.purge: "3600000000, '2100-01-01', '2000-01-01'"} {
			plan := explainJSON(t, db, mode, query, "ANALYZE, ", args)
			require.LessOrEqual(t, looked(plan), 400.0, "rows that one scan looked at, %s: %s", mode, query)
		}
	}
}
