package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

const (
	// pace is 200 messages per second.
	pace = 5 * time.Millisecond
	// writers is how many transactions may be open at a time, so that a slow
	// commit does not hold up the next one.
	writers = 8
	// deliveryBound is how long the last messages may take.
	deliveryBound = 30 * time.Second
)

func latencyBench() Bench {
	return Bench{
		Name:   "latency",
		Task:   "from the end of COMMIT to a plain NATS subscriber, at 200 messages per second; oncemill-* as inbox, at 100 per second",
		Better: ByLatency,
		Variants: []Variant{
			{Name: "forwarder", Run: forwarderLatency(forwarderConfig{})},
			{Name: "forwarder-tuned", Run: forwarderLatency(tunedForwarder)},
			{Name: "oncemill", Run: oncemillLatency, Against: []Baseline{{Variant: "forwarder"}, {Variant: "forwarder-tuned"}}},
			{Name: "pgx-message", Run: handlingLatency(pgxMessage)},
			{Name: "oncemill-handler", Run: handlingLatency(oncemillHandler), Against: []Baseline{{Variant: "pgx-message"}}},
			{Name: "oncemill-grouped", Run: handlingLatency(oncemillGrouped), Against: []Baseline{{Variant: "oncemill-handler"}}},
			{Name: "oncemill-queue", Run: handlingLatency(oncemillQueue), Against: []Baseline{{Variant: "oncemill-handler"}}},
		},
	}
}

// oncemillLatency is a relay in the process that writes, woken after each
// commit.
func oncemillLatency(ctx context.Context, env *Env) (s Sample, err error) {
	err = env.database(ctx, relayConnections+writers, func(_ string, pool *pgxpool.Pool) error {
		return env.stream(ctx, func(st *testbed.Stream) error {
			box, err := outbox.New(outbox.Config{})
			if err != nil {
				return err
			}
			relay, err := newRelay(pool, st, outbox.RelayConfig{Outbox: box})
			if err != nil {
				return err
			}
			stop := background(ctx, relay.Run)
			defer stop()
			s, err = paced(ctx, env, st, pool, func(ctx context.Context, msg *message.Message, committed func()) error {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return box.Write(ctx, tx, st.Subject("new"), msg) })
				committed()
				box.Notify()
				return err
			})
			return err
		})
	})
	return s, err
}

// forwarderLatency is Watermill's forwarder, which polls.
func forwarderLatency(cfg forwarderConfig) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, env *Env) (s Sample, err error) {
		err = withForwarder(ctx, env, cfg, func(db *sql.DB, pool *pgxpool.Pool, st *testbed.Stream, start func() error) error {
			if err := start(); err != nil {
				return err
			}
			s, err = paced(ctx, env, st, pool, func(ctx context.Context, msg *message.Message, committed func()) error {
				return publishForwarded(ctx, db, st.Subject("new"), msg, committed)
			})
			return err
		})
		return s, err
	}
}

func publishForwarded(ctx context.Context, db *sql.DB, topic string, msg *message.Message, committed func()) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	pub, err := enveloped(tx)
	if err != nil {
		return err
	}
	if err := pub.Publish(topic, msg); err != nil {
		return err
	}
	err = tx.Commit()
	committed()
	return err
}

const (
	// handlingPace is 100 messages per second, of which at most handlingInFlight
	// at a time.
	handlingPace     = 10 * time.Millisecond
	handlingInFlight = 8
	// handlingRuns is how many times the duration of other runs these take: a
	// percentile wants some messages.
	handlingRuns = 3
)

// handlingLatency measures a handler that has little to do.
func handlingLatency(on handlerOn) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, env *Env) (s Sample, err error) {
		err = env.database(ctx, handlingInFlight+1, func(_ string, pool *pgxpool.Pool) error {
			if err := makeInboxTables(ctx, pool); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			h, err := on(ctx, pool)
			if err != nil {
				return err
			}
			var src source
			if _, err := trickle(ctx, env.Scale.WarmUp, h, &src); err != nil {
				return err
			}
			s, err = measured(ctx, pool, func() (Sample, error) { return trickle(ctx, handlingRuns*env.Scale.Duration, h, &src) })
			if err != nil {
				return err
			}
			return booked(ctx, pool, src.fresh.Load())
		})
		return s, err
	}
}

