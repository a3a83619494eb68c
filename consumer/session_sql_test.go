package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

// openSQL opens a database/sql pool of one connection.
func openSQL(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func newSQL(t *testing.T, db *sql.DB, tune func(*consumer.Config)) *consumer.Consumer {
	t.Helper()
	cfg := config()
	if tune != nil {
		tune(&cfg)
	}
	c, err := consumer.NewSQL(db, cfg)
	require.NoError(t, err)
	return c
}

// chargeSQL is charge for a Consumer made by NewSQL.
func chargeSQL(msg *message.Message) ([]*message.Message, error) {
	_, err := consumer.SQLTx(msg.Context()).ExecContext(msg.Context(), `INSERT INTO public.effects VALUES ($1, $2)`, msg.Metadata.Get("event_id"), []byte(msg.Payload))
	return nil, err
}

const effectsTable = `CREATE TABLE public.effects (key text NOT NULL, body bytea NOT NULL)`

// readOnlyURL is the URL of a new role that owns the database and whose
// transactions are read-only unless they say otherwise.
func readOnlyURL(t *testing.T, db *testbed.DB) string {
	t.Helper()
	role := db.NewRole(t)
	for _, statement := range []string{
		fmt.Sprintf(`ALTER ROLE %q SET default_transaction_read_only = on`, role.Name),
		fmt.Sprintf(`GRANT CREATE ON DATABASE %q TO %q`, db.Name, role.Name),
		fmt.Sprintf(`GRANT USAGE ON SCHEMA public TO %q`, role.Name),
		effectsTable,
		fmt.Sprintf(`GRANT INSERT ON public.effects TO %q`, role.Name),
	} {
		_, err := db.Pool.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	t.Cleanup(func() { // what the role owns goes before the role does
		_, err := db.Pool.Exec(context.Background(), fmt.Sprintf(`DROP OWNED BY %q CASCADE`, role.Name))
		require.NoError(t, err)
	})
	return role.URL
}

func TestTransactionsCanWriteWhateverTheRolesDefaultIs(t *testing.T) {
	for name, drive := range map[string]func(t *testing.T, url string) (message.HandlerFunc, *consumer.Consumer){
		"pgx": func(t *testing.T, url string) (message.HandlerFunc, *consumer.Consumer) {
			pool, err := testbed.NewPool(t.Context(), url, nil)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			require.NoError(t, oncemill.Migrate(t.Context(), pool, oncemill.MigrateConfig{}))
			c, err := consumer.New(pool, config())
			require.NoError(t, err)
			return c.Handler("charge", charge), c
		},
		"sql": func(t *testing.T, url string) (message.HandlerFunc, *consumer.Consumer) {
			db := openSQL(t, url)
			require.NoError(t, oncemill.MigrateSQL(t.Context(), db, oncemill.MigrateConfig{}))
			c := newSQL(t, db, nil)
			return c.Middleware("charge")(chargeSQL), c
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := testbed.NewDB(t)
			h, c := drive(t, readOnlyURL(t, db))
			require.True(t, deliver(t, h, event("k", "a")).acked)
			require.True(t, deliver(t, h, event("k", "a")).acked)
			require.True(t, deliver(t, h, event("k", "b")).acked, "held: a conflict")
			require.Equal(t, consumer.Stats{Done: 1, Duplicates: 1, Dead: 1}, c.Stats())
			require.Equal(t, 1, bench{db, t}.effects())
		})
	}
}

// On database/sql each statement is a round trip; that the transaction may
// write is said only where the default is another.
func TestSQLSaysReadWriteWhereTheDefaultIsAnother(t *testing.T) {
	b := newBench(t)
	proxy := testbed.NewPostgresProxy(t, b.URL)
	db := openSQL(t, proxy.URL())
	h := newSQL(t, db, nil).Middleware("charge")(chargeSQL)
	cost := func(id string) (statements int) {
		proxy.Reset()
		require.True(t, deliver(t, h, event(id, "a")).acked)
		for _, s := range proxy.Statements() {
			if s.SQL != "-- ping" { // of a connection that was idle for a second
				statements++
			}
		}
		return statements
	}
	cost("warm up")
	usual := cost("usual")
	require.Equal(t, 5, usual, "begin, claim, effect, check, commit: %v", proxy.Statements())
	_, err := db.ExecContext(t.Context(), `SET default_transaction_read_only = on`) // as a failover does to open sessions
	require.NoError(t, err)
	require.Equal(t, usual+1, cost("read-only"), "%v", proxy.Statements())
	require.Equal(t, 3, b.effects())
}

func TestSQLAConnectionLostInTheHandlerIsNobodysFailure(t *testing.T) {
	for name, end := range map[string]func(err error) error{
		"returned":           func(err error) error { return err },
		"returned as text":   func(err error) error { return errors.New(err.Error()) },
		"swallowed":          func(error) error { return nil },
		"rolled back before": nil,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			proxy := testbed.NewPostgresProxy(t, b.URL)
			c := newSQL(t, openSQL(t, proxy.URL()), nil)
			h := c.Middleware("charge")(func(msg *message.Message) ([]*message.Message, error) {
				_, err := chargeSQL(msg)
				if err == nil {
					return nil, nil
				}
				if end == nil {
					return nil, errors.Join(errors.New("failed"), consumer.SQLTx(msg.Context()).Rollback())
				}
				return nil, end(err)
			})
			cut := proxy.CutBefore(1, func(query string) bool { return strings.Contains(query, "public.effects") })
			got := deliver(t, h, event("k", "a"))
			cut.Await(t)
			require.True(t, got.nacked)
			require.NoError(t, got.err)
			require.Positive(t, got.delay)
			require.Zero(t, b.effects())
			require.True(t, deliver(t, h, event("k", "a")).acked)
			require.Equal(t, consumer.Stats{Transient: 1, Done: 1}, c.Stats())
			require.Equal(t, 1, b.effects())
		})
	}
}

