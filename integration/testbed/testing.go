package testbed

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// waitBound bounds what a helper waits for, so that a test which waits for
// something that never comes says so long before the test binary's timeout.
const waitBound = 60 * time.Second

// Main is the body of TestMain: it runs the role of a child process, else the
// tests, and closes the bed after them.
//
//	func TestMain(m *testing.M) { testbed.Main(m) }
func Main(m *testing.M) {
	Init()
	code := m.Run()
	if err := Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// NewDB makes a database of its own on the shared server. When the test ends
// it is checked for leaks (see [DB.CheckLeaks]) and dropped.
func NewDB(t testing.TB) *DB {
	t.Helper()
	p, err := SharedPostgres(t.Context())
	require.NoError(t, err)
	return p.NewDB(t)
}

// NewDB is like the function NewDB, on this server.
func (p *Postgres) NewDB(t testing.TB) *DB {
	t.Helper()
	db, err := p.OpenDB(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitBound)
		defer cancel()
		leaks := db.CheckLeaks(ctx)
		closed := db.Close(ctx)
		require.NoError(t, leaks)
		require.NoError(t, closed)
	})
	return db
}

// NewRole adds a role that may connect and nothing else; see [DB.AddRole].
func (db *DB) NewRole(t testing.TB) RoleLogin {
	t.Helper()
	role, err := db.AddRole(t.Context())
	require.NoError(t, err)
	return role
}

// WaitForLockWaiters returns when n backends of this database wait for a lock.
func (db *DB) WaitForLockWaiters(t testing.TB, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitBound)
	defer cancel()
	require.NoError(t, db.AwaitLockWaiters(ctx, n))
}

// NewPostgres starts a server for this test alone, to be stopped and started.
// It is closed when the test ends.
func NewPostgres(t testing.TB, cfg PostgresConfig) *Postgres {
	t.Helper()
	p, err := StartPostgres(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// NewNATS starts a server inside this process for this test alone.
func NewNATS(t testing.TB, cfg NATSConfig) *NATS {
	t.Helper()
	n, err := StartNATS(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// NewNATSProcess starts a server as a process for this test alone.
func NewNATSProcess(t testing.TB, cfg NATSConfig) *NATS {
	t.Helper()
	n, err := StartNATSProcess(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// NewStream makes a stream of its own on the shared server. It is deleted when
// the test ends. tune may change its configuration; nil leaves it.
func NewStream(t testing.TB, tune func(*jetstream.StreamConfig)) *Stream {
	t.Helper()
	n, err := SharedNATS(t.Context())
	require.NoError(t, err)
	return n.NewStream(t, tune)
}

// NewStream is like the function NewStream, on this server.
func (n *NATS) NewStream(t testing.TB, tune func(*jetstream.StreamConfig)) *Stream {
	t.Helper()
	s, err := n.OpenStream(t.Context(), tune)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	return s
}

// NewWorker starts a worker process that is killed when the test ends.
func NewWorker(t testing.TB, role string, cfg WorkerConfig) *Worker {
	t.Helper()
	w, err := StartWorker(role, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Kill()) })
	return w
}

// NewProxy starts a TCP proxy that is closed when the test ends.
func NewProxy(t testing.TB, serverURL string) *Proxy {
	t.Helper()
	p, err := StartProxy(serverURL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// NewPostgresProxy starts a proxy for PostgreSQL that is closed when the test
// ends.
func NewPostgresProxy(t testing.TB, serverURL string) *PostgresProxy {
	t.Helper()
	p, err := StartPostgresProxy(serverURL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// Await returns when the fault has struck as often as it was armed for.
func (f *Fault) Await(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitBound)
	defer cancel()
	select {
	case <-f.Done():
	case <-ctx.Done():
		require.FailNow(t, "the fault did not strike: no statement matched, or none was executed")
	}
}

// NewPgBouncer starts a pooler that is closed when the test ends.
func NewPgBouncer(t testing.TB, server *Postgres, cfg PgBouncerConfig) *PgBouncer {
	t.Helper()
	b, err := StartPgBouncer(t.Context(), server, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}
