package outbox_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/outbox"
)

// A wake-up names its lanes, in this process and over NATS: a relay that holds
// all lanes reads one of them for a message.
func TestWakeUpsNameTheirLanes(t *testing.T) {
	for name, wake := range map[string]func(t *testing.T, s *testbed.Stream, relays *outbox.Outbox) *outbox.Outbox{
		"in the process": func(_ *testing.T, _ *testbed.Stream, relays *outbox.Outbox) *outbox.Outbox { return relays },
		"over NATS": func(t *testing.T, s *testbed.Stream, _ *outbox.Outbox) *outbox.Outbox {
			return newOutbox(t, outbox.Config{Wake: s.Conn})
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			s := testbed.NewStream(t, nil)
			proxy := testbed.NewPostgresProxy(t, db.URL)
			pool, err := testbed.NewPool(t.Context(), proxy.URL(), func(c *pgxpool.Config) { c.MaxConns = 10 })
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			reads := func() (n int) {
				for _, statement := range proxy.Statements() {
					if strings.Contains(statement.SQL, "pg_visible_in_snapshot") {
						n++
					}
				}
				return n
			}
			cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
			cfg.Outbox = newOutbox(t, outbox.Config{})
			cfg.Lease, cfg.Poll = 2*bound, 2*bound // wake-ups only
			relay, err := outbox.NewRelay(pool, cfg)
			require.NoError(t, err)
			run(t, relay)
			eventually(t, "all lanes are held", func() bool { return relay.Stats().Lanes == 4 })
			writer := wake(t, s, cfg.Outbox)
			write := func(n int) {
				row, err := writer.Prepare(s.Subject("a"), newMessage("x"), outbox.Stamp{})
				require.NoError(t, err)
				lanes, err := writer.WriteRows(t.Context(), pg.FromPgx(db.Pool), []outbox.Row{row})
				require.NoError(t, err)
				writer.NotifyLanes(lanes)
				eventually(t, "sent", func() bool { return count(t, s) == n })
			}
			write(1) // every lane has read by then, or reads this one first
			before := 0
			eventually(t, "every lane has looked", func() bool {
				cfg.Outbox.Notify()
				before = reads()
				return before >= 4*4
			})
			const writes = 20
			for n := range writes {
				write(n + 2)
			}
			// Each lane may have two reads of the first part to do.
			require.LessOrEqual(t, reads(), before+writes+2*4)
		})
	}
}
