package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

const (
	// concurrency is how many payments one worker applies at the same time.
	concurrency = 4
	// inFlight keeps every handler busy. What a killed worker held comes back
	// after ackWait only, so it is not more than that needs.
	inFlight = 2 * concurrency
	// lease is how long the outbox lanes of a killed worker stand still.
	lease = 2 * time.Second
	// poll is how long a command waits that another worker has to relay; its own
	// a relay sends at once. With outbox.Config.Wake none waits; at this rate
	// that only costs.
	poll = 200 * time.Millisecond
	// closeTimeout is how long a service that stops waits for its handlers.
	closeTimeout = 5 * time.Second
	// longestDelay bounds the way back of a message that met an outage: those
	// of the demo are over soon.
	longestDelay = 2 * time.Second
)

// serve applies payments and relays commands until ctx ends: a service with
// oncemill.
func serve(ctx context.Context, cfg workerConfig, pool *pgxpool.Pool, nc *nats.Conn) error {
	box, err := outbox.New(outbox.Config{})
	if err != nil {
		return err
	}
	router, err := newRouter(cfg, pool, nc, box)
	if err != nil {
		return err
	}
	relay, err := newRelay(pool, nc, box)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	relayCtx, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	var relaying sync.WaitGroup
	var relayErr error
	relaying.Go(func() {
		relayErr = relay.Run(relayCtx)
		stop()
	})
	go func() {
		<-router.Running()
		fmt.Println(readyLine)
	}()
	err = router.Run(ctx)
	stopRelay()
	relaying.Wait()
	return errors.Join(err, relayErr)
}

// newRouter wires the handler.
func newRouter(cfg workerConfig, pool *pgxpool.Pool, nc *nats.Conn, box *outbox.Outbox) (*message.Router, error) {
	providerKeys, err := dedup.NewProviderKeys([]byte("the secret of a demo"), "demo")
	if err != nil {
		return nil, err
	}
	c, err := consumer.New(pool, consumer.Config{
		Scope:        "demo",
		Key:          keys.JSONPointer("/id"),
		Outbox:       box,
		ProviderKeys: providerKeys,
		Concurrency:  concurrency,
		MaxDelay:     longestDelay,
		LaneKey:      account,
	})
	if err != nil {
		return nil, err
	}
	log := watermill.NewSlogLogger(slog.Default())
	sub, err := jetstream.New(nc, jetstream.Config{
		Stream: cfg.Stream, Durable: cfg.Durable, AckWait: ackWait, InFlight: inFlight, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: closeTimeout}, log)
	if err != nil {
		return nil, err
	}
	router.AddHandler("charge",
		cfg.Requested, c.Subscriber("charge-account", sub),
		cfg.Commands, c.Publisher(),
		chargeHandler(c, cfg.Group))
	return router, nil
}

// chargeHandler applies each payment in a transaction of its own, or those that
// wait in one.
func chargeHandler(c *consumer.Consumer, group bool) message.HandlerFunc {
	if group {
		return c.QueueHandler("charge-account", charge)
	}
	return c.Handler("charge-account", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		return charge(ctx, tx, msg)
	})
}

// newRelay makes the relay of what the handlers of all workers send.
func newRelay(pool *pgxpool.Pool, nc *nats.Conn, box *outbox.Outbox) (*outbox.Relay, error) {
	sink, err := outbox.JetStream(nc, outbox.JetStreamConfig{AckTimeout: lease})
	if err != nil {
		return nil, err
	}
	return outbox.NewRelay(pool, outbox.RelayConfig{Outbox: box, Sink: sink, Lease: lease, Poll: poll})
}
