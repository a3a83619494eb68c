// Command worker charges cards. However often an event arrives on
// payments.requested, it writes one row and sends one command to
// payments.commands. It needs a stream that covers payments.>:
//
//	nats stream add PAYMENTS --subjects 'payments.>' --defaults
//	ONCEMILL_DATABASE_URL=postgres://… ONCEMILL_NATS_URL=nats://… go run ./examples/worker
//	nats pub payments.requested -H event_id:evt-1 '{"amount":5}'
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/outbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("ONCEMILL_DATABASE_URL"), os.Getenv("ONCEMILL_NATS_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL, natsURL string) error {
	pool, err := pgxpool.New(ctx, databaseURL)
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
	err1 := oncemill.Migrate(ctx, pool, oncemill.MigrateConfig{})
	_, err2 := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS charges (event_id text NOT NULL, body bytea NOT NULL)`)
	box, err3 := outbox.New(outbox.Config{Wake: nc})
	sink, err4 := outbox.JetStream(nc, outbox.JetStreamConfig{})
	relay, err5 := outbox.NewRelay(pool, outbox.RelayConfig{Outbox: box, Sink: sink})
	sub, err6 := jetstream.New(nc, jetstream.Config{Durable: "worker"})
	c, err7 := consumer.New(pool, consumer.Config{Scope: "acme", Key: keys.Metadata("event_id"), Outbox: box})
	router, err8 := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(nil))
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8); err != nil {
		return err
	}
	router.AddHandler("charge", "payments.requested", c.Subscriber("charge-card", sub),
		"payments.commands", c.Publisher(), c.Handler("charge-card", charge))

	relayCtx, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	relayed := make(chan error, 1)
	go func() { relayed <- relay.Run(relayCtx) }()
	err = router.Run(ctx) // until ctx ends; then the relay may stop
	stopRelay()
	return errors.Join(err, <-relayed)
}

// charge runs once for each event_id. What it returns is sent when tx commits.
func charge(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
	_, err := tx.Exec(ctx, `INSERT INTO charges VALUES ($1, $2)`, msg.Metadata.Get("event_id"), []byte(msg.Payload))
	return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, err
}
