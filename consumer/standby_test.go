package consumer_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/integration/testbed"
)

// After a failover connections may lead to a server that is no longer the
// primary: nobody's fault, and nothing is held.
func TestC46_AStandbyIsNobodysFault(t *testing.T) {
	server := testbed.NewPostgres(t, testbed.PostgresConfig{})
	db := server.NewDB(t)
	require.NoError(t, oncemill.Migrate(t.Context(), db.Pool, oncemill.MigrateConfig{}))
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE public.effects (key text NOT NULL, body bytea NOT NULL)`)
	require.NoError(t, err)
	var dir string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SHOW data_directory`).Scan(&dir))
	b := bench{db, t}
	signal := filepath.Join(dir, "standby.signal")
	restart := func() {
		require.NoError(t, server.Stop(t.Context(), testbed.Fast))
		require.NoError(t, server.Start(t.Context()))
	}

	pool, err := testbed.NewPool(t.Context(), db.URL, func(c *pgxpool.Config) { c.MaxConns = 2 })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c := b.consumer(pool, nil)
	h := c.Handler("charge", charge)
	require.True(t, deliver(t, h, event("k", "a")).acked)
	for range manyRepeats + 1 { // from now on a look comes first
		require.True(t, deliver(t, h, event("k", "a")).acked)
	}
	require.NoError(t, os.WriteFile(signal, nil, 0o644))
	restart()
	for _, key := range []string{"k2", "k", "k2", "k"} { // what a standby says of "k" may be old
		got := deliver(t, h, event(key, "a"))
		require.True(t, got.nacked)
		require.NoError(t, got.err)
	}
	require.Equal(t, consumer.Stats{Done: 1, Duplicates: manyRepeats + 1, Transient: 4}, c.Stats())
	require.NoError(t, os.Remove(signal))
	restart()
	eventually(t, func() bool { return deliver(t, h, event("k2", "a")).acked })
	var effects int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM public.effects`).Scan(&effects))
	require.Equal(t, 2, effects)
}
