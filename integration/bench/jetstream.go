package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	// streamInFlight is how many deliveries are in flight.
	streamInFlight = 128
	// streamRate is more than any variant handles in a second, so that the
	// stream never runs dry.
	streamRate = 30_000
)

// subscribed makes the Subscriber of a variant.
type subscribed func(env *Env, st *testbed.Stream) (message.Subscriber, error)

// streamBench compares whole services: from a full stream, by a Router, to
// the database and the acknowledgement.
func streamBench() Bench {
	b := Bench{Name: "inbox-jetstream", Task: "as inbox, end to end from a JetStream stream that is full, through a Watermill Router"}
	add := func(name string, sub subscribed, on handlerOn, against ...Baseline) {
		b.Variants = append(b.Variants, Variant{Name: name, InFlight: streamInFlight, Run: streamTask{sub, on}.run, Against: against})
	}
	const peer = "watermill-nats-pgx"
	add(peer, watermillNATS, pgxMessage)
	add("oncemill-handler", oncemillStream, oncemillHandler, Baseline{peer, 0})
	add("oncemill-queue", oncemillStream, oncemillQueue, Baseline{peer, 0})
	return b
}

// watermillNATS has a subscription for each message in flight, since one waits
// for each message's ack.
func watermillNATS(env *Env, st *testbed.Stream) (message.Subscriber, error) {
	return wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL: env.NATS.URL(), QueueGroupPrefix: "bench", SubscribersCount: streamInFlight, CloseTimeout: time.Second,
		JetStream: wmnats.JetStreamConfig{
			DurablePrefix: "bench", AckAsync: true,
			SubscribeOptions: []nats.SubOpt{nats.DeliverAll(), nats.AckExplicit(), nats.BindStream(st.Name)},
		},
	}, watermill.NopLogger{})
}

func oncemillStream(_ *Env, st *testbed.Stream) (message.Subscriber, error) {
	return jetstream.New(st.Conn, jetstream.Config{Stream: st.Name, Durable: "bench", InFlight: streamInFlight})
}

// streamTask is a run of a service.
type streamTask struct {
	sub subscribed
	on  handlerOn
}

func (t streamTask) run(ctx context.Context, env *Env) (s Sample, err error) {
	err = env.database(ctx, inboxConnections+1, func(_ string, pool *pgxpool.Pool) error {
		return env.stream(ctx, func(st *testbed.Stream) error {
			if err := makeInboxTables(ctx, pool); err != nil {
				return err
			}
			if err := fill(ctx, st, int((env.Scale.WarmUp+env.Scale.Duration).Seconds()*streamRate)); err != nil {
				return err
			}
			s, err = t.measure(ctx, env, st, pool)
			return err
		})
	})
	return s, err
}

// fill publishes n events. Both Subscribers read their headers.
func fill(ctx context.Context, st *testbed.Stream, n int) error {
	js, err := natsjs.New(st.Conn, natsjs.WithPublishAsyncMaxPending(relayInFlight))
	if err != nil {
		return err
	}
	var marshaler wmnats.NATSMarshaler
	for range n {
		msg, err := marshaler.Marshal(st.Subject("new"), newEvent())
		if err != nil {
			return err
		}
		if _, err := js.PublishMsgAsync(msg, natsjs.WithStallWait(stallWait)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t streamTask) measure(ctx context.Context, env *Env, st *testbed.Stream, pool *pgxpool.Pool) (s Sample, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h, err := t.on(ctx, pool)
	if err != nil {
		return s, err
	}
	sub, err := t.sub(env, st)
	if err != nil {
		return s, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: deliveryBound}, watermill.NopLogger{})
	if err != nil {
		return s, err
	}
	var handled atomic.Int64
	router.AddConsumerHandler("book", st.Subject("new"), sub, func(msg *message.Message) error {
		_, err := h(msg)
		if err == nil {
			handled.Add(1)
		}
		return err
	})
	if err := checkpoint(ctx, pool); err != nil {
		return s, err
	}
	ran := make(chan error, 1)
	go func() { ran <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-ran:
		return s, err
	}
	s, err = measureHandled(ctx, env.Scale, pool, &handled)
	if err = errors.Join(err, router.Close(), <-ran); err != nil {
		return s, err
	}
	return s, bookedAtLeast(context.WithoutCancel(ctx), pool, handled.Load())
}

// measureHandled counts for as long as the scale says, and on until there is
// something to count.
func measureHandled(ctx context.Context, sc scale, pool *pgxpool.Pool, handled *atomic.Int64) (Sample, error) {
	if err := sleep(ctx, sc.WarmUp); err != nil {
		return Sample{}, err
	}
	return measured(ctx, pool, func() (Sample, error) {
		start, before := time.Now(), handled.Load()
		if err := sleep(ctx, sc.Duration); err != nil {
			return Sample{}, err
		}
		err := await(ctx, deliveryBound, func() (bool, error) { return handled.Load() > before, nil })
		return Sample{Ops: int(handled.Load() - before), Elapsed: time.Since(start)}, err
	})
}

// bookedAtLeast is booked for a service that was stopped: a handler whose
// context ended at the last moment may commit without being counted.
func bookedAtLeast(ctx context.Context, pool *pgxpool.Pool, n int64) error {
	idle := func() (bool, error) { return pool.Stat().AcquiredConns() == 0, nil }
	if err := await(ctx, bookedBound, idle); err != nil {
		return err
	}
	var lines int64
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM bench.ledger`).Scan(&lines); err != nil {
		return err
	}
	return booked(ctx, pool, min(max(lines, n), n+streamInFlight))
}
