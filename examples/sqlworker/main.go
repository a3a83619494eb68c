// Command sqlworker is a worker without a broker: watermill-sql delivers from
// PostgreSQL, handlers use database/sql, and what they return goes to a topic
// of watermill-sql. However often an event arrives, it makes one row and one
// command.
//
//	ONCEMILL_DATABASE_URL=postgres://… go run ./examples/sqlworker
//
// watermill-sql is a plain source here. Don't use its TxFromContext: a nack
// does not roll that transaction back.
package main

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/outbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("ONCEMILL_DATABASE_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL string) error {
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	logger, schema := watermill.NewSlogLogger(nil), watermillsql.DefaultPostgreSQLSchema{}
	err1 := oncemill.MigrateSQL(ctx, db, oncemill.MigrateConfig{})
	_, err2 := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS charges (event_id text NOT NULL, body bytea NOT NULL)`)
	sub, err3 := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true}, logger)
	pub, err4 := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, logger)
	box, err5 := outbox.New(outbox.Config{})
	c, err6 := consumer.NewSQL(db, consumer.Config{Scope: "acme", Key: keys.Metadata("event_id"), Outbox: box})
	sink, err7 := outbox.WatermillPublisher(pub, outbox.WatermillConfig{})
	relay, err8 := outbox.NewRelaySQL(db, outbox.RelayConfig{Outbox: box, Sink: sink})
	router, err9 := message.NewRouter(message.RouterConfig{}, logger)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8, err9); err != nil {
		return err
	}
	router.AddHandler("charge", "payments_requested", c.Subscriber("charge-card", sub),
		"payments_commands", c.Publisher(), charge).AddMiddleware(c.Middleware("charge-card"))

	relayCtx, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	relayed := make(chan error, 1)
	go func() { relayed <- relay.Run(relayCtx) }()
	err = router.Run(ctx) // until ctx ends; then the relay may stop
	stopRelay()
	return errors.Join(err, <-relayed)
}

// charge runs once for each event_id. What it returns is sent with the commit.
func charge(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	_, err := consumer.SQLTx(ctx).ExecContext(ctx, `INSERT INTO charges VALUES ($1, $2)`, msg.Metadata.Get("event_id"), []byte(msg.Payload))
	return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, err
}
