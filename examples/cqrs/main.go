// Command cqrs makes one row and one SendReceipt of each ChargeCard, however
// often it arrives. Its key is in the command, since Watermill's cqrs component
// mints another message UUID whenever it sends. Run examples/relay beside it.
//
//	nats stream add COMMANDS --subjects charges,receipts --defaults
//	ONCEMILL_DATABASE_URL=postgres://… ONCEMILL_NATS_URL=nats://… go run ./examples/cqrs
//	nats pub charges -H name:ChargeCard '{"PaymentID":"p-1"}'
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/outbox"
)

type ChargeCard struct{ PaymentID string }
type SendReceipt struct{ PaymentID string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
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
	nc, err := nats.Connect(natsURL, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	err1 := oncemill.Migrate(ctx, pool, oncemill.MigrateConfig{})
	_, err2 := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS charges (payment_id text NOT NULL)`)
	sub, err3 := jetstream.New(nc, jetstream.Config{Durable: "cqrs"})
	box, err4 := outbox.New(outbox.Config{Wake: nc}) // the relay is another process
	c, err5 := consumer.New(pool, consumer.Config{Scope: "acme", Key: keys.JSONPointer("/PaymentID"), Outbox: box})
	router, err6 := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(nil))
	bus, err7 := cqrs.NewCommandBusWithConfig(c.Publisher(), cqrs.CommandBusConfig{
		Marshaler:            cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "receipts", nil }})
	processor, err8 := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		Marshaler:              cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "charges", nil },
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return c.Subscriber("charge-card", sub), nil
		}})
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8); err != nil {
		return err
	}
	handler, err := processor.AddHandler(cqrs.NewCommandHandler("charge", func(ctx context.Context, cmd *ChargeCard) error {
		_, err := consumer.TxFrom(ctx).Exec(ctx, `INSERT INTO charges VALUES ($1)`, cmd.PaymentID)
		return errors.Join(err, bus.Send(ctx, &SendReceipt{cmd.PaymentID})) // it leaves when the transaction commits
	}))
	if err != nil {
		return err
	}
	handler.AddMiddleware(c.Middleware("charge-card"))
	return router.Run(ctx)
}
