package schema_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn
}

func TestC103_EightAtOnceOnAnEmptyDatabase(t *testing.T) {
	db := testbed.NewDB(t)
	conns := make([]*pgx.Conn, 8)
	for i := range conns {
		conns[i] = connect(t, db.URL)
	}
	for round := range 30 {
		name := fmt.Sprint("once_", round)
		barrier := make(chan struct{})
		errs := make(chan error, len(conns))
		for _, conn := range conns {
			go func() {
				<-barrier
				errs <- schema.Migrate(t.Context(), conn, schema.Config{Schema: name})
			}()
		}
		close(barrier)
		for range conns {
			require.NoError(t, <-errs, "round %d", round)
		}
		var rows, versions int
		require.NoError(t, db.Pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT count(*), count(DISTINCT version) FROM %q.schema_migration`, name)).Scan(&rows, &versions))
		require.Equal(t, []int{schema.Version(), schema.Version()}, []int{rows, versions})
	}
}

func TestC103_KilledHalfWayLeavesNothing(t *testing.T) {
	db := testbed.NewDB(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	fault := proxy.CutBefore(1, func(query string) bool { return strings.Contains(query, "outbox_settings (lanes)") })
	conn, err := pgx.Connect(t.Context(), proxy.URL())
	require.NoError(t, err)
	require.Error(t, schema.Migrate(t.Context(), conn, schema.Config{}))
	fault.Await(t)
	_ = conn.Close(t.Context())

	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{}), "the next one starts from nothing")
	require.NoError(t, schema.Check(t.Context(), pg.FromPgx(db.Pool), schema.Name{}, ""))
}

func TestC103_AWaitingReplicaSaysWhatItWaitsFor(t *testing.T) {
	db := testbed.NewDB(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	release := proxy.HoldBefore(1, func(query string) bool { return strings.Contains(query, "CREATE TABLE") })
	conn := connect(t, proxy.URL())
	first := make(chan error, 1)
	go func() { first <- schema.Migrate(t.Context(), conn, schema.Config{}) }()
	release.Await(t)
	err := schema.Migrate(t.Context(), db.Pool, schema.Config{LockWait: 20 * time.Millisecond})
	require.ErrorContains(t, err, `another process has been migrating schema "oncemill" for more than 20ms`)
	release.Disarm()
	require.NoError(t, <-first)
}

func TestC99_SchemaNames(t *testing.T) {
	db := testbed.NewDB(t)
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE public.effects (k text); INSERT INTO public.effects VALUES ('there')`)
	require.NoError(t, err)
	long := strings.Repeat("n", 62)
	for _, name := range []string{`x"; DROP TABLE public.effects; --`, "my-app", "Ünï", "select", "a.b", `a"b`, long + "1", long + "2", "{{schema}}", "$1", "'"} {
		require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{Schema: name}), "%q", name)
		parsed, err := schema.ParseName(name)
		require.NoError(t, err)
		require.NoError(t, schema.Check(t.Context(), pg.FromPgx(db.Pool), parsed, ""), "%q", name)
		var exists bool
		require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, name).Scan(&exists))
		require.True(t, exists, "%q", name)
	}
	for name, rule := range map[string]string{long + "12": "64 bytes", "a\x00b": "NUL", "\xff": "UTF-8", "pg_temp": "reserved", "information_schema": "reserved"} {
		err := schema.Migrate(t.Context(), db.Pool, schema.Config{Schema: name})
		require.ErrorContains(t, err, rule)
		require.ErrorContains(t, err, "Schema")
	}
	var effects int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM public.effects`).Scan(&effects))
	require.Equal(t, 1, effects)
}

func TestC105_LookAlikesAreNotTouched(t *testing.T) {
	db := testbed.NewDB(t)
	_, err := db.Pool.Exec(t.Context(), `CREATE SCHEMA before; CREATE TABLE before.inbox (x int); CREATE TABLE before.schema_migration (version int); CREATE TABLE public.outbox (x int)`)
	require.NoError(t, err)
	for _, path := range []string{"''", "before, once_x"} {
		conn := connect(t, db.URL)
		_, err = conn.Exec(t.Context(), `SET search_path = `+path)
		require.NoError(t, err)
		require.NoError(t, schema.Migrate(t.Context(), conn, schema.Config{Schema: "once_x"}))
		name, err := schema.ParseName("once_x")
		require.NoError(t, err)
		require.NoError(t, schema.Check(t.Context(), pg.FromPgx(conn), name, ""))
	}
	var rows int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM before.schema_migration) + (SELECT count(*) FROM before.inbox) + (SELECT count(*) FROM public.outbox)`).Scan(&rows))
	require.Zero(t, rows)
}

