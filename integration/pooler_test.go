//go:build testall

package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

// pooled is a service behind PgBouncer in transaction mode, with fewer server
// connections than it has connections itself.
func (s *stack) pooled(mode pgx.QueryExecMode) options {
	return options{
		pool: func(cfg *pgxpool.Config) {
			cfg.MaxConns = 30
			cfg.ConnConfig.DefaultQueryExecMode = mode
		},
		consumer:  func(cfg *consumer.Config) { cfg.Concurrency = 20 },
		jetstream: func(cfg *jetstream.Config) { cfg.InFlight = 200 },
	}
}

// workingModes are the exec modes that need nothing of a connection from one
// round trip to the next, as the documentation of package consumer says.
var workingModes = []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol}

// C107: many messages through a small pool, with DDL in the middle.
func TestC107_TransactionPooling(t *testing.T) {
	for _, mode := range workingModes {
		t.Run(mode.String(), func(t *testing.T) {
			events := 1000
			if mode == pgx.QueryExecModeExec {
				events = 5000
			}
			s := newStack(t)
			s.exec(`CREATE TABLE public.rates (currency text PRIMARY KEY, rate integer NOT NULL); INSERT INTO public.rates VALUES ('EUR', 2)`)
			bouncer := testbed.NewPgBouncer(t, s.db.Server, testbed.PgBouncerConfig{PoolSize: 5})
			w := s.wiring()
			w.Database = bouncer.URL(s.db.Name)
			svc := s.open(w, s.pooled(mode))
			var failures atomic.Int64
			svc.handle("charge", "new", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				var currency string
				var rate int64
				if err := tx.QueryRow(ctx, `SELECT * FROM public.rates WHERE currency = $1`, "EUR").Scan(&currency, &rate); err != nil {
					failures.Add(1)
					return nil, err
				}
				commands, err := svc.effect(ctx, tx, msg)
				if err != nil {
					failures.Add(1)
				}
				return commands, err
			})
			s.start(svc)
			s.publishMany(events)
			for i, ddl := range []string{
				`ALTER TABLE public.rates ALTER COLUMN rate TYPE bigint`,
				`ALTER TABLE public.effects ADD COLUMN at timestamptz NOT NULL DEFAULT now()`,
				`ALTER TABLE public.effects ALTER COLUMN key TYPE varchar(100)`,
			} {
				s.eventually("messages flow", func() bool { return svc.consumer.Stats().Done > int64((i+1)*events/5) })
				s.exec(ddl)
			}
			s.settled("charge")
			s.requireCommands(events)
			require.Equal(t, events, s.effects())
			require.Zero(t, failures.Load(), "nothing of the pooler reached a handler")
			require.Empty(t, s.held())
			stats := svc.consumer.Stats()
			require.Equal(t, int64(events), stats.Done)
			require.Zero(t, stats.Failed)
		})
	}
}

// publishMany is publishEvents without a round trip for each.
func (s *stack) publishMany(n int) {
	s.Helper()
	const page = 500 // well below what the client lets be under way
	for i := range n {
		m := nats.NewMsg(s.stream.Subject("new"))
		m.Data = fmt.Appendf(nil, "k%d", i)
		m.Header.Set("event_id", string(m.Data))
		_, err := s.stream.JS.PublishMsgAsync(m)
		require.NoError(s, err)
		if (i+1)%page != 0 && i != n-1 {
			continue
		}
		select {
		case <-s.stream.JS.PublishAsyncComplete():
		case <-time.After(bound):
			require.FailNow(s, "the server does not take the events")
		}
	}
}

// C107: the rest of what runs in a service.
func TestC107_WholePathThroughThePooler(t *testing.T) {
	for _, mode := range workingModes {
		t.Run(mode.String(), func(t *testing.T) {
			s := newStack(t)
			role := s.appRole()
			bouncer := testbed.NewPgBouncer(t, s.db.Server, testbed.PgBouncerConfig{PoolSize: 5, Roles: []testbed.RoleLogin{role}})
			w := s.wiring()
			w.Database = bouncer.URLFor(s.db.Name, role.Name)
			s.wholePath(s.open(w, s.pooled(mode)), nothing)
		})
	}
}

