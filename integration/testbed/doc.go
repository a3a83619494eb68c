// Package testbed starts real servers for tests, examples and benchmarks, and
// injects faults between them and their clients: throwaway PostgreSQL
// clusters, NATS servers with JetStream on disk, PgBouncer, proxies, and worker
// processes that can be killed and paused. It needs a Unix system and the
// PostgreSQL server programs; nothing else has to run or be set up.
//
// # Use
//
// A test package hands its TestMain over, and then takes what it needs. What a
// helper starts, it closes when the test ends:
//
//	func TestMain(m *testing.M) { testbed.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		db := testbed.NewDB(t)              // a database of its own
//		stream := testbed.NewStream(t, nil) // a stream of its own
//		…
//	}
//
// The server behind [NewDB] and the one behind [NewStream] are shared by the
// test binary and start with their first use. A test that stops its server
// takes one of its own: [NewPostgres], [NewNATS], [NewNATSProcess].
//
// A main function calls [Init] first, defers [Close], and uses the functions
// that take a context and return an error; the helpers that take a
// [testing.TB] add nothing but cleaning up.
//
// Programs are looked for where packages put them. These variables change that:
//
//	ONCEMILL_PG_BIN         directory with initdb and postgres
//	ONCEMILL_PGBOUNCER_BIN  the pgbouncer program
//	ONCEMILL_DATABASE_URL   a running PostgreSQL, as superuser, to use instead
//	ONCEMILL_NATS_URL       a running NATS with JetStream to use instead
//
// A server given by URL is used and never stopped: what would stop it returns
// [ErrNotOurs], and a test that needs to stop it fails.
//
// # Nothing is left behind
//
// The first thing the bed starts is the guard: a copy of this binary in a
// process group of its own, which ignores what a terminal sends and keeps no
// output open. The bed tells it over a pipe of each directory before it is made
// and of each process after it was started. When the pipe closes (the end of
// the tests, a panic, the test timeout, Ctrl-C, SIGKILL) the guard stops what
// was not stopped and removes what was not removed. Two gaps are closed
// otherwise: a postmaster started in the parent's last moment is found by the
// pid file in its directory, and a copy of this binary ends by itself when its
// standard input closes.
//
// Children run as copies of this binary, so [Main] or [Init] must have been
// called before anything is started, and [Role] before that.
//
// # Every test is checked
//
// When a test ends, its database is looked at before it is dropped: a
// connection that was not given back to the pool, a session idle in a
// transaction, or an advisory lock that is still held fails the test. Pools of
// the bed have an empty search_path, so that SQL which forgets to name its
// schema fails.
//
// # Faults
//
// [Proxy] sits in front of any TCP server and cuts, stalls, delays or loses
// bytes. [PostgresProxy] also reads the protocol. Its faults strike at a
// statement, in the simple protocol or in a pipeline of the extended one:
//
//   - before: everything that precedes the statement has been passed on, the
//     statement and what follows it has not. The server never executes it.
//   - after: the server has answered the whole batch that the statement came
//     in, up to ReadyForQuery, without an error. Nothing of that answer has
//     reached the client, except for what the server had sent before the
//     statement arrived. If the answer holds an error, or a ROLLBACK where a
//     COMMIT was asked for, the client gets it and the fault stays armed.
//
// A cut closes both sides; a hold waits for [Fault.Disarm]. A simple Query is
// one statement, however many its text holds. [Fault.Done] tells when a fault
// has struck, so that no test waits for time to pass. Servers notice that a
// client has gone a moment later: wait on a condition, such as the row's lock.
//
// # What is not promised
//
// TLS through PostgresProxy, GSS encryption, the replication protocol,
// Windows. A guard that is itself killed cannot clear away.
package testbed
