package consumer_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestOneEffectPerIntent(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	h := c.Handler("charge", charge)
	for range 3 {
		require.True(t, deliver(t, h, event("k", "a")).acked)
	}
	require.Equal(t, 1, b.effects())
	require.Equal(t, consumer.Stats{Done: 1, Duplicates: 2}, c.Stats())
}

func TestBeginAndClaimIsOneRoundTripAndSoIsTheFinish(t *testing.T) {
	b := newBench(t)
	proxy := testbed.NewPostgresProxy(t, b.URL)
	pool, err := testbed.NewPool(t.Context(), proxy.URL(), nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c := b.consumer(pool, nil)
	quiet := c.Handler("quiet", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) { return nil, nil })
	two := c.Handler("two", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := charge(ctx, tx, msg); err != nil {
			return nil, err
		}
		tx.Queue(`INSERT INTO public.effects VALUES ('queued', 'b')`)
		tx.SetResult([]byte("result"))
		return charge(ctx, tx, msg)
	})
	sending := c.Handler("sending", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		tx.Queue(`INSERT INTO public.effects VALUES ('queued', 'b')`)
		tx.SetResult([]byte("result"))
		return []*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil)}, nil
	})
	send := func(msg *message.Message) ([]*message.Message, error) {
		msg.SetContext(publishTopic(t, msg.Context(), "payments.commands"))
		return sending(msg)
	}
	for _, h := range []message.HandlerFunc{quiet, two, send} { // statements get prepared
		require.True(t, deliver(t, h, event("warm up", "a")).acked)
		require.True(t, deliver(t, h, event("warm up", "a")).acked)
	}
	for name, tc := range map[string]struct {
		h    message.HandlerFunc
		want int
	}{"nothing": {quiet, 2}, "two statements, one queued between": {two, 5}, "queued and sent": {send, 2}} {
		proxy.Reset()
		require.True(t, deliver(t, tc.h, event(name, "a")).acked)
		require.EqualValues(t, tc.want, proxy.Counts().RoundTrips(), "%s: %v", name, proxy.Statements())
	}
	proxy.Reset()
	require.True(t, deliver(t, quiet, event("nothing", "a")).acked)
	require.EqualValues(t, 2, proxy.Counts().RoundTrips(), "duplicate: claim, then verdict and rollback")
}

// publishTopic returns ctx with the publish topic that a Router's handler has.
func publishTopic(t *testing.T, ctx context.Context, topic string) context.Context {
	t.Helper()
	var got context.Context
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	sub := oneMessage{message.NewMessage("x", nil)}
	router.AddHandler("h", "in", sub, topic, nopPublisher{}, func(msg *message.Message) ([]*message.Message, error) {
		got = context.WithoutCancel(msg.Context())
		return nil, nil
	})
	go func() { <-sub.msg.Acked(); _ = router.Close() }()
	require.NoError(t, router.Run(t.Context()))
	return mergedContext{ctx, got}
}

// mergedContext has the deadline of the one and the values of both.
type mergedContext struct {
	context.Context
	values context.Context
}

func (m mergedContext) Value(key any) any {
	if v := m.Context.Value(key); v != nil {
		return v
	}
	return m.values.Value(key)
}

type oneMessage struct{ msg *message.Message }

func (s oneMessage) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	ch := make(chan *message.Message, 1)
	ch <- s.msg
	close(ch)
	return ch, nil
}
func (oneMessage) Close() error { return nil }

type nopPublisher struct{}

func (nopPublisher) Publish(string, ...*message.Message) error { return nil }
func (nopPublisher) Close() error                              { return nil }