// C107: an exec mode that does not work through the pooler is found when the
// service starts, whatever the pooler does with its servers, and not later by
// a handler.
func TestC107_MisuseIsRefusedAtStart(t *testing.T) {
	for name, tc := range map[string]struct {
		settings map[string]string
		mode     pgx.QueryExecMode
		refused  bool
	}{
		"prepared statements":                      {nil, pgx.QueryExecModeCacheStatement, true},
		"prepared statements, servers in turn":     {map[string]string{"server_round_robin": "1"}, pgx.QueryExecModeCacheStatement, true},
		"prepared statements, one server":          {map[string]string{"default_pool_size": "1"}, pgx.QueryExecModeCacheStatement, true},
		"unnamed statements":                       {nil, pgx.QueryExecModeDescribeExec, true},
		"prepared statements, a server per client": {map[string]string{"pool_mode": "session"}, pgx.QueryExecModeCacheStatement, false},
		"nothing prepared":                         {nil, pgx.QueryExecModeExec, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			bouncer := testbed.NewPgBouncer(t, s.db.Server, testbed.PgBouncerConfig{PoolSize: 5, Settings: tc.settings})
			w := s.wiring()
			w.Database = bouncer.URL(s.db.Name)
			for range 5 { // what an earlier start leaves behind changes nothing
				svc, err := openService(t.Context(), w, s.pooled(tc.mode))
				require.NoError(t, err)
				s.warmUp(svc)
				for _, check := range []func(context.Context) error{svc.consumer.Check, svc.relay.Check} {
					err = check(t.Context())
					var refused *consumer.PoolerError
					require.Equal(t, tc.refused, errors.As(err, &refused), "%v", err)
					if !tc.refused {
						require.NoError(t, err)
					}
				}
				require.NoError(t, svc.close())
			}
		})
	}
	t.Run("no pooler", func(t *testing.T) {
		s := newStack(t)
		svc := s.open(s.wiring(), options{})
		require.NoError(t, svc.consumer.Check(t.Context()))
	})
}

// C107: migrations, by several processes at once.
func TestC107_MigrateThroughThePooler(t *testing.T) {
	s := newStack(t)
	bouncer := testbed.NewPgBouncer(t, s.db.Server, testbed.PgBouncerConfig{PoolSize: 5})
	migrate := map[string]func(oncemill.MigrateConfig) error{}
	for _, mode := range workingModes {
		pool, err := testbed.NewPool(t.Context(), bouncer.URL(s.db.Name), func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode })
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		migrate[mode.String()] = func(cfg oncemill.MigrateConfig) error { return oncemill.Migrate(t.Context(), pool, cfg) }
		db, err := sql.Open("pgx", bouncer.URL(s.db.Name)+"&default_query_exec_mode="+strings.ReplaceAll(mode.String(), " ", "_"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		migrate[mode.String()+", database/sql"] = func(cfg oncemill.MigrateConfig) error { return oncemill.MigrateSQL(t.Context(), db, cfg) }
	}
	for name, run := range migrate {
		cfg := oncemill.MigrateConfig{Schema: name}
		errs := make(chan error, 8) // more than the pooler has servers
		for range cap(errs) {
			go func() { errs <- run(cfg) }()
		}
		for range cap(errs) {
			require.NoError(t, <-errs, name)
		}
		schema := pgx.Identifier{name}.Sanitize()
		require.Equal(t, oncemill.SchemaVersion(), s.count(`SELECT count(*) FROM `+schema+`.schema_migration`), name)
	}
	require.Zero(t, s.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'`), "no lock of a session")
}

// C107: sets of keys that overlap, each claimed in a transaction. One set at a
// time gets a key, and none is stuck or fails for the pooler.
func TestC107_ClaimSetThroughThePooler(t *testing.T) {
	const workers, sets, keysOfASet, keys = 20, 20, 10, 100
	for _, mode := range workingModes {
		t.Run(mode.String(), func(t *testing.T) {
			s := newStack(t)
			bouncer := testbed.NewPgBouncer(t, s.db.Server, testbed.PgBouncerConfig{PoolSize: 5})
			pool, err := testbed.NewPool(t.Context(), bouncer.URL(s.db.Name), func(cfg *pgxpool.Config) {
				cfg.MaxConns, cfg.ConnConfig.DefaultQueryExecMode = workers, mode
			})
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			inbox, err := dedup.NewInbox(dedup.InboxConfig{LockWait: bound})
			require.NoError(t, err)
			claim := func(from int) (fresh int64, err error) {
				intents := make([]dedup.Intent, keysOfASet)
				for i := range intents {
					id := fmt.Sprintf("k%d", (from+i*7)%keys) // no two sets in the same order
					if intents[i].Key, err = dedup.NewKey(scope, "charge", id); err != nil {
						return 0, err
					}
					intents[i].Fingerprint = dedup.RawFingerprint().Fingerprint(intents[i].Key, []byte(id))
				}
				err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					claims, err := inbox.ClaimSet(t.Context(), dedup.Pgx(tx), intents)
					if err != nil {
						return err
					}
					for _, c := range claims {
						if c.Verdict == dedup.Fresh {
							fresh++
						}
						if c.Verdict != dedup.Fresh && c.Verdict != dedup.Done {
							return c.Err()
						}
					}
					return nil
				})
				return fresh, err
			}
			var fresh atomic.Int64
			errs := make(chan error, workers)
			for w := range workers {
				go func() {
					var failed error
					for i := range sets {
						n, err := claim(w*31 + i*13)
						failed = errors.Join(failed, err)
						fresh.Add(n)
					}
					errs <- failed
				}()
			}
			for range workers {
				require.NoError(t, <-errs)
			}
			require.EqualValues(t, keys, fresh.Load(), "each key was fresh once")
			require.Equal(t, keys, s.count(`SELECT count(*) FROM oncemill.inbox`))
		})
	}
}

