// Command relay sends what services wrote to the outbox to NATS JetStream. Any
// number of them may run beside each other; each takes its share of the lanes.
//
//	ONCEMILL_DATABASE_URL=postgres://… ONCEMILL_NATS_URL=nats://… go run ./examples/relay
//
// A service writes with outbox.Write or returns messages from a handler. With
// its NATS connection in outbox.Config.Wake relays learn of a commit at once,
// else when they next look (RelayConfig.Poll).
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/outbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("ONCEMILL_DATABASE_URL"), os.Getenv("ONCEMILL_NATS_URL")); err != nil {
		log.Fatal(err)
	}
}

// connections are two for the lanes, and one for the relay itself.
const connections = 3

// run relays until ctx ends. It survives outages of both servers, but not the
// absence of NATS at the start; Run returns what it finds wrong with the
// database's schema or rights.
func run(ctx context.Context, databaseURL, natsURL string) error {
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return err
	}
	cfg.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	// Without a reconnect buffer, which would send messages late and out of order.
	nc, err := nats.Connect(natsURL, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	sink, err := outbox.JetStream(nc, outbox.JetStreamConfig{})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sink: sink})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}
