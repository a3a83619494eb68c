package testbed_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

// dialect is one way to send BEGIN, an insert and COMMIT.
type dialect struct {
	name string
	run  func(ctx context.Context, conn *pgx.Conn, id int) error
}

const insertSQL = "INSERT INTO public.effects(id) VALUES ($1)"

var dialects = []dialect{
	{"simple protocol", runTx},
	{"one simple query", runScript},
	{"pipeline, unnamed statements", runPipeline},
	{"pipeline, named statements", runPrepared},
}

func runTx(ctx context.Context, conn *pgx.Conn, id int) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, insertSQL, id); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func runScript(ctx context.Context, conn *pgx.Conn, id int) error {
	sql := "BEGIN; INSERT INTO public.effects(id) VALUES (" + string(rune('0'+id)) + "); Commit -- done"
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

func runPipeline(ctx context.Context, conn *pgx.Conn, id int) error {
	p := conn.PgConn().StartPipeline(ctx)
	p.SendQueryParams("BEGIN", nil, nil, nil, nil)
	p.SendQueryParams(insertSQL, [][]byte{{byte('0' + id)}}, nil, nil, nil)
	p.SendQueryParams("COMMIT", nil, nil, nil, nil)
	p.SendQueryParams("SELECT 1", nil, nil, nil, nil)
	return finish(p)
}

func runPrepared(ctx context.Context, conn *pgx.Conn, id int) error {
	for name, sql := range map[string]string{"b": "BEGIN", "i": insertSQL, "c": "COMMIT"} {
		if _, err := conn.PgConn().Prepare(ctx, name, sql, nil); err != nil {
			return err
		}
	}
	p := conn.PgConn().StartPipeline(ctx)
	p.SendQueryPrepared("b", nil, nil, nil)
	p.SendQueryPrepared("i", [][]byte{{byte('0' + id)}}, nil, nil)
	p.SendQueryPrepared("c", nil, nil, nil)
	return finish(p)
}

// finish reads all results of a pipeline and returns its first error.
func finish(p *pgconn.Pipeline) error {
	err := p.Sync()
	for err == nil {
		var res any
		if res, err = p.GetResults(); err != nil || res == nil {
			break
		}
		if reader, ok := res.(*pgconn.ResultReader); ok {
			_, err = reader.Close()
		}
	}
	return errors.Join(err, p.Close())
}

// effects makes the table that the dialects write to, and counts a row of it.
func effects(t *testing.T) (*testbed.DB, func(id int) int) {
	t.Helper()
	db := testbed.NewDB(t)
	_, err := db.Pool.Exec(t.Context(), "CREATE TABLE public.effects(id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
	require.NoError(t, err)
	return db, func(id int) (n int) {
		require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM public.effects WHERE id = $1", id).Scan(&n))
		return n
	}
}

func connect(t *testing.T, connURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), connURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestP14_CutAfterCommit(t *testing.T) {
	db, count := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	for i, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			conn := connect(t, proxy.URL())
			fault := proxy.CutAfterCommit(1)
			require.Error(t, d.run(t.Context(), conn, i))
			fault.Await(t)
			require.True(t, conn.IsClosed())
			require.Equal(t, 1, count(i), "the server executed the COMMIT")
			require.NoError(t, d.run(t.Context(), connect(t, proxy.URL()), i+4), "one shot only")
		})
	}
}

func TestP14_CutBeforeCommit(t *testing.T) {
	db, count := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	for i, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			conn := connect(t, proxy.URL())
			fault := proxy.CutBeforeCommit(1)
			require.Error(t, d.run(t.Context(), conn, i))
			fault.Await(t)
			// The same row goes in once the server noticed, and not before.
			require.NoError(t, d.run(t.Context(), connect(t, db.URL), i))
			require.Equal(t, 1, count(i))
		})
	}
}

// TestP14_CancelledBeforeCommit is the other half of the fact: pgx does not
// send a COMMIT for a context that has ended.
func TestP14_CancelledBeforeCommit(t *testing.T) {
	db, count := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	tx, err := connect(t, proxy.URL()).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), insertSQL, 1)
	require.NoError(t, err)
	proxy.Reset()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, tx.Commit(ended), context.Canceled)
	require.Empty(t, proxy.Statements())
	require.Zero(t, count(1))
}

func TestCutBeforeCommit_NothingIsExecuted(t *testing.T) {
	db, count := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	for i, d := range dialects {
		proxy.CutBeforeCommit(1)
		require.Error(t, d.run(t.Context(), connect(t, proxy.URL()), i), d.name)
		require.NoError(t, db.CheckLeaks(t.Context()), "the server rolls back")
		require.Zero(t, count(i), d.name)
	}
}

func TestCutAfterCommit_FailedCommitDoesNotCount(t *testing.T) {
	db, count := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	for i, d := range dialects {
		require.NoError(t, d.run(t.Context(), connect(t, db.URL), i))
		conn := connect(t, proxy.URL())
		fault := proxy.CutAfterCommit(1)
		var pgErr *pgconn.PgError
		require.ErrorAs(t, d.run(t.Context(), conn, i), &pgErr, d.name)
		require.Equal(t, "23505", pgErr.Code, "the deferred constraint fails the COMMIT")
		require.Zero(t, fault.Fired())
		require.Error(t, d.run(t.Context(), connect(t, proxy.URL()), i+4), "the fault is still armed")
		fault.Await(t)
		require.Equal(t, 1, count(i+4))
	}
}

