package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestMiddlewareGivesTheTransactionToExistingHandlers(t *testing.T) {
	b := newBench(t)
	h := b.consumer(b.Pool, nil).Middleware("charge")(func(msg *message.Message) ([]*message.Message, error) {
		return charge(msg.Context(), consumer.TxFrom(msg.Context()), msg)
	})
	for range 2 {
		require.True(t, deliver(t, h, event("k", "a")).acked)
	}
	require.Equal(t, 1, b.effects())
}

func TestDatabaseSQL(t *testing.T) {
	b := newBench(t)
	c := b.sqlConsumer(nil)
	fail := errors.New("not this time")
	h := c.Middleware("charge")(func(msg *message.Message) ([]*message.Message, error) {
		consumer.SetResult(msg.Context(), []byte("result"))
		_, err := consumer.SQLTx(msg.Context()).ExecContext(msg.Context(), `INSERT INTO public.effects VALUES ($1, $2)`, msg.Metadata.Get("event_id"), []byte(msg.Payload))
		return nil, errors.Join(err, fail)
	})
	require.True(t, deliver(t, h, event("k", "a")).nacked)
	require.Zero(t, b.effects())
	fail = nil
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.True(t, deliver(t, h, event("k", "b")).acked)
	require.True(t, deliver(t, h, event("", "a")).acked)
	require.Equal(t, consumer.Stats{Done: 1, Duplicates: 1, Dead: 2, Failed: 1}, c.Stats())
	require.Equal(t, 1, b.effects())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM oncemill.inbox WHERE result = 'result'`))
	require.Len(t, b.held(), 2)
}

func TestDatabaseSQLLiteralTransactionControlIsFound(t *testing.T) {
	b := newBench(t)
	for _, statement := range []string{"COMMIT", "ROLLBACK", "ROLLBACK AND CHAIN"} {
		c := b.sqlConsumer(nil)
		h := c.Middleware("charge")(func(msg *message.Message) ([]*message.Message, error) {
			_, err := consumer.SQLTx(msg.Context()).ExecContext(msg.Context(), statement)
			return nil, err
		})
		got := deliver(t, h, event(statement, "a"))
		require.True(t, got.nacked)
		require.ErrorIs(t, got.err, dedup.ErrClaimLost, statement)
	}
}

func TestLiteralTransactionControlIsRefusedOrFound(t *testing.T) {
	b := newBench(t)
	_, err := b.Pool.Exec(t.Context(), `CREATE FUNCTION public.sneaky() RETURNS text LANGUAGE sql AS $$ SELECT set_config('synchronous_commit', 'off', true) $$`)
	require.NoError(t, err)
	c := b.consumer(b.Pool, nil)
	statement := ""
	queue := false
	h := c.Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := charge(ctx, tx, msg); err != nil {
			return nil, err
		}
		if queue {
			tx.Queue(statement)
			return nil, nil
		}
		_, err := tx.Exec(ctx, statement)
		return nil, err
	})
	var refused *consumer.StatementError
	for _, statement = range []string{"COMMIT", "SELECT 1; ROLLBACK AND CHAIN", "SET search_path = other", "SET LOCAL synchronous_commit = off"} {
		for _, queue = range []bool{false, true} {
			got := deliver(t, h, event("k", "a"))
			require.True(t, got.nacked)
			require.ErrorAs(t, got.err, &refused, statement)
		}
	}
	queue, statement = false, "SELECT public.sneaky()"
	require.ErrorIs(t, deliver(t, h, event("k", "a")).err, dedup.ErrClaimLost)
	require.Zero(t, b.effects())
	statement = "SELECT 1"
	require.True(t, deliver(t, h, event("k", "a")).acked)
}

func TestTheFacadeIsDeadAfterTheHandler(t *testing.T) {
	b := newBench(t)
	var kept consumer.Tx
	late := message.NewMessage("late", nil)
	c := b.consumer(b.Pool, nil)
	h := c.Handler("charge", func(ctx context.Context, tx consumer.Tx, _ *message.Message) ([]*message.Message, error) {
		kept = tx
		late.SetContext(context.WithoutCancel(ctx))
		return nil, nil
	})
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.ErrorContains(t, c.Publisher().Publish("payments.commands", late), "send before returning")
	_, err := kept.Exec(t.Context(), `SELECT 1`)
	require.ErrorContains(t, err, "tx is closed")
	require.Error(t, kept.QueryRow(t.Context(), `SELECT 1`).Scan(new(int)))
	_, err = kept.Begin(t.Context())
	require.Error(t, err)
	require.Panics(t, func() { consumer.TxFrom(t.Context()) })
	require.Panics(t, func() { consumer.SQLTx(t.Context()) })
}

func TestOneOperationForSeveralHandlersMustBeSaid(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	handler := func(msg *message.Message) ([]*message.Message, error) {
		return charge(msg.Context(), consumer.TxFrom(msg.Context()), msg)
	}
	router := c.Middleware("router-level")
	one, two := router(handler), router(handler)
	var misuse *consumer.MisuseError
	for _, h := range []message.HandlerFunc{one, two} {
		got := deliver(t, h, event("k", "a"))
		require.True(t, got.nacked)
		require.ErrorAs(t, got.err, &misuse)
	}
	require.Zero(t, b.effects())

	declared := c.Middleware("declared", "h")
	for range 2 {
		require.ErrorAs(t, deliver(t, declared(handler), event("k", "a")).err, &misuse, "not the handler that was named")
	}
	require.Panics(t, func() { c.Handler("declared", charge) }, "registered already")
	require.Panics(t, func() { c.Handler("", charge) })
	require.Panics(t, func() { c.Middleware("spaces are not a name") })
	require.Panics(t, func() { b.sqlConsumer(nil).Handler("charge", charge) })
}

func TestC29_BusyGoesBackWithADelayAndHoldsNoConnection(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, func(cfg *consumer.Config) {
		cfg.Inbox.LockWait = 50 * time.Millisecond
		cfg.BusyDelay = 3 * time.Second
	})
	started, goOn := make(chan struct{}, 1), make(chan error)
	h := c.Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		started <- struct{}{}
		if err := <-goOn; err != nil {
			return nil, err
		}
		return charge(ctx, tx, msg)
	})
	first := make(chan settled, 1)
	go func() { first <- deliver(t, h, event("k", "a")) }()
	<-started
	got := deliver(t, h, event("k", "a"))
	require.True(t, got.nacked)
	require.NoError(t, got.err, "not an error in anyone's log")
	require.InDelta(t, 3*time.Second, got.delay, float64(time.Second))
	require.EqualValues(t, 1, b.Pool.Stat().AcquiredConns(), "the winner's")
	goOn <- errors.New("the winner fails")
	require.True(t, (<-first).nacked)
	go func() { goOn <- nil }()
	require.True(t, deliver(t, h, event("k", "a")).acked, "the loser takes over")
	require.Equal(t, 1, b.effects())
	require.Equal(t, consumer.Stats{Done: 1, Busy: 1, Failed: 1}, c.Stats())
}

func TestADefaultIsolationLevelDoesNotMatter(t *testing.T) {
	b := newBench(t)
	pool, err := testbed.NewPool(t.Context(), b.URL, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c := b.consumer(pool, func(cfg *consumer.Config) { cfg.Inbox.LockWait = time.Minute })
	started, goOn := make(chan struct{}, 1), make(chan struct{})
	var commit string
	h := c.Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		started <- struct{}{}
		<-goOn
		if err := tx.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&commit); err != nil {
			return nil, err
		}
		return charge(ctx, tx, msg)
	})
	results := make(chan settled, 2)
	go func() { results <- deliver(t, h, event("k", "a")) }()
	<-started
	go func() { results <- deliver(t, h, event("k", "a")) }()
	b.WaitForLockWaiters(t, 1)
	close(goOn)
	for range 2 {
		require.True(t, (<-results).acked)
	}
	require.Equal(t, consumer.Stats{Done: 1, Duplicates: 1}, c.Stats(), "no serialization failure")
	require.Equal(t, "on", commit)
}

func TestTheCommitOutlivesTheMessagesContext(t *testing.T) {
	for _, driver := range []string{"pgx", "sql"} {
		b := newBench(t)
		ctx, cancel := context.WithCancel(t.Context())
		var h message.HandlerFunc
		if driver == "pgx" {
			h = b.consumer(b.Pool, nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				_, err := charge(ctx, tx, msg)
				cancel() // as Router.Close does
				return nil, err
			})
		} else {
			h = b.sqlConsumer(nil).Middleware("charge")(func(msg *message.Message) ([]*message.Message, error) {
				_, err := consumer.SQLTx(msg.Context()).ExecContext(msg.Context(), `INSERT INTO public.effects VALUES ('k', 'a')`)
				cancel()
				return nil, err
			})
		}
		msg := event("k", "a")
		msg.SetContext(ctx)
		require.True(t, deliver(t, h, msg).acked, driver)
		require.Equal(t, 1, b.effects(), driver)
	}
}

func TestADatabaseThatIsAwayAcksNothing(t *testing.T) {
	db, err := sql.Open("pgx", "postgres://nobody@127.0.0.1:1/none")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody:canary@127.0.0.1:1/none")
	require.NoError(t, err)
	defer pool.Close()
	native, err := consumer.New(pool, config())
	require.NoError(t, err)
	std, err := consumer.NewSQL(db, config())
	require.NoError(t, err)
	for _, c := range []*consumer.Consumer{native, std} {
		h := c.Middleware("charge")(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		for _, msg := range []*message.Message{event("k", "a"), event("", "a")} {
			got := deliver(t, h, msg)
			require.True(t, got.nacked)
			require.Positive(t, got.delay)
			require.NoError(t, got.err)
		}
		require.EqualValues(t, 2, c.Stats().Transient)
		err := c.Check(t.Context())
		require.Error(t, err)
		require.NotContains(t, err.Error(), "canary")
	}
}

func TestWithoutTheContractTheConsumerWaitsBeforeANack(t *testing.T) {
	b := newBench(t)
	h := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.MinDelay, cfg.NackWait = time.Hour, 20*time.Millisecond }).
		Handler("charge", never(t))
	msg := event("k", "a")
	start := time.Now()
	_, err := h(msg)
	require.Error(t, err)
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	msg.SetContext(ctx)
	_, _ = h(msg) // a cancelled context ends the wait
}

func TestBadConfigNamesTheField(t *testing.T) {
	b := newBench(t)
	for field, tune := range map[string]func(*consumer.Config){
		"Scope":                  func(cfg *consumer.Config) { cfg.Scope = "" },
		"Scope: dedup":           func(cfg *consumer.Config) { cfg.Scope = "a b" },
		"Scope: is set together": func(cfg *consumer.Config) { cfg.ScopeFrom = func(*message.Message) (string, error) { return "", nil } },
		"Key":                    func(cfg *consumer.Config) { cfg.Key = nil },
		"Operations":             func(cfg *consumer.Config) { cfg.Operations = map[string]consumer.Operation{"": {}} },
		"Inbox.Schema":           func(cfg *consumer.Config) { cfg.Inbox.Schema = "pg_x" },
		"Concurrency":            func(cfg *consumer.Config) { cfg.Concurrency = -1 },
		"CommitTimeout":          func(cfg *consumer.Config) { cfg.CommitTimeout = -1 },
		"MinDelay":               func(cfg *consumer.Config) { cfg.MinDelay, cfg.MaxDelay = 2, 1 },
	} {
		cfg := config()
		tune(&cfg)
		_, err := consumer.New(b.Pool, cfg)
		require.ErrorContains(t, err, "consumer.Config."+field)
	}
}

func TestC11_TheKeyIsWhereTheConfigSaysItIs(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, func(cfg *consumer.Config) {
		cfg.Operations = map[string]consumer.Operation{"by-uuid": {Key: keys.MessageUUID()}}
	})
	business, uuid := c.Handler("by-business-id", charge), c.Handler("by-uuid", charge)
	for _, id := range []string{"u1", "u2", "u3"} {
		for _, h := range []message.HandlerFunc{business, uuid} {
			msg := event("o-1", "a")
			msg.UUID = id
			require.True(t, deliver(t, h, msg).acked)
		}
	}
	require.Equal(t, 1+3, b.effects(), "a fresh UUID per publish makes each one an intent")
	require.Contains(t, c.KeySource("by-business-id"), "event_id")
	require.NotEqual(t, c.KeySource("by-business-id"), c.KeySource("by-uuid"))
}
