package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// skewed gives the sessions of a service a database clock that is ahead of the
// process's own by skew, which is the same as a process whose clock is behind:
// a look-alike of clock_timestamp() comes first on their search_path.
func (s *stack) skewed(name string, skew time.Duration) func(*pgxpool.Config) {
	s.Helper()
	s.exec(fmt.Sprintf(`CREATE SCHEMA %[1]s; CREATE FUNCTION %[1]s.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
		AS $$ SELECT pg_catalog.clock_timestamp() + interval '%[2]d milliseconds' $$`, name, skew.Milliseconds()))
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["search_path"] = name + ", pg_catalog" }
}

// C69: clocks of processes decide nothing.
func TestC69_AProcessWhoseClockIsWrong(t *testing.T) {
	for name, skew := range map[string]time.Duration{"ahead": -10 * time.Minute, "behind": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			const retention, lease = 5 * time.Minute, time.Minute
			o := options{
				pool:     s.skewed("skewed", skew),
				consumer: func(cfg *consumer.Config) { cfg.Inbox.Retention, cfg.Inbox.Skew = retention, time.Minute },
				relay:    func(cfg *outbox.RelayConfig) { cfg.Lease = lease },
			}
			a, b := s.open(s.wiring(), o), s.open(s.wiring(), o)
			a.handle("charge", "new", a.effect)
			s.start(a)
			lanes := s.count(`SELECT lanes FROM oncemill.outbox_settings`)
			held := func(svc *service) int { return svc.relay.Stats().Lanes }
			s.eventually("the first relay holds all lanes", func() bool { return held(a) == lanes })
			b.runRelay()
			s.eventually("they share", func() bool { return held(a) == lanes/2 && held(b) == lanes/2 })
			require.Equal(t, lanes+lanes/2, s.count(`SELECT sum(fence) FROM oncemill.outbox_lane`), "no lane was taken while its lease was alive")

			now := s.now().Add(skew) // of the services' database
			s.publish("new", "young", "event_id", "young", outbox.HeaderTime, now.Add(-retention/2).Format(time.RFC3339Nano))
			s.publish("new", "young", "event_id", "young", outbox.HeaderTime, now.Add(-retention/2).Format(time.RFC3339Nano))
			s.publish("new", "old", "event_id", "old", outbox.HeaderTime, now.Add(-2*retention).Format(time.RFC3339Nano))
			s.publish("new", "ahead", "event_id", "ahead", outbox.HeaderTime, now.Add(retention/2).Format(time.RFC3339Nano))
			s.settled("charge")
			require.Equal(t, []string{"young"}, s.texts(`SELECT key FROM public.effects`))
			requireOutcomes(t, consumer.Stats{Done: 1, Duplicates: 1, Dead: 2}, a.consumer.Stats())
			require.Equal(t, []string{"beyond horizon", "beyond horizon"}, s.reasons())
			s.requireCommands(1)

			inbox, err := dedup.NewInbox(dedup.InboxConfig{Retention: retention})
			require.NoError(t, err)
			purger, err := dedup.NewPurger(inbox, dedup.Pgx(a.pool), dedup.PurgeConfig{Operations: []string{"charge"}})
			require.NoError(t, err)
			purged, err := purger.RunOnce(t.Context())
			require.NoError(t, err)
			require.Zero(t, purged.Deleted, "what is remembered is within its retention")
		})
	}
}

func (s *stack) now() (now time.Time) {
	s.Helper()
	require.NoError(s, s.db.Pool.QueryRow(s.Context(), `SELECT clock_timestamp()`).Scan(&now))
	return now
}
