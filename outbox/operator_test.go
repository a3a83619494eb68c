package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/outbox"
)

// hooked calls during with each message before it confirms it.
type hooked struct {
	got    []outbox.Message
	during func(n int)
}

func (h *hooked) Send(_ context.Context, m *outbox.Message, done func(error)) {
	h.got = append(h.got, *m)
	h.during(len(h.got))
	done(nil)
}

func (*hooked) Ready() error { return nil }

func (*hooked) MaxBytes() int { return 0 }

func (h *hooked) payloads() (list []string) {
	for _, m := range h.got {
		list = append(list, string(m.Payload))
	}
	return list
}

// A parked row that is driven again (or skipped and then driven again) while
// the lane is being read must not be overtaken by the next one of its key.
func TestARowDrivenAgainBetweenTwoPagesKeepsItsPlace(t *testing.T) {
	for name, operate := range map[string]func(*testing.T, *outbox.Outbox, outbox.Tx, int64){
		"redrive": func(t *testing.T, o *outbox.Outbox, db outbox.Tx, id int64) {
			n, err := o.Redrive(t.Context(), db, id)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		},
		"skip, redrive": func(t *testing.T, o *outbox.Outbox, db outbox.Tx, id int64) {
			_, err := o.Skip(t.Context(), db, id)
			require.NoError(t, err)
			_, err = o.Redrive(t.Context(), db, id)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			o := newOutbox(t, outbox.Config{})
			exec(t, db, `UPDATE oncemill.outbox_settings SET lanes = 1`)
			write(t, db, o, "a", newMessage("1"), newMessage("2"), newMessage("3"), keyed("first", "k"))
			write(t, db, o, "a", keyed("second", "k"))
			id := scalar[int64](t, db, `SELECT id FROM oncemill.outbox WHERE payload = 'first'`)
			if name == "redrive" {
				exec(t, db, `UPDATE oncemill.outbox_queue SET parked_at = now(), reason = 'refused' WHERE id = $1`, id)
			}
			sink := &hooked{}
			sink.during = func(n int) {
				if n == 1 { // the first page is read, the second is not
					operate(t, o, db.Pool, id)
				}
			}
			cfg := relayConfig(sink)
			cfg.Outbox, cfg.Batch = o, 2
			runOnce(t, newRelay(t, db, cfg))
			require.Equal(t, []string{"1", "2", "3", "first", "second"}, sink.payloads())
			require.Zero(t, queued(t, db))
		})
	}
}

func TestRedriveLeavesRowsAloneThatAreOnTheirWay(t *testing.T) {
	db := newDB(t)
	o := newOutbox(t, outbox.Config{})
	write(t, db, o, "a", newMessage("1"))
	before := scalar[string](t, db, `SELECT xid::text FROM oncemill.outbox_queue`)
	n, err := o.Redrive(t.Context(), db.Pool, scalar[int64](t, db, `SELECT id FROM oncemill.outbox`))
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, before, scalar[string](t, db, `SELECT xid::text FROM oncemill.outbox_queue`))
}

// The relay was paused, or its database away, between the acknowledgement and
// the mark. Meanwhile the broker lost the message and an operator republished.
func TestALateMarkDoesNotTakeARepublishedRowAway(t *testing.T) {
	for name, marked := range map[string]bool{"another relay marked it before": true, "nobody marked it before": false} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			o := newOutbox(t, outbox.Config{})
			write(t, db, o, "a", newMessage("1"))
			sink := &hooked{}
			sink.during = func(n int) {
				if n > 1 {
					return
				}
				if marked {
					exec(t, db, `DELETE FROM oncemill.outbox_queue`)
				}
				now := scalar[time.Time](t, db, `SELECT clock_timestamp()`)
				_, err := o.Republish(t.Context(), db.Pool, outbox.RepublishConfig{Since: now.Add(-time.Hour), Horizon: 2 * time.Hour})
				require.NoError(t, err)
			}
			cfg := relayConfig(sink)
			cfg.Outbox = o
			runOnce(t, newRelay(t, db, cfg)) // it looks again, since it marked less than it sent
			require.Equal(t, []string{"1", "1"}, sink.payloads())
			require.NotEqual(t, sink.got[0].BrokerID, sink.got[1].BrokerID)
			require.Equal(t, sink.got[0].LogicalID, sink.got[1].LogicalID)
			require.Zero(t, queued(t, db))
		})
	}
}
