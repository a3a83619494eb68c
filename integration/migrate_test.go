package integration

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/integration/testbed"
)

func init() {
	testbed.Role("migrate", runMigrate)
}

// runMigrate is the main function of a process that migrates the database in
// its first argument, with the driver in its second.
func runMigrate() {
	url, driver := testbed.Args()[0], testbed.Args()[1]
	ctx := context.Background()
	if driver == "sql" {
		db, err := sql.Open("pgx", url)
		must(err)
		must(oncemill.MigrateSQL(ctx, db, oncemill.MigrateConfig{}))
		return
	}
	pool, err := pgxpool.New(ctx, url)
	must(err)
	must(oncemill.Migrate(ctx, pool, oncemill.MigrateConfig{}))
}

// C103: eight processes migrate an empty database at once, on either driver,
// and the one that is at work is killed in the middle.
func TestC103_EightProcessesOfWhichOneIsKilled(t *testing.T) {
	const processes = 8
	drivers := []string{"pgx", "sql"}
	for round, killed := range drivers {
		t.Run(killed, func(t *testing.T) {
			t.Parallel()
			db := testbed.NewDB(t)
			proxy := testbed.NewPostgresProxy(t, db.URL)
			middle := proxy.HoldBefore(1, func(query string) bool { return strings.Contains(query, `CREATE TABLE "oncemill".outbox`) })
			victim := testbed.NewWorker(t, "migrate", testbed.WorkerConfig{Args: []string{proxy.URL(), killed}})
			middle.Await(t)
			others := make([]*testbed.Worker, processes-1)
			for i := range others {
				others[i] = testbed.NewWorker(t, "migrate", testbed.WorkerConfig{Args: []string{db.URL, drivers[(round+i)%2]}})
			}
			db.WaitForLockWaiters(t, len(others))
			require.NoError(t, victim.Kill())
			proxy.Cut() // what was held is never executed
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			for _, w := range others {
				require.NoError(t, w.Wait(ctx), w.Stderr())
				require.Empty(t, w.Stderr(), "no 23505, 42P07, 42710")
			}
			again := testbed.NewWorker(t, "migrate", testbed.WorkerConfig{Args: []string{db.URL, killed}})
			require.NoError(t, again.Wait(ctx), again.Stderr())
			var versions []int
			require.NoError(t, db.Pool.QueryRow(ctx, `SELECT array_agg(version ORDER BY version) FROM oncemill.schema_migration`).Scan(&versions))
			require.Len(t, versions, oncemill.SchemaVersion(), fmt.Sprint(versions))
		})
	}
}