func TestOutgoingMessagesCommitWithTheEffect(t *testing.T) {
	b := newBench(t)
	secret, err := dedup.NewProviderKeys([]byte("0123456789abcdef"), "test")
	require.NoError(t, err)
	c := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.ProviderKeys = secret })
	fail := true
	inner := c.Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := charge(ctx, tx, msg); err != nil {
			return nil, err
		}
		first := message.NewMessage("first", []byte("1"))
		first.SetContext(ctx)
		if err := c.Publisher().Publish("payments.audit", first); err != nil {
			return nil, err
		}
		if fail {
			return nil, errors.New("not this time")
		}
		return []*message.Message{message.NewMessage("second", []byte("2"))}, nil
	})
	h := func(msg *message.Message) ([]*message.Message, error) {
		msg.SetContext(publishTopic(t, msg.Context(), "payments.commands"))
		return inner(msg)
	}
	require.True(t, deliver(t, h, event("k", "a")).nacked)
	require.Zero(t, b.effects())
	require.Zero(t, b.count(`SELECT count(*) FROM oncemill.outbox`))

	fail = false
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.Equal(t, 1, b.effects())
	rows, err := b.Pool.Query(t.Context(), `SELECT topic, encode(payload, 'escape'), logical_id FROM oncemill.outbox ORDER BY id`)
	require.NoError(t, err)
	type row struct{ Topic, Payload, LogicalID string }
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Equal(t, []string{"payments.audit", "1", "payments.commands", "2"}, []string{got[0].Topic, got[0].Payload, got[1].Topic, got[1].Payload})
	require.NotEqual(t, got[0].LogicalID, got[1].LogicalID)
	require.Equal(t, 2, b.count(`SELECT count(*) FROM oncemill.outbox WHERE position('Oncemill-Provider-Key'::bytea IN header) > 0`))
}

func TestMessagesWithoutAPlaceToGoFailBeforeTheCommit(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	for name, produced := range map[string][]*message.Message{"no topic": {message.NewMessage("1", nil)}, "nil": {nil}} {
		h := c.Handler(strings.ReplaceAll(name, " ", "-"), func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := charge(ctx, tx, msg)
			return produced, err
		})
		require.True(t, deliver(t, h, event("k", "a")).nacked, name)
	}
	err := c.Publisher().Publish("payments.commands", message.NewMessage("1", nil))
	require.ErrorContains(t, err, "no transaction in the message's context")
	require.Zero(t, b.effects())
}

func TestC30_AFailureDoesNotMarkTheKey(t *testing.T) {
	for name, fail := range map[string]func(context.CancelFunc) error{
		"error":      func(context.CancelFunc) error { return errors.New("attempt 1") },
		"panic":      func(context.CancelFunc) error { panic("attempt 1") },
		"goexit":     func(context.CancelFunc) error { runtime.Goexit(); return nil },
		"ctx cancel": func(cancel context.CancelFunc) error { cancel(); return context.Canceled },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			failed := false
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h := b.consumer(b.Pool, nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				_, err := charge(ctx, tx, msg)
				if !failed && err == nil {
					failed = true
					err = fail(cancel)
				}
				return nil, err
			})
			first := event("k", "a")
			first.SetContext(ctx)
			got := deliver(t, h, first)
			require.True(t, got.nacked)
			require.Positive(t, got.delay, "never a hot loop")
			require.Zero(t, b.effects())
			require.True(t, deliver(t, h, event("k", "a")).acked)
			require.Equal(t, 1, b.effects())
		})
	}
}

