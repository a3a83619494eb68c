package consumer_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
)

// logged is a log that tests look into.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// to makes a Consumer log into l, everything.
func (l *logged) to(cfg *consumer.Config) {
	cfg.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// meeting returns a function that returns when n have called it.
func meeting(n int64) func(context.Context) error {
	var came atomic.Int64
	all := make(chan struct{})
	return func(ctx context.Context) error {
		if came.Add(1) == n {
			close(all)
		}
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Two handlers lock two accounts in opposite order. The one that PostgreSQL
// picks goes back, and nobody has failed.
func TestC31_ADeadlockIsNobodysFailure(t *testing.T) {
	const add = `UPDATE public.accounts SET balance = balance + 1 WHERE name = $1`
	type adder func(account string) error
	var met func(context.Context) error // both have their first account
	both := func(msg *message.Message, first, second adder) error {
		from, to, _ := strings.Cut(string(msg.Payload), " ")
		for _, step := range []func() error{
			func() error { return first(from) },
			func() error { return met(msg.Context()) },
			func() error { return second(to) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}
	for name, drive := range map[string]func(b bench) (message.HandlerFunc, *consumer.Consumer){
		"pgx": func(b bench) (message.HandlerFunc, *consumer.Consumer) {
			c := b.consumer(b.Pool, nil)
			return c.Handler("move", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				exec := func(account string) error { _, err := tx.Exec(ctx, add, account); return err }
				return nil, both(msg, exec, exec)
			}), c
		},
		"pgx, sent with the commit": func(b bench) (message.HandlerFunc, *consumer.Consumer) {
			c := b.consumer(b.Pool, nil)
			return c.Handler("move", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				exec := func(account string) error { _, err := tx.Exec(ctx, add, account); return err }
				return nil, both(msg, exec, func(account string) error { tx.Queue(add, account); return nil })
			}), c
		},
		"sql": func(b bench) (message.HandlerFunc, *consumer.Consumer) {
			c := b.sqlConsumer(nil)
			return c.Middleware("move")(func(msg *message.Message) ([]*message.Message, error) {
				tx := consumer.SQLTx(msg.Context())
				exec := func(account string) error { _, err := tx.ExecContext(msg.Context(), add, account); return err }
				return nil, both(msg, exec, exec)
			}), c
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for _, statement := range []string{
				`CREATE TABLE public.accounts (name text, balance integer); INSERT INTO public.accounts VALUES ('a', 0), ('b', 0)`,
				fmt.Sprintf(`ALTER DATABASE %q SET deadlock_timeout = '100ms'`, b.Name),
			} {
				_, err := b.Pool.Exec(t.Context(), statement)
				require.NoError(t, err)
			}
			b.Pool.Reset() // what is open has the old setting
			h, c := drive(b)
			require.NoError(t, c.Check(t.Context()))
			met = meeting(2)
			results := make(chan settled, 2)
			for _, way := range []string{"a b", "b a"} {
				go func() { results <- deliver(t, h, event(way[:1], way)) }()
			}
			for range 2 {
				got := <-results
				require.NoError(t, got.err)
				require.Equal(t, got.nacked, got.delay > 0, "the victim goes back with a delay")
			}
			require.Equal(t, consumer.Stats{Done: 1, Transient: 1}, c.Stats())
			for _, way := range []string{"a b", "b a"} {
				require.True(t, deliver(t, h, event(way[:1], way)).acked)
			}
			require.Equal(t, consumer.Stats{Done: 2, Transient: 1, Duplicates: 1}, c.Stats())
			require.Equal(t, 2, b.count(`SELECT count(*) FROM public.accounts WHERE balance = 2`))
			require.Zero(t, b.count(`SELECT count(*) FROM oncemill.held`))
		})
	}
}

func TestC43_APanicIsLoggedWithItsStackAndWithoutItsValue(t *testing.T) {
	b := newBench(t)
	for name, value := range map[string]any{"*errors.errorString": errors.New("canary"), "string": "canary", "consumer_test.secret": secret{"canary"}} {
		var log logged
		h := b.consumer(b.Pool, log.to).Handler("charge", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
			return nil, explode(value)
		})
		got := deliver(t, h, event("canary", "canary"))
		var p *consumer.PanicError
		require.ErrorAs(t, got.err, &p)
		require.Equal(t, name, p.Kind)
		require.NotContains(t, got.err.Error(), "canary")
		text := log.String()
		require.Contains(t, text, "level=ERROR")
		require.Contains(t, text, "operation=charge")
		require.Contains(t, text, "the handler panicked with a value of type "+name)
		require.Contains(t, text, "consumer_test.explode", "the stack")
		require.NotContains(t, text, "canary")
	}
}

type secret struct{ text string }

//go:noinline
func explode(value any) error { panic(value) }

// Every handler wants a connection besides its own.
func TestC47_TheDefaultConcurrencyLeavesAConnection(t *testing.T) {
	const connections = 4
	b := newBench(t)
	pool := newPool(t, b.URL, connections)
	in, goOn := make(chan struct{}, 100), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	const patience = 5 * time.Second
	c := b.consumer(pool, func(cfg *consumer.Config) { cfg.HandlerTimeout = patience })
	h := c.Handler("hungry", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		in <- struct{}{}
		<-goOn
		if _, err := pool.Exec(ctx, `SELECT 1`); err != nil {
			return nil, err
		}
		return charge(ctx, tx, msg)
	})
	results := make(chan settled, 3*connections)
	for i := range cap(results) {
		go func() { results <- deliver(t, h, event(fmt.Sprint("k", i), "a")) }()
	}
	for range connections - 1 {
		<-in
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, pool.Ping(ctx), "a connection is left while as many as may are at work")
	require.Empty(t, in)
	release()
	for range cap(results) {
		require.True(t, (<-results).acked)
	}
	require.Equal(t, cap(results), b.effects())
	require.Equal(t, consumer.Stats{Done: int64(cap(results))}, c.Stats())
}

