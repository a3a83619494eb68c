package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// TestRelayAfterACrashOfTheDatabase: ids of transactions that are not on disk
// yet, as those of the relay's own marks, are given out again after a crash.
// Rows that get them are new, although the relay remembers the ids as seen:
// they are sent, and before later ones of their key.
func TestRelayAfterACrashOfTheDatabase(t *testing.T) {
	t.Parallel()
	const keys = 20
	server := testbed.NewPostgres(t, testbed.PostgresConfig{Settings: map[string]string{
		"wal_writer_delay": "10s", "wal_level": "minimal", "max_wal_senders": "0", "autovacuum": "off", "checkpoint_timeout": "1h",
	}})
	s := newStackOn(t, server.NewDB(t), testbed.NewStream(t, nil))
	proxy := testbed.NewPostgresProxy(t, s.db.URL)
	w := s.wiring()
	w.Database = proxy.URL()
	// It renews its lanes seldom: each time would bring all ids to disk.
	svc := s.open(w, options{relay: func(cfg *outbox.RelayConfig) { cfg.Lease, cfg.Poll = 2*bound, bound }})
	svc.runRelay()
	s.eventually("the relay is at work", func() bool { return svc.relay.Stats().Lanes == 4 })
	reads := func() int {
		return len(slices.DeleteFunc(proxy.Statements(), func(s testbed.Statement) bool { return !isRead(s.SQL) }))
	}
	var seen int
	crash := func() (givenOutAgain bool) {
		s.useUpIDs(100)
		before := reads()
		s.eventually("every lane has looked", func() bool {
			svc.box.Notify()
			return reads() >= before+4*4
		})
		seen = s.nextID()
		require.NoError(t, server.Stop(t.Context(), testbed.Immediate))
		require.NoError(t, server.Start(t.Context()))
		s.db.Pool.Reset()
		return s.nextID() < seen
	}
	// On a slow machine the WAL writer may have brought the ids to disk.
	for attempt := 1; !crash(); attempt++ {
		require.Less(t, attempt, 10, "ids are given out again")
	}

	s.writeOfEachKey(keys, 0)
	require.Less(t, s.nextID(), seen)
	s.useUpIDs(seen - s.nextID())
	s.writeOfEachKey(keys, 1)
	svc.box.Notify()
	s.eventually("commands arrive", func() bool { return len(s.stored("commands")) >= keys })
	require.Equal(t, "0", strings.Fields(string(s.stored("commands")[0].Data()))[1], "the earlier commands come first")
	s.requireCommands(2 * keys)
	s.requireOrder(2*keys, 2)
}

func (s *stack) nextID() int {
	s.Helper()
	return s.count(`SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`)
}

// useUpIDs uses up transaction ids, and brings none of them to disk.
func (s *stack) useUpIDs(n int) {
	s.Helper()
	for range n {
		tx, err := s.db.Pool.Begin(s.Context())
		require.NoError(s, err)
		_, err = tx.Exec(s.Context(), `SELECT pg_current_xact_id()`)
		require.NoError(s, err)
		require.NoError(s, tx.Rollback(s.Context()))
	}
}
