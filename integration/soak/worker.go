package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

const (
	// workerRole is the role of a worker process.
	workerRole = "soak-worker"
	// readyLine is what a worker prints when it consumes.
	readyLine = "ready\n"
	// connections of a worker's pool, and those of its database/sql pool.
	connections, sqlConnections = 20, 5
	// inFlight lets groups have members.
	inFlight = 32
	// ackWait is how long the messages of a killed worker stay away, lease how
	// long its lanes stand still.
	ackWait, lease = 3 * time.Second, time.Second
	// poll is how long a command waits that another worker wrote.
	poll = 200 * time.Millisecond
	// closeTimeout bounds the orderly end.
	closeTimeout = 5 * time.Second
	// restartPause is between two tries to start while a server is away.
	restartPause = 100 * time.Millisecond
)

// workerConfig is what a worker is started with, as JSON.
type workerConfig struct {
	Database, NATS   string // URLs
	Stream           string
	Events, Commands string // subjects
}

// runWorker is the main function of a worker. It runs until SIGTERM, and starts
// again while a server is away.
func runWorker() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // failures are what it is here for
	var cfg workerConfig
	if err := json.Unmarshal([]byte(testbed.Args()[0]), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, "soak: a worker's configuration:", err)
		os.Exit(1)
	}
	for ctx.Err() == nil {
		if err := work(ctx, cfg); err != nil {
			fmt.Fprintln(os.Stderr, "starts again:", err)
		}
		pause(ctx, restartPause)
	}
}

// work is one life of the service.
func work(ctx context.Context, cfg workerConfig) error {
	pool, err := testbed.NewPool(ctx, cfg.Database, func(c *pgxpool.Config) { c.MaxConns = connections })
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := sql.Open("pgx", cfg.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(sqlConnections)
	nc, err := testbed.ConnectNATS(cfg.NATS)
	if err != nil {
		return err
	}
	defer nc.Close()
	box, err := outbox.New(outbox.Config{})
	if err != nil {
		return err
	}
	router, err := newRouter(cfg, nc, parts{pool, db, box})
	if err != nil {
		return err
	}
	sink, err := outbox.JetStream(nc, outbox.JetStreamConfig{AckTimeout: lease})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Outbox: box, Sink: sink, Lease: lease, Poll: poll})
	if err != nil {
		return err
	}
	return serve(ctx, router, relay)
}

// newRouter has a handler of each form.
func newRouter(cfg workerConfig, nc *nats.Conn, p parts) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: closeTimeout}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	for _, f := range forms {
		c, h, err := f.handler(p)
		if err != nil {
			return nil, err
		}
		sub, err := jetstream.New(nc, jetstream.Config{Stream: cfg.Stream, Durable: f.name, AckWait: ackWait, InFlight: inFlight})
		if err != nil {
			return nil, err
		}
		router.AddHandler(f.name, cfg.Events, c.Subscriber(f.name, sub), cfg.Commands, c.Publisher(), h)
	}
	return router, nil
}

// serve runs both until ctx ends or one of them does, the relay longest.
func serve(ctx context.Context, router *message.Router, relay *outbox.Relay) error {
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
		fmt.Print(readyLine)
	}()
	err := router.Run(ctx)
	stopRelay()
	relaying.Wait()
	return errors.Join(err, relayErr)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