// trickle delivers a message per handlingPace.
func trickle(ctx context.Context, d time.Duration, h message.HandlerFunc, src *source) (s Sample, err error) {
	tick := time.NewTicker(handlingPace)
	defer tick.Stop()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(handlingInFlight)
	var mu sync.Mutex
	start := time.Now()
	for time.Since(start) < d {
		<-tick.C
		msg := src.next()
		group.Go(func() error {
			took, err := deliver(ctx, h, msg)
			mu.Lock()
			defer mu.Unlock()
			s.Latencies = append(s.Latencies, took)
			return err
		})
	}
	err = group.Wait()
	s.Ops, s.Elapsed = len(s.Latencies), time.Since(start)
	return s, err
}

// background runs fn until stop is called, which waits for it.
func background(ctx context.Context, fn func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = fn(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// write commits one message and calls committed right after COMMIT.
type write func(ctx context.Context, msg *message.Message, committed func()) error

// paced writes at the pace, first for the warm-up, and measures each message.
func paced(ctx context.Context, env *Env, st *testbed.Stream, pool *pgxpool.Pool, w write) (Sample, error) {
	warm := int(env.Scale.WarmUp / pace)
	log := newArrivals(warm + int(env.Scale.Duration/pace))
	nc, err := env.NATS.Connect()
	if err != nil {
		return Sample{}, err
	}
	defer nc.Close()
	if _, err := nc.Subscribe(st.Subject("new"), log.arrive); err != nil {
		return Sample{}, err
	}
	if err := nc.Flush(); err != nil {
		return Sample{}, err
	}
	if err := log.write(ctx, 0, warm, w); err != nil {
		return Sample{}, err
	}
	s, err := measured(ctx, pool, func() (Sample, error) {
		start := time.Now()
		if err := log.write(ctx, warm, len(log.committed), w); err != nil {
			return Sample{}, err
		}
		return Sample{Elapsed: time.Since(start)}, log.awaitAll(ctx)
	})
	s.Latencies = log.latencies(warm)
	s.Ops = len(s.Latencies)
	return s, err
}

// arrivals notes when each message was committed and when it arrived first,
// in nanoseconds from epoch. The payload holds the message's number.
type arrivals struct {
	epoch              time.Time
	committed, arrived []atomic.Int64
	missing            atomic.Int64
	all                chan struct{}
}

func newArrivals(n int) *arrivals {
	a := &arrivals{epoch: time.Now(), committed: make([]atomic.Int64, n), arrived: make([]atomic.Int64, n), all: make(chan struct{})}
	a.missing.Store(int64(n))
	return a
}

func (a *arrivals) now() int64 { return int64(time.Since(a.epoch)) }

func (a *arrivals) arrive(msg *nats.Msg) {
	now := a.now()
	if n := numberIn(msg.Data); a.arrived[n].CompareAndSwap(0, now) && a.missing.Add(-1) == 0 {
		close(a.all)
	}
}

// write writes the messages from and up to, one per pace.
func (a *arrivals) write(ctx context.Context, from, to int, w write) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, writers)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var wg sync.WaitGroup
	for n := from; n < to && ctx.Err() == nil; n++ {
		<-tick.C
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			msg := message.NewMessage(uuid.NewString(), numbered(n))
			if err := w(ctx, msg, func() { a.committed[n].Store(a.now()) }); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (a *arrivals) awaitAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deliveryBound)
	defer cancel()
	select {
	case <-a.all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d messages did not arrive: %w", a.missing.Load(), ctx.Err())
	}
}

// latencies returns those of the messages from number from on. A message that
// arrived before its writer saw the end of COMMIT took next to no time.
func (a *arrivals) latencies(from int) []time.Duration {
	var list []time.Duration
	for n := from; n < len(a.committed); n++ {
		list = append(list, time.Duration(max(a.arrived[n].Load()-a.committed[n].Load(), int64(time.Microsecond))))
	}
	return list
}

// numbered is a payload of payloadSize that holds a message's number.
func numbered(n int) []byte {
	return fmt.Appendf(nil, `{"n":%d,"note":%q}`, 100_000_000+n, strings.Repeat("x", payloadSize-len(`{"n":100000000,"note":""}`)))
}

func numberIn(payload []byte) int {
	var body struct{ N int }
	_ = json.Unmarshal(payload, &body) // it is ours
	return body.N - 100_000_000
}