// C107: the same on database/sql.
func TestC107_DatabaseSQL(t *testing.T) {
	const events = 200
	s := newStack(t)
	bouncer := testbed.NewPgBouncer(t, s.db.Server, testbed.PgBouncerConfig{PoolSize: 5})
	var refused *consumer.PoolerError
	require.ErrorAs(t, s.openSQL(bouncer.URL(s.db.Name), nil).consumer.Check(t.Context()), &refused)

	svc := s.openSQL(bouncer.URL(s.db.Name)+"&default_query_exec_mode=exec", nil)
	source := s.open(s.wiring(), options{})
	svc.handle("charge", s.stream.Subject("new"), source.subscriber("charge", "charge"))
	svc.start()
	s.publishMany(events)
	s.settled("charge")
	s.requireCommands(events)
	requireOutcomes(t, consumer.Stats{Done: events}, svc.consumer.Stats())
	require.Equal(t, events, s.effects())
}

// C107: a default that makes transactions read-only, which the pooler does not
// tell to the connections that it has reported another one to.
func TestC107_DatabaseSQLUnderAReadOnlyDefault(t *testing.T) {
	const events = 5
	s := newStack(t)
	bouncer := testbed.NewPgBouncer(t, s.db.Server, testbed.PgBouncerConfig{PoolSize: 5})
	svc := s.openSQL(bouncer.URL(s.db.Name)+"&default_query_exec_mode=exec", nil)
	source := s.open(s.wiring(), options{})
	svc.handle("charge", s.stream.Subject("new"), source.subscriber("charge", "charge"))
	svc.start()
	s.publishEvents(1)
	s.settled("charge")
	s.exec(fmt.Sprintf(`ALTER DATABASE %q SET default_transaction_read_only = on`, s.db.Name))
	s.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	s.db.Pool.Reset()
	s.publishEvents(events)
	s.publish("new", "other", "event_id", "k0")
	s.publish("new", "no key")
	s.settled("charge")
	require.Equal(t, events, s.effects())
	require.ElementsMatch(t, []string{"conflict", "no key"}, s.reasons())
	require.Zero(t, svc.consumer.Stats().Failed)
}

// warmUp makes the pooler open several servers.
func (s *stack) warmUp(svc *service) {
	s.Helper()
	var wait sync.WaitGroup
	for range 3 {
		wait.Go(func() {
			_, err := svc.pool.Exec(context.Background(), `SELECT pg_catalog.pg_sleep(0.05)`, pgx.QueryExecModeSimpleProtocol)
			require.NoError(s, err)
		})
	}
	wait.Wait()
}