// appRole returns a pool of a role that has what Grants says and nothing else.
func appRole(t *testing.T, db *testbed.DB) (*pgxpool.Pool, string) {
	t.Helper()
	role := db.NewRole(t)
	for _, grant := range schema.Grants(schema.Name{}, role.Name) {
		_, err := db.Pool.Exec(t.Context(), grant)
		require.NoError(t, err, grant)
	}
	pool, err := testbed.NewPool(t.Context(), role.URL, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool, role.Name
}

func TestC106_CheckSaysExactlyWhatIsMissing(t *testing.T) {
	db := testbed.NewDB(t)
	ctx := t.Context()
	require.NoError(t, schema.Migrate(ctx, db.Pool, schema.Config{}))
	app, role := appRole(t, db)
	check := func() error { return schema.Check(ctx, pg.FromPgx(app), schema.Name{}, "") }
	require.NoError(t, check())
	require.NoError(t, schema.Migrate(ctx, app, schema.Config{}), "no DDL right is needed when there is nothing to do")

	exec := func(query string) {
		_, err := db.Pool.Exec(ctx, query)
		require.NoError(t, err)
	}
	for _, revoke := range []string{"SELECT ON oncemill.schema_migration", "DELETE, UPDATE ON oncemill.inbox", "SELECT ON oncemill.outbox_settings"} {
		exec(fmt.Sprintf("REVOKE %s FROM %q", revoke, role))
		var notReady *schema.NotReadyError
		require.ErrorAs(t, check(), &notReady)
		grant := strings.TrimPrefix(notReady.Remedy, "run ")
		require.True(t, strings.HasPrefix(grant, "GRANT "), grant)
		exec(grant)
		require.NoError(t, check(), "the remedy is the cure")
	}
	exec(fmt.Sprintf("REVOKE USAGE ON SCHEMA oncemill FROM %q", role))
	require.ErrorContains(t, check(), fmt.Sprintf(`run GRANT USAGE ON SCHEMA "oncemill" TO %q`, role))
	exec(fmt.Sprintf("GRANT USAGE ON SCHEMA oncemill TO %q", role))

	exec(`DELETE FROM oncemill.schema_migration WHERE version = (SELECT max(version) FROM oncemill.schema_migration)`)
	require.ErrorContains(t, check(), fmt.Sprintf("it has version %d, this code needs %d", schema.Version()-1, schema.Version()))
	exec(`INSERT INTO oncemill.schema_migration (version, name) VALUES (1000, 'later')`)
	require.ErrorContains(t, check(), "deploy the newer code")
	require.ErrorContains(t, schema.Migrate(ctx, db.Pool, schema.Config{}), "deploy the newer code")
	exec(`DROP SCHEMA oncemill CASCADE`)
	require.ErrorContains(t, check(), "does not exist")
	require.Error(t, schema.Migrate(ctx, app, schema.Config{}), "may not create a schema")
}

func TestStatementsAreWhatMigrateRuns(t *testing.T) {
	db := testbed.NewDB(t)
	name, err := schema.ParseName(`od"d`)
	require.NoError(t, err)
	for from := range schema.Version() {
		script, err := schema.Statements(name, from, from+1)
		require.NoError(t, err)
		_, err = db.Pool.Exec(t.Context(), script)
		require.NoError(t, err)
	}
	require.NoError(t, schema.Check(t.Context(), pg.FromPgx(db.Pool), name, ""))
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{Schema: name.String()}))
	for _, span := range [][2]int{{-1, 1}, {1, 0}, {0, schema.Version() + 1}} {
		_, err := schema.Statements(name, span[0], span[1])
		require.Error(t, err)
	}
}

func TestMigrateUnderARepeatableReadDefault(t *testing.T) {
	db := testbed.NewDB(t)
	_, err := db.Pool.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %q SET default_transaction_isolation = 'serializable'`, db.Name))
	require.NoError(t, err)
	errs := make(chan error, 4)
	for range cap(errs) {
		conn := connect(t, db.URL)
		go func() { errs <- schema.Migrate(t.Context(), conn, schema.Config{}) }()
	}
	var all error
	for range cap(errs) {
		all = errors.Join(all, <-errs)
	}
	require.NoError(t, all)
}
