package consumer_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/consumer/keys"
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

// A worker in under 40 lines: events from NATS JetStream, effects in
// PostgreSQL, commands to NATS JetStream, each once.
func Example_worker() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	defer pool.Close()
	if err := oncemill.Migrate(ctx, pool, oncemill.MigrateConfig{}); err != nil {
		panic(err)
	}
	nc := must(nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1)))
	defer nc.Close()

	box := must(outbox.New(outbox.Config{Wake: nc}))
	sink := must(outbox.JetStream(nc, outbox.JetStreamConfig{}))
	relay := must(outbox.NewRelay(pool, outbox.RelayConfig{Outbox: box, Sink: sink}))

	c := must(consumer.New(pool, consumer.Config{Scope: "acme", Key: keys.Metadata("event_id"), Outbox: box}))
	sub := must(jetstream.New(nc, jetstream.Config{Durable: "charges"}))
	router := must(message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(nil)))
	router.AddHandler("charge", "payments.requested", c.Subscriber("charge-card", sub), "payments.commands", c.Publisher(),
		c.Handler("charge-card", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.Exec(ctx, `INSERT INTO charges (body) VALUES ($1)`, []byte(msg.Payload))
			if err != nil {
				return nil, err
			}
			return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
		}))

	relaying := make(chan error)
	go func() { relaying <- relay.Run(ctx) }()
	if err := router.Run(ctx); err != nil {
		panic(err)
	}
	if err := <-relaying; err != nil {
		panic(err)
	}
}

// TestExampleWorker runs the example: an event that arrives twice has one
// effect and sends one message.
func TestExampleWorker(t *testing.T) {
	db := testbed.NewDB(t)
	s := testbed.NewStream(t, func(cfg *natsjs.StreamConfig) { cfg.Subjects = []string{"payments.>"} })
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE public.charges (body bytea)`)
	require.NoError(t, err)
	for range 2 {
		event := &nats.Msg{Subject: "payments.requested", Header: nats.Header{"event_id": {"evt-1"}}, Data: []byte(`{"amount":5}`)}
		_, err := s.JS.PublishMsg(t.Context(), event)
		require.NoError(t, err)
	}
	t.Setenv("DATABASE_URL", db.URL)
	t.Setenv("NATS_URL", s.Server.URL())
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt) // so that one which finds nobody else ends no test
	defer signal.Stop(interrupts)
	ended := make(chan struct{})
	go func() { defer close(ended); Example_worker() }()

	require.Eventually(t, func() bool { return settledUpTo(s, "charges") >= 2 && len(commands(t, s)) > 0 }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
	<-ended
	require.Equal(t, []string{`{"amount":5}`}, commands(t, s))
	b := bench{db, t}
	require.Equal(t, 1, b.count(`SELECT count(*) FROM public.charges`))
	require.Equal(t, 0, b.count(`SELECT count(*) FROM oncemill.outbox_queue`))
}

// settledUpTo is the position in the stream up to which the durable is done, 0
// before there is one.
func settledUpTo(s *testbed.Stream, durable string) uint64 {
	c, err := s.Stream.Consumer(context.Background(), durable)
	if err != nil {
		return 0
	}
	return c.CachedInfo().AckFloor.Stream
}

// commands are the payloads that the stream holds on payments.commands.
func commands(t *testing.T, s *testbed.Stream) (payloads []string) {
	t.Helper()
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		msg, err := s.Stream.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		if msg.Subject == "payments.commands" {
			payloads = append(payloads, string(msg.Data))
		}
	}
	return payloads
}
