package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// must returns v, or panics.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// exampleServers are a migrated database, and a stream that takes payments.>.
func exampleServers(ctx context.Context) (db *testbed.DB, stream *testbed.Stream, end func()) {
	db = must(must(testbed.SharedPostgres(ctx)).OpenDB(ctx))
	stream = must(must(testbed.SharedNATS(ctx)).OpenStream(ctx, func(cfg *jetstream.StreamConfig) {
		cfg.Subjects = []string{"payments.>"}
	}))
	must(0, oncemill.Migrate(ctx, db.Pool, oncemill.MigrateConfig{}))
	return db, stream, func() { must(0, errors.Join(db.Close(ctx), stream.Close(ctx))) }
}

// printStream prints what the stream holds, in order.
func printStream(ctx context.Context, stream *testbed.Stream) {
	info := must(stream.Stream.Info(ctx))
	fmt.Println("messages:", info.State.Msgs)
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		msg := must(stream.Stream.GetMsg(ctx, seq))
		fmt.Println(msg.Subject, string(msg.Data))
	}
}

// A message is written with the effect, in the caller's transaction, and sent
// by a relay after the commit. One whose transaction rolls back is never sent.
func ExampleOutbox_Write() {
	ctx := context.Background()
	db, stream, end := exampleServers(ctx)
	defer end()

	box := must(outbox.New(outbox.Config{}))
	write := func(payload string, result error) error {
		return pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			msg := message.NewMessage("", []byte(payload))
			if err := box.Write(ctx, tx, "payments.commands", msg); err != nil {
				return err
			}
			return result
		})
	}
	fmt.Println(write("charge p-1", nil))
	fmt.Println(write("charge p-2", errors.New("no such card")))

	sink := must(outbox.JetStream(stream.Conn, outbox.JetStreamConfig{}))
	relay := must(outbox.NewRelay(db.Pool, outbox.RelayConfig{Outbox: box, Sink: sink}))
	must(0, relay.RunOnce(ctx))
	printStream(ctx, stream)
	// Output:
	// <nil>
	// no such card
	// messages: 1
	// payments.commands charge p-1
}

// A service runs its relay beside its handlers, and wakes it after commits of
// its own.
func ExampleRelay_Run() {
	ctx, stop := context.WithCancel(context.Background())
	db, stream, end := exampleServers(context.Background())
	defer end()

	box := must(outbox.New(outbox.Config{}))
	sink := must(outbox.JetStream(stream.Conn, outbox.JetStreamConfig{}))
	relay := must(outbox.NewRelay(db.Pool, outbox.RelayConfig{Outbox: box, Sink: sink}))
	ended := make(chan error)
	go func() { ended <- relay.Run(ctx) }()

	arrived := must(stream.Conn.SubscribeSync("payments.commands"))
	must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		return box.Write(ctx, tx, "payments.commands", message.NewMessage("", []byte("charge p-1")))
	}))
	box.Notify()
	fmt.Println(string(must(arrived.NextMsgWithContext(ctx)).Data))

	stop() // and wait, so that what was sent is recorded
	fmt.Println(<-ended)
	// Output:
	// charge p-1
	// <nil>
}

// Messages of one ordering key reach the stream in the order of their
// transactions, with any number of relays.
func ExampleSetOrderingKey() {
	ctx := context.Background()
	db, stream, end := exampleServers(ctx)
	defer end()

	box := must(outbox.New(outbox.Config{}))
	for _, payload := range []string{"open", "deposit", "close"} {
		msg := message.NewMessage("", []byte(payload))
		outbox.SetOrderingKey(msg, "account-7")
		must(0, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return box.Write(ctx, tx, "payments.accounts", msg) }))
	}
	sink := must(outbox.JetStream(stream.Conn, outbox.JetStreamConfig{}))
	relay := must(outbox.NewRelay(db.Pool, outbox.RelayConfig{Outbox: box, Sink: sink}))
	must(0, relay.RunOnce(ctx))
	printStream(ctx, stream)
	// Output:
	// messages: 3
	// payments.accounts open
	// payments.accounts deposit
	// payments.accounts close
}
