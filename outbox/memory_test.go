package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/pg"
)

// silent is a sink that answers when it is told to.
type silent struct{ done []func(error) }

func (s *silent) Send(_ context.Context, _ *Message, done func(error)) { s.done = append(s.done, done) }

func (*silent) Ready() error { return nil }

func (*silent) MaxBytes() int { return 0 }

func (s *silent) answer() (n int) {
	answered := s.done
	s.done = nil
	for _, done := range answered {
		done(nil)
	}
	return len(answered)
}

// C59: while the broker does not answer, and while it drains, a lane holds no
// more of a big backlog than its bounds say, whether rows are small or large,
// and whether they have keys.
func TestC59_MemoryIsBoundedInABigBacklog(t *testing.T) {
	for name, tc := range map[string]struct {
		size  int
		keyed bool
		rows  int // in memory, before the broker answers
	}{
		"small": {10, false, 90}, "small, of one key": {10, true, 90},
		"large": {3000, false, 17}, "large, of one key": {3000, true, 17},
	} {
		t.Run(name, func(t *testing.T) {
			const backlog, maxBytes = 500, 50_000 // 17 large ones
			db := migrated(t)
			o, err := New(Config{})
			require.NoError(t, err)
			rows := make([]Row, backlog)
			for i := range rows {
				rows[i] = Row{topic: "a", logicalID: fmt.Sprint(i), header: []byte{}, payload: make([]byte, tc.size)}
				if tc.keyed {
					rows[i].orderingKey = "k"
				}
			}
			_, err = db.Pool.Exec(t.Context(), `UPDATE oncemill.outbox_settings SET lanes = 1`)
			require.NoError(t, err)
			_, err = o.WriteRows(t.Context(), pg.FromPgx(db.Pool), rows)
			require.NoError(t, err)
			sink := &silent{}
			relay, err := NewRelay(db.Pool, RelayConfig{
				Sink: sink, Window: 50, Batch: 20, MaxBytes: maxBytes, Lease: time.Hour, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			holds, err := relay.leases.acquire(t.Context(), 1)
			require.NoError(t, err)
			l := newLane(relay, holds[0], time.Now().Add(time.Hour), true)

			// turn is one turn of lane.run, which waits for what is under way.
			turn := func(between func()) {
				l.step(t.Context())
				between()
				select {
				case res := <-l.readDone:
					l.accept(res)
				case res := <-l.markDone:
					l.marked(res)
				case <-l.answers.bell:
				case <-time.After(time.Until(l.nextEvent())):
				}
				require.LessOrEqual(t, len(l.win.rows), relay.cfg.maxRows())
				require.LessOrEqual(t, l.win.bytes, maxBytes+tc.size)
			}
			for l.step(t.Context()); l.reading; l.step(t.Context()) {
				turn(func() {})
			}
			require.Equal(t, tc.rows, len(l.win.rows), "it reads as much as it may, and stops")
			sent := 0
			for sent < backlog || !l.idle() {
				turn(func() { sent += sink.answer() })
			}
			require.Equal(t, backlog, sent)
			var left int
			require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM oncemill.outbox_queue`).Scan(&left))
			require.Zero(t, left)
		})
	}
}
