package testbed_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func setting(t *testing.T, db *testbed.DB, name string) (value string) {
	t.Helper()
	require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT pg_catalog.current_setting($1)", name).Scan(&value))
	return value
}

func TestSharedPostgres_Settings(t *testing.T) {
	db := testbed.NewDB(t)
	for name, want := range map[string]string{
		"search_path": "", "fsync": "on", "max_connections": "200",
		"server_encoding": "UTF8", "TimeZone": "UTC", "shared_buffers": "256MB",
	} {
		require.Equal(t, want, setting(t, db, name), name)
	}
}

func TestPostgres_OwnSettings(t *testing.T) {
	p := testbed.NewPostgres(t, testbed.PostgresConfig{
		NoFsync:  true,
		Settings: map[string]string{"max_connections": "30", "application_name": "it's"},
	})
	db := p.NewDB(t)
	require.Equal(t, "off", setting(t, db, "fsync"))
	require.Equal(t, "30", setting(t, db, "max_connections"))
	require.Equal(t, "it's", setting(t, db, "application_name"))
	require.NoError(t, connect(t, p.SocketURL()).Ping(t.Context()))
}

// TestPostgres_StopAndStart also is a small crash test: what was committed is
// there after an immediate stop, and the port stays.
func TestPostgres_StopAndStart(t *testing.T) {
	p := testbed.NewPostgres(t, testbed.PostgresConfig{})
	db := p.NewDB(t)
	_, err := db.Pool.Exec(t.Context(), "CREATE TABLE public.t(mode int)")
	require.NoError(t, err)
	for i, mode := range []testbed.StopMode{testbed.Fast, testbed.Immediate} {
		_, err := connect(t, db.URL).Exec(t.Context(), "INSERT INTO public.t VALUES ($1)", i)
		require.NoError(t, err)
		url, pid := p.URL(), p.PID()
		require.NoError(t, p.Stop(t.Context(), mode))
		require.False(t, testbed.Alive(pid))
		require.Zero(t, p.PID())
		require.NoError(t, p.Stop(t.Context(), mode), "stopping again does nothing")
		require.NoError(t, p.Start(t.Context()))
		require.NoError(t, p.Start(t.Context()), "starting again does nothing")
		require.Equal(t, url, p.URL())
		var n int
		require.NoError(t, connect(t, db.URL).QueryRow(t.Context(), "SELECT count(*) FROM public.t").Scan(&n))
		require.Equal(t, i+1, n)
	}
}

func TestPostgres_CloseLeavesNothing(t *testing.T) {
	p, err := testbed.StartPostgres(t.Context(), testbed.PostgresConfig{})
	require.NoError(t, err)
	pid := p.PID()
	require.NoError(t, p.Close())
	require.False(t, testbed.Alive(pid))
	require.NoDirExists(t, p.Dir())
}

func TestPostgres_SaysWhatIsWrongWithSettings(t *testing.T) {
	_, err := testbed.StartPostgres(t.Context(), testbed.PostgresConfig{Settings: map[string]string{"no_such_setting": "1"}})
	require.ErrorContains(t, err, "no_such_setting", "from the server's log")
}

func TestPostgres_GivenByTheEnvironment(t *testing.T) {
	shared, err := testbed.SharedPostgres(t.Context())
	require.NoError(t, err)
	t.Setenv("ONCEMILL_DATABASE_URL", shared.URL())
	p := testbed.NewPostgres(t, testbed.PostgresConfig{})
	db := p.NewDB(t)
	require.NoError(t, db.Pool.Ping(t.Context()))
	require.ErrorIs(t, p.Stop(t.Context(), testbed.Fast), testbed.ErrNotOurs)
	require.ErrorIs(t, p.Start(t.Context()), testbed.ErrNotOurs)
	require.NoError(t, p.Close())
	require.NoError(t, db.Pool.Ping(t.Context()), "it is left as it is")

	t.Setenv("ONCEMILL_DATABASE_URL", "host=127.0.0.1 password=canary")
	_, err = testbed.StartPostgres(t.Context(), testbed.PostgresConfig{})
	require.ErrorContains(t, err, "must be a URL")
	require.NotContains(t, err.Error(), "canary")
}

func TestPostgres_BinariesByEnvironment(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ONCEMILL_PG_BIN", dir)
	// A client package brings other programs, and no server.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "initdb"), nil, 0o755))
	_, err := testbed.StartPostgres(t.Context(), testbed.PostgresConfig{})
	require.ErrorContains(t, err, "no initdb and postgres there")
}

func TestNewRole_MayConnectAndNothingElse(t *testing.T) {
	db := testbed.NewDB(t)
	conn := connect(t, db.NewRole(t).URL)
	for _, sql := range []string{
		"CREATE SCHEMA s", "CREATE TABLE public.t()", "CREATE TEMP TABLE t()", "CREATE ROLE r", "CREATE DATABASE d",
	} {
		_, err := conn.Exec(t.Context(), sql)
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr, sql)
		require.Equal(t, "42501", pgErr.Code, sql)
	}
}

func TestWaitForLockWaiters(t *testing.T) {
	db, count := effects(t)
	_, err := db.Pool.Exec(t.Context(), "INSERT INTO public.effects VALUES (1)")
	require.NoError(t, err)
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "DELETE FROM public.effects")
	require.NoError(t, err)
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := db.Pool.Exec(context.Background(), "DELETE FROM public.effects")
			done <- err
		}()
	}
	db.WaitForLockWaiters(t, 2)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Zero(t, count(1))
}

// TestCheckLeaks makes each leak and looks whether it is found.
func TestCheckLeaks(t *testing.T) {
	leaks := map[string]string{
		"idle in transaction": "BEGIN",
		"aborted transaction": "BEGIN; SELECT 1/0",
		"advisory lock":       "SELECT pg_catalog.pg_advisory_lock(7)",
	}
	for name, sql := range leaks {
		t.Run(name, func(t *testing.T) {
			db := testbed.NewDB(t)
			conn := connect(t, db.URL)
			_, _ = conn.PgConn().Exec(t.Context(), sql).ReadAll()
			require.ErrorContains(t, db.CheckLeaksNow(t.Context()), "nothing is leaked")
			require.NoError(t, conn.Close(t.Context()))
			require.NoError(t, db.CheckLeaks(t.Context()))
		})
	}
	t.Run("connection not given back", func(t *testing.T) {
		db := testbed.NewDB(t)
		conn, err := db.Pool.Acquire(t.Context())
		require.NoError(t, err)
		require.ErrorContains(t, db.CheckLeaksNow(t.Context()), "1 connections not given back")
		conn.Release()
	})
}