func TestCutAfterCommit_RollbackDoesNotCount(t *testing.T) {
	db, _ := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	conn := connect(t, proxy.URL())
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT 1/0")
	require.Error(t, err)
	fault := proxy.CutAfterCommit(1)
	require.ErrorIs(t, tx.Commit(t.Context()), pgx.ErrTxCommitRollback)
	require.Zero(t, fault.Fired())
}

func TestCutAfter_AnyStatement(t *testing.T) {
	db, count := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	fault := proxy.CutAfter(2, func(sql string) bool { return strings.HasPrefix(sql, "INSERT") })
	var pgErr *pgconn.PgError
	_, err := connect(t, proxy.URL()).Exec(t.Context(), "INSERT INTO public.effects(id) VALUES (1/0)")
	require.ErrorAs(t, err, &pgErr, "one that fails is answered and does not count")
	for id := range 2 {
		_, err := connect(t, proxy.URL()).Exec(t.Context(), insertSQL, id)
		require.Error(t, err)
		require.Equal(t, 1, count(id))
	}
	fault.Await(t)
	require.Equal(t, 2, fault.Fired())
	_, err = connect(t, proxy.URL()).Exec(t.Context(), insertSQL, 3)
	require.NoError(t, err)
}

func TestHoldBefore(t *testing.T) {
	db, count := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	conn := connect(t, proxy.URL())
	fault := proxy.HoldBefore(1, func(sql string) bool { return strings.EqualFold(sql, "commit") })
	done := make(chan error, 1)
	go func() { done <- runTx(context.Background(), conn, 1) }()
	fault.Await(t)
	require.Zero(t, count(1))
	fault.Disarm()
	require.NoError(t, <-done)
	require.Equal(t, 1, count(1))
}

func TestHoldAfter(t *testing.T) {
	db, count := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	conn := connect(t, proxy.URL())
	fault := proxy.HoldAfter(1, func(sql string) bool { return sql == "COMMIT" })
	done := make(chan error, 1)
	go func() { done <- runPipeline(context.Background(), conn, 1) }()
	fault.Await(t)
	require.Equal(t, 1, count(1))
	select {
	case err := <-done:
		require.FailNow(t, "the answer came through", "%v", err)
	default:
	}
	fault.Disarm()
	require.NoError(t, <-done)
}

func TestCounts(t *testing.T) {
	db, _ := effects(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	conn := connect(t, proxy.URL())
	proxy.Reset()
	require.NoError(t, runPipeline(t.Context(), conn, 1))
	require.Equal(t, testbed.Counts{Executes: 4, Syncs: 1, Statements: 4}, proxy.Counts())
	require.Equal(t, 1, proxy.Counts().RoundTrips())
	require.Equal(t, []testbed.Statement{{Link: 1, SQL: "BEGIN"}, {Link: 1, SQL: insertSQL}, {Link: 1, SQL: "COMMIT"}, {Link: 1, SQL: "SELECT 1"}}, proxy.Statements())

	proxy.Reset()
	require.NoError(t, runTx(t.Context(), conn, 2))
	// begin, prepare, insert, commit
	require.Equal(t, testbed.Counts{Queries: 2, Executes: 1, Syncs: 2, Statements: 3}, proxy.Counts())
	require.Equal(t, 4, proxy.Counts().RoundTrips())
}

func TestPostgresProxy_RefusesTLS(t *testing.T) {
	db := testbed.NewDB(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	u, err := url.Parse(proxy.URL())
	require.NoError(t, err)
	u.RawQuery = "sslmode=prefer"
	require.NoError(t, connect(t, u.String()).Ping(t.Context()), "goes on without")
}

func TestPostgresProxy_PassesCancelRequest(t *testing.T) {
	db := testbed.NewDB(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	conn := connect(t, proxy.URL())
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_catalog.pg_sleep(600)")
		done <- err
	}()
	require.Eventually(t, func() bool { return len(proxy.Statements()) == 1 }, waitFor, tick)
	for {
		require.NoError(t, conn.PgConn().CancelRequest(t.Context()))
		select {
		case err := <-done:
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr)
			require.Equal(t, "57014", pgErr.Code)
			return
		default: // the server had not started on the statement
		}
	}
}

func TestPostgresProxy_LargeMessagesAndCopy(t *testing.T) {
	db := testbed.NewDB(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	conn := connect(t, proxy.URL())
	big := strings.Repeat("0123456789", 300_000)
	var back string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT $1::text", big).Scan(&back))
	require.Equal(t, big, back)
	_, err := conn.Exec(t.Context(), "CREATE TABLE public.t(a int, b text)")
	require.NoError(t, err)
	n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"public", "t"}, []string{"a", "b"},
		pgx.CopyFromSlice(5000, func(i int) ([]any, error) { return []any{i, big[:i%100]}, nil }))
	require.NoError(t, err)
	require.EqualValues(t, 5000, n)
	// What follows a COPY is still counted right: the fault finds its answer.
	fault := proxy.CutAfter(1, func(sql string) bool { return strings.HasPrefix(sql, "DELETE") })
	_, err = conn.Exec(t.Context(), "DELETE FROM public.t WHERE a = $1", 1)
	require.Error(t, err)
	fault.Await(t)
}