func TestC43_PanicsLeakNothing(t *testing.T) {
	b := newBench(t)
	pool, err := testbed.NewPool(t.Context(), b.URL, func(cfg *pgxpool.Config) { cfg.MaxConns = 4 })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	var nilMap map[string]int
	c := b.consumer(pool, nil)
	bad := true
	h := c.Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := charge(ctx, tx, msg); err != nil || !bad {
			return nil, err
		}
		switch msg.Metadata.Get("how") {
		case "error":
			panic(errors.New("an error"))
		case "string":
			panic("a string")
		case "nil map":
			nilMap["x"]++
		default:
			runtime.Goexit()
		}
		return nil, nil
	})
	for i := range 20 {
		msg := event(strings.Repeat("k", i+1), "a")
		msg.Metadata.Set("how", []string{"error", "string", "nil map", "goexit"}[i%4])
		require.True(t, deliver(t, h, msg).nacked)
	}
	require.Zero(t, b.effects())
	require.Zero(t, pool.Stat().AcquiredConns())
	require.Zero(t, b.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`))
	bad = false
	for i := range 20 {
		require.True(t, deliver(t, h, event(strings.Repeat("k", i+1), "a")).acked)
	}
	require.Equal(t, 20, b.effects())
	require.EqualValues(t, 20, c.Stats().Failed)
}

func TestC41_AnAbortedTransactionBehindANilErrorIsAFailure(t *testing.T) {
	b := newBench(t)
	_, err := b.Pool.Exec(t.Context(), `CREATE TABLE public.once (k text PRIMARY KEY); INSERT INTO public.once VALUES ('taken')`)
	require.NoError(t, err)
	savepoint := false
	h := b.consumer(b.Pool, nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := charge(ctx, tx, msg); err != nil {
			return nil, err
		}
		risky := `INSERT INTO public.once VALUES ('taken')`
		if savepoint {
			_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, risky); return err })
			return nil, nil
		}
		_, _ = tx.Exec(ctx, risky)
		return nil, nil
	})
	got := deliver(t, h, event("k", "a"))
	require.True(t, got.nacked)
	require.ErrorAs(t, got.err, &consumer.AbortedError{})
	require.ErrorContains(t, got.err, "the transaction is aborted")
	require.Zero(t, b.effects())

	savepoint = true
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.Equal(t, 1, b.effects())
}

func TestC45_ALostCommitReplyIsInDoubt(t *testing.T) {
	for name, tc := range map[string]struct {
		arm  func(*testbed.PostgresProxy) *testbed.Fault
		then consumer.Stats
	}{
		"executed": {func(p *testbed.PostgresProxy) *testbed.Fault { return p.CutAfterCommit(1) }, consumer.Stats{InDoubt: 1, Duplicates: 1}},
		"not sent": {func(p *testbed.PostgresProxy) *testbed.Fault { return p.CutBeforeCommit(1) }, consumer.Stats{InDoubt: 1, Done: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			proxy := testbed.NewPostgresProxy(t, b.URL)
			pool, err := testbed.NewPool(t.Context(), proxy.URL(), nil)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			c := b.consumer(pool, nil)
			h := c.Handler("charge", charge)
			fault := tc.arm(proxy)
			got := deliver(t, h, event("k", "a"))
			fault.Await(t)
			require.True(t, got.nacked)
			require.NoError(t, got.err, "nobody's failure")
			require.True(t, deliver(t, h, event("k", "a")).acked)
			require.Equal(t, tc.then, c.Stats())
			require.Equal(t, 1, b.effects())
			require.Zero(t, b.count(`SELECT count(*) FROM oncemill.held`))
		})
	}
}

func TestC47_AHandlerThatNeedsASecondConnection(t *testing.T) {
	b := newBench(t)
	newPool := func(n int32) *pgxpool.Pool {
		pool, err := testbed.NewPool(t.Context(), b.URL, func(cfg *pgxpool.Config) { cfg.MaxConns = n })
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	t.Run("the spare connection serves it", func(t *testing.T) {
		pool := newPool(4)
		h := b.consumer(pool, nil).Handler("spare", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
			if _, err := pool.Exec(ctx, `SELECT 1`); err != nil {
				return nil, err
			}
			return charge(ctx, tx, msg)
		})
		results := make(chan settled)
		for i := range 12 {
			go func() { results <- deliver(t, h, event(strings.Repeat("k", i+1), "a")) }()
		}
		for range 12 {
			require.True(t, (<-results).acked)
		}
		require.Equal(t, 12, b.effects())
	})
	t.Run("one connection: bounded, with a clear error", func(t *testing.T) {
		pool := newPool(1)
		var handlerErr error
		h := b.consumer(pool, func(cfg *consumer.Config) { cfg.HandlerTimeout = 100 * time.Millisecond }).Handler("hungry",
			func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				_, handlerErr = pool.Exec(ctx, `SELECT 1`)
				return nil, handlerErr
			})
		require.True(t, deliver(t, h, event("h", "a")).nacked)
		require.ErrorIs(t, handlerErr, context.DeadlineExceeded)
		require.True(t, deliver(t, b.consumer(pool, nil).Handler("charge", charge), event("h", "a")).acked, "the framework itself needs one")
	})
	t.Run("more deliveries than connections are refused", func(t *testing.T) {
		cfg := config()
		cfg.Concurrency = 5
		_, err := consumer.New(newPool(4), cfg)
		require.ErrorContains(t, err, "consumer.Config.Concurrency: 5 deliveries need a connection each and the pool has 4")
	})
}
