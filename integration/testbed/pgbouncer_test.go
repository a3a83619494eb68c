//go:build testall

package testbed_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func init() {
	ownMore = func(ctx context.Context, pg *testbed.Postgres, own *ownership) {
		pool, err := testbed.StartPgBouncer(ctx, pg, testbed.PgBouncerConfig{})
		exitOn(err)
		own.PIDs = append([]int{pool.PID()}, own.PIDs...)
		own.Dirs = append(own.Dirs, pool.Dir())
	}
}

// TestPgBouncer_TransactionMode runs more clients than there are server
// connections and looks for what a session would show: another backend for
// another transaction.
func TestPgBouncer_TransactionMode(t *testing.T) {
	db := testbed.NewDB(t)
	bouncer := testbed.NewPgBouncer(t, db.Server, testbed.PgBouncerConfig{PoolSize: 2})
	pool, err := testbed.NewPool(t.Context(), bouncer.URL(db.Name), func(cfg *pgxpool.Config) {
		cfg.MaxConns = 8
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	})
	require.NoError(t, err)
	defer pool.Close()
	var mu sync.Mutex
	backends := map[int]bool{}
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 10 {
				var pid int
				if err := pool.QueryRow(context.Background(), "SELECT pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				backends[pid] = true
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	require.LessOrEqual(t, len(backends), 2)
}

func TestPgBouncer_Roles(t *testing.T) {
	db := testbed.NewDB(t)
	role := db.NewRole(t)
	bouncer := testbed.NewPgBouncer(t, db.Server, testbed.PgBouncerConfig{Roles: []testbed.RoleLogin{role}})
	conn := connect(t, bouncer.URLFor(db.Name, role.Name))
	var user string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_user::text", pgx.QueryExecModeSimpleProtocol).Scan(&user))
	require.Equal(t, role.Name, user)
}

func TestPgBouncer_ProgramByEnvironment(t *testing.T) {
	t.Setenv("ONCEMILL_PGBOUNCER_BIN", t.TempDir())
	server, err := testbed.SharedPostgres(t.Context())
	require.NoError(t, err)
	_, err = testbed.StartPgBouncer(t.Context(), server, testbed.PgBouncerConfig{})
	require.ErrorContains(t, err, "no program there")
}