func TestC47_WithoutASpareConnectionTheWaitIsBoundedAndExplained(t *testing.T) {
	const connections = 4
	const advice = "every connection of the pool is in use; a handler that needs one besides its transaction (tx) needs a pool larger than Concurrency"
	hungry := func(cfg *consumer.Config) { cfg.Concurrency, cfg.HandlerTimeout = connections, time.Second }
	for name, drive := range map[string]func(b bench, tune func(*consumer.Config), met func(context.Context) error) (message.HandlerFunc, *consumer.Consumer){
		"pgx": func(b bench, tune func(*consumer.Config), met func(context.Context) error) (message.HandlerFunc, *consumer.Consumer) {
			pool := newPool(t, b.URL, connections)
			c := b.consumer(pool, tune)
			return c.Handler("hungry", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				if err := met(ctx); err != nil {
					return nil, err
				}
				if _, err := pool.Exec(ctx, `SELECT 1`); err != nil {
					return nil, err
				}
				return charge(ctx, tx, msg)
			}), c
		},
		"sql": func(b bench, tune func(*consumer.Config), met func(context.Context) error) (message.HandlerFunc, *consumer.Consumer) {
			db, err := sql.Open("pgx", b.URL)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			db.SetMaxOpenConns(connections)
			c := newSQL(t, db, tune)
			return c.Middleware("hungry")(func(msg *message.Message) ([]*message.Message, error) {
				if err := met(msg.Context()); err != nil {
					return nil, err
				}
				if _, err := db.ExecContext(msg.Context(), `SELECT 1`); err != nil {
					return nil, err
				}
				return chargeSQL(msg)
			}), c
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			var log logged
			h, c := drive(b, func(cfg *consumer.Config) { hungry(cfg); log.to(cfg) }, meeting(connections))
			require.NoError(t, c.Check(t.Context()))
			results := make(chan settled, connections)
			for i := range connections {
				go func() { results <- deliver(t, h, event(fmt.Sprint("k", i), "a")) }()
			}
			for range connections {
				require.NoError(t, (<-results).err, "nobody's failure")
			}
			require.Contains(t, log.String(), advice)
			require.Positive(t, c.Stats().Transient)
			for i := range connections { // one after the other each has what it needs
				require.True(t, deliver(t, h, event(fmt.Sprint("k", i), "a")).acked)
			}
			require.Equal(t, connections, b.effects())
			require.Zero(t, c.Stats().Failed)
		})
	}
}
