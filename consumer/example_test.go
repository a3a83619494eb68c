package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

// exampleDatabase is a migrated database with a table of charges.
func exampleDatabase(ctx context.Context) (db *testbed.DB, end func()) {
	server := must(testbed.SharedPostgres(ctx))
	db = must(server.OpenDB(ctx))
	if err := oncemill.Migrate(ctx, db.Pool, oncemill.MigrateConfig{}); err != nil {
		panic(err)
	}
	must(db.Pool.Exec(ctx, `CREATE TABLE public.charges (payment text NOT NULL, cents bigint NOT NULL)`))
	return db, func() {
		if err := db.Close(ctx); err != nil {
			panic(err)
		}
	}
}

// charged is the sum of all charges, in cents.
func charged(ctx context.Context, pool *pgxpool.Pool) (cents int64) {
	if err := pool.QueryRow(ctx, `SELECT coalesce(sum(cents), 0)::bigint FROM public.charges`).Scan(&cents); err != nil {
		panic(err)
	}
	return cents
}

// requested is a payment that somebody asked for.
func requested(id string) *message.Message {
	msg := message.NewMessage("", []byte(`{"cents":500}`))
	msg.Metadata.Set("payment_id", id)
	return msg
}

// Messages that wait at the same time share a transaction. Two deliveries of
// one payment have one effect, in one group or in two.
func ExampleConsumer_QueueHandler() {
	ctx := context.Background()
	db, end := exampleDatabase(ctx)
	defer end()

	c := must(consumer.New(db.Pool, consumer.Config{Scope: "acme", Key: keys.Metadata("payment_id")}))
	handler := c.QueueHandler("charge-card", func(_ context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
		q.Queue(`INSERT INTO public.charges VALUES ($1, 500)`, msg.Metadata.Get("payment_id")).Affects(1)
		return nil, nil
	})
	var all sync.WaitGroup
	for _, id := range []string{"p1", "p2", "p1", "p3", "p3", "p3"} {
		all.Go(func() { // as the Router does
			must(handler(requested(id)))
		})
	}
	all.Wait()
	fmt.Println(charged(ctx, db.Pool))
	// Output: 1500
}

// The messages of a group are handled with one statement.
func ExampleConsumer_SetHandler() {
	ctx := context.Background()
	db, end := exampleDatabase(ctx)
	defer end()

	c := must(consumer.New(db.Pool, consumer.Config{Scope: "acme", Key: keys.Metadata("payment_id")}))
	handler := c.SetHandler("charge-card", func(_ context.Context, tx consumer.Tx, msgs []*message.Message) ([][]*message.Message, error) {
		var payments []string
		for _, msg := range msgs {
			payments = append(payments, msg.Metadata.Get("payment_id"))
		}
		tx.Queue(`INSERT INTO public.charges SELECT id, 500 FROM unnest($1::text[]) id`, payments)
		return nil, nil
	})
	var all sync.WaitGroup
	for _, id := range []string{"p1", "p2", "p3"} {
		all.Go(func() { must(handler(requested(id))) })
	}
	all.Wait()
	fmt.Println(charged(ctx, db.Pool))
	// Output: 1500
}

// A message that is delivered twice is charged once.
func ExampleConsumer_Handler() {
	ctx := context.Background()
	db, end := exampleDatabase(ctx)
	defer end()

	c := must(consumer.New(db.Pool, consumer.Config{Scope: "acme", Key: keys.Metadata("payment_id")}))
	handler := c.Handler("charge-card", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		_, err := tx.Exec(ctx, `INSERT INTO public.charges VALUES ($1, 500)`, msg.Metadata.Get("payment_id"))
		return nil, err
	})
	// A Router calls it; here we do.
	for range 2 {
		_, err := handler(requested("p-1"))
		fmt.Println("error:", err)
	}
	fmt.Println("charged:", charged(ctx, db.Pool))
	fmt.Println("done:", c.Stats().Done, "duplicates:", c.Stats().Duplicates)
	// Output:
	// error: <nil>
	// error: <nil>
	// charged: 500
	// done: 1 duplicates: 1
}