// A handler's own failure stays one, although its transaction is over.
func TestSQLAFailureOnALiveConnectionIsTheHandlers(t *testing.T) {
	b := newBench(t)
	c := newSQL(t, openSQL(t, b.URL), nil)
	h := c.Middleware("charge")(func(msg *message.Message) ([]*message.Message, error) {
		return nil, errors.Join(errors.New("failed"), consumer.SQLTx(msg.Context()).Rollback())
	})
	require.Error(t, deliver(t, h, event("k", "a")).err)
	require.Equal(t, consumer.Stats{Failed: 1}, c.Stats())
}

func newPool(t *testing.T, url string, connections int32) *pgxpool.Pool {
	t.Helper()
	pool, err := testbed.NewPool(t.Context(), url, func(cfg *pgxpool.Config) { cfg.MaxConns = connections })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// commitFaults are the ways in which the reply to a COMMIT is lost.
var commitFaults = map[string]struct {
	arm  func(*testbed.PostgresProxy) *testbed.Fault
	runs int
	then consumer.Stats
}{
	"executed":   {func(p *testbed.PostgresProxy) *testbed.Fault { return p.CutAfterCommit(1) }, 1, consumer.Stats{InDoubt: 1, Duplicates: 1}},
	"never sent": {func(p *testbed.PostgresProxy) *testbed.Fault { return p.CutBeforeCommit(1) }, 2, consumer.Stats{InDoubt: 1, Done: 1}},
	"no answer in time": {func(p *testbed.PostgresProxy) *testbed.Fault {
		return p.HoldAfter(1, func(query string) bool { return strings.EqualFold(query, "commit") })
	}, 1, consumer.Stats{InDoubt: 1, Duplicates: 1}},
}

// The redelivery finds out, on another connection, and an executed commit's
// original result is kept.
func TestC45_InDoubtOnBothDrivers(t *testing.T) {
	brief := func(cfg *consumer.Config) { cfg.CommitTimeout = 300 * time.Millisecond }
	for driver, drive := range map[string]func(t *testing.T, b bench, url string, result func() []byte) (message.HandlerFunc, *consumer.Consumer){
		"pgx": func(t *testing.T, b bench, url string, result func() []byte) (message.HandlerFunc, *consumer.Consumer) {
			// One to spare: the pool counts a connection until its end is known.
			c := b.consumer(newPool(t, url, 2), brief)
			return c.Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				tx.SetResult(result())
				return charge(ctx, tx, msg)
			}), c
		},
		"sql": func(t *testing.T, _ bench, url string, result func() []byte) (message.HandlerFunc, *consumer.Consumer) {
			c := newSQL(t, openSQL(t, url), brief)
			return c.Middleware("charge")(func(msg *message.Message) ([]*message.Message, error) {
				consumer.SetResult(msg.Context(), result())
				return chargeSQL(msg)
			}), c
		},
	} {
		for name, tc := range commitFaults {
			t.Run(driver+" "+name, func(t *testing.T) {
				b := newBench(t)
				proxy := testbed.NewPostgresProxy(t, b.URL)
				runs := 0
				h, c := drive(t, b, proxy.URL(), func() []byte { runs++; return fmt.Appendf(nil, "run %d", runs) })
				require.NoError(t, c.Check(t.Context()))
				fault := tc.arm(proxy)
				got := deliver(t, h, event("k", "a"))
				fault.Await(t)
				require.True(t, got.nacked)
				require.NoError(t, got.err, "nobody's failure")
				require.Positive(t, got.delay)
				require.Zero(t, c.Stats().Failed)
				inDoubt := claimLinks(proxy)
				require.True(t, deliver(t, h, event("k", "a")).acked)
				require.NotContains(t, inDoubt, last(claimLinks(proxy)), "the connection is not used again")
				fault.Disarm()
				require.Equal(t, tc.then, c.Stats())
				require.Equal(t, tc.runs, runs)
				require.Equal(t, 1, b.effects())
				require.Zero(t, b.count(`SELECT count(*) FROM oncemill.held`), "nothing is concluded from a guess")
				require.Equal(t, fmt.Sprint("run ", tc.runs), b.result("k"))
			})
		}
	}
}

// claimLinks are the connections that claims went over.
func claimLinks(proxy *testbed.PostgresProxy) (links []int) {
	for _, s := range proxy.Statements() {
		if strings.Contains(s.SQL, `INSERT INTO "oncemill".inbox`) {
			links = append(links, s.Link)
		}
	}
	return links
}

func last(links []int) int { return links[len(links)-1] }

// result is the stored answer of an event of the operation charge.
func (b bench) result(id string) string {
	b.t.Helper()
	in, err := dedup.NewInbox(dedup.InboxConfig{})
	require.NoError(b.t, err)
	key, err := dedup.NewKey("acme", "charge", id)
	require.NoError(b.t, err)
	record, found, err := in.Lookup(b.t.Context(), dedup.Pgx(b.Pool), key)
	require.NoError(b.t, err)
	require.True(b.t, found)
	return string(record.Result)
}