// A handler that exists already gets its transaction from the context.
func ExampleConsumer_Middleware() {
	ctx := context.Background()
	db, end := exampleDatabase(ctx)
	defer end()

	charge := func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		_, err := consumer.TxFrom(ctx).Exec(ctx, `INSERT INTO public.charges VALUES ($1, 500)`, msg.Metadata.Get("payment_id"))
		return nil, err
	}
	c := must(consumer.New(db.Pool, consumer.Config{Scope: "acme", Key: keys.Metadata("payment_id")}))
	// With a Router: router.AddHandler(…, charge).AddMiddleware(c.Middleware("charge-card"))
	handler := c.Middleware("charge-card")(charge)
	for range 2 {
		must(handler(requested("p-1")))
	}
	fmt.Println("charged:", charged(ctx, db.Pool))
	// Output: charged: 500
}

// With database/sql, as sqlc, gorm and ent use it.
func ExampleNewSQL() {
	ctx := context.Background()
	pgxDB, end := exampleDatabase(ctx)
	defer end()
	db := must(sql.Open("pgx", pgxDB.URL))
	defer db.Close()

	c := must(consumer.NewSQL(db, consumer.Config{Scope: "acme", Key: keys.Metadata("payment_id")}))
	handler := c.Middleware("charge-card")(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		_, err := consumer.SQLTx(ctx).ExecContext(ctx, `INSERT INTO public.charges VALUES ($1, 500)`, msg.Metadata.Get("payment_id"))
		return nil, err
	})
	for range 2 {
		must(handler(requested("p-1")))
	}
	fmt.Println("charged:", charged(ctx, pgxDB.Pool))
	// Output: charged: 500
}

// What is published inside a handler leaves when its transaction commits, and
// never if it does not.
func ExampleConsumer_Publisher() {
	ctx := context.Background()
	db, end := exampleDatabase(ctx)
	defer end()

	c := must(consumer.New(db.Pool, consumer.Config{Scope: "acme", Key: keys.Metadata("payment_id")}))
	publisher := c.Publisher() // for a cqrs bus, for example
	handler := c.Handler("charge-card", func(ctx context.Context, _ consumer.Tx, _ *message.Message) ([]*message.Message, error) {
		receipt := message.NewMessage("", []byte("paid"))
		receipt.SetContext(ctx)
		return nil, publisher.Publish("receipts", receipt)
	})
	for range 2 {
		must(handler(requested("p-1")))
	}
	var waiting int
	must(0, db.Pool.QueryRow(ctx, `SELECT count(*) FROM oncemill.outbox_queue`).Scan(&waiting))
	fmt.Println("waiting for a relay:", waiting)
	fmt.Println(publisher.Publish("receipts", requested("p-2")) != nil, "without a transaction it refuses")
	// Output:
	// waiting for a relay: 1
	// true without a transaction it refuses
}

// A permanent error keeps the message as a dead letter; it is acked, and held
// in the database.
func ExampleHandlerFunc_permanent() {
	ctx := context.Background()
	db, end := exampleDatabase(ctx)
	defer end()

	c := must(consumer.New(db.Pool, consumer.Config{
		Scope: "acme", Key: keys.Metadata("payment_id"), Logger: slog.New(slog.DiscardHandler),
	}))
	handler := c.Handler("charge-card", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
		return nil, dedup.Permanent(errors.New("no such card"))
	})
	_, err := handler(requested("p-1"))
	fmt.Println("error:", err)
	fmt.Println("dead:", c.Stats().Dead)
	// Output:
	// error: <nil>
	// dead: 1
}

// Queued statements travel with the next one that is not queued, or with the
// commit: no round trip of their own.
func ExampleTx_queue() {
	ctx := context.Background()
	db, end := exampleDatabase(ctx)
	defer end()

	c := must(consumer.New(db.Pool, consumer.Config{Scope: "acme", Key: keys.Metadata("payment_id")}))
	handler := c.Handler("charge-card", func(_ context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		tx.Queue(`INSERT INTO public.charges VALUES ($1, 500)`, msg.Metadata.Get("payment_id"))
		tx.Queue(`INSERT INTO public.charges VALUES ($1, 20)`, msg.Metadata.Get("payment_id"))
		return nil, nil
	})
	must(handler(requested("p-1")))
	fmt.Println("charged:", charged(ctx, db.Pool))
	// Output: charged: 520
}
