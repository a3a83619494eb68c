package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/watermillsql"
)

// sqlService is a service on database/sql: a Consumer with Middleware and
// SQLTx, and a relay.
type sqlService struct {
	*stack
	db       *sql.DB
	box      *outbox.Outbox
	consumer *consumer.Consumer
	router   *message.Router
	fail     atomic.Int64 // so many runs of the handler fail after their effect
}

func (s *stack) openSQL(url string, tune func(*consumer.Config)) *sqlService {
	s.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(s, err)
	db.SetMaxOpenConns(16)
	s.Cleanup(func() { require.NoError(s, db.Close()) })
	box, err := outbox.New(outbox.Config{})
	require.NoError(s, err)
	cfg := consumer.Config{
		Scope: scope, Key: keys.Metadata("event_id"), Outbox: box, Concurrency: 4,
		MinDelay: 20 * time.Millisecond, MaxDelay: 200 * time.Millisecond, NackWait: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
	apply(tune, &cfg)
	c, err := consumer.NewSQL(db, cfg)
	require.NoError(s, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(s, err)
	svc := &sqlService{stack: s, db: db, box: box, consumer: c, router: router}
	svc.runRelay()
	return svc
}

func (s *sqlService) runRelay() {
	s.Helper()
	sink, err := outbox.JetStream(s.stream.Conn, outbox.JetStreamConfig{})
	require.NoError(s, err)
	relay, err := outbox.NewRelaySQL(s.db, outbox.RelayConfig{
		Outbox: s.box, Sink: sink, Lease: 2 * time.Second, Poll: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = relay.Run(ctx) }()
	s.Cleanup(func() { cancel(); <-ended })
}

// handle adds an existing handler, which takes its transaction from the
// message's context.
func (s *sqlService) handle(operation, topic string, sub message.Subscriber) {
	s.router.AddHandler(operation, topic, s.consumer.Subscriber(operation, sub), s.stream.Subject("commands"), s.consumer.Publisher(), s.effect).
		AddMiddleware(s.consumer.Middleware(operation))
}

func (s *sqlService) start() {
	s.Helper()
	ended := make(chan error, 1)
	go func() { ended <- s.router.Run(context.Background()) }()
	s.Cleanup(func() { require.NoError(s, s.router.Close()) })
	select {
	case <-s.router.Running():
	case err := <-ended:
		require.FailNow(s, "the Router did not start", err)
	}
}

func (s *sqlService) effect(msg *message.Message) ([]*message.Message, error) {
	tx := consumer.SQLTx(msg.Context())
	key, _ := consumer.KeyFrom(msg.Context())
	_, err := tx.ExecContext(msg.Context(), `INSERT INTO public.effects (operation, key, body) VALUES ($1, $2, $3)`, key.Operation, key.ID, []byte(msg.Payload))
	if err != nil {
		return nil, err
	}
	if s.fail.Add(-1) >= 0 {
		return nil, errors.New("failed after the effect")
	}
	return []*message.Message{message.NewMessage("", msg.Payload)}, nil
}

// TestSQL_FromJetStream is the whole path on database/sql.
func TestSQL_FromJetStream(t *testing.T) {
	t.Parallel()
	const events = 20
	s := newStack(t)
	svc := s.openSQL(s.db.URL, nil)
	source := s.open(s.wiring(), options{}) // for its connection
	svc.fail.Store(3)
	svc.handle("charge", s.stream.Subject("new"), source.subscriber("charge", "charge"))
	svc.start()
	s.publishEvents(events)
	s.publishEvents(events)
	s.publish("new", "other", "event_id", "k0")
	s.settled("charge")
	s.requireCommands(events)
	require.Equal(t, events, s.effects())
	require.Equal(t, []string{"conflict"}, s.reasons())
	requireOutcomes(t, consumer.Stats{Done: events, Duplicates: events, Dead: 1, Failed: 3}, svc.consumer.Stats())
}

// TestSQL_FromWatermillSQL reads from watermill-sql's own tables, in a
// transaction of ours: a handler that fails leaves nothing behind, which
// watermill-sql's TxFromContext does not give.
func TestSQL_FromWatermillSQL(t *testing.T) {
	t.Parallel()
	const events = 10
	s := newStack(t)
	svc := s.openSQL(s.db.URL, nil)
	sub, err := wsql.NewSubscriber(svc.db, wsql.SubscriberConfig{
		ConsumerGroup: "charge", PollInterval: 10 * time.Millisecond, ResendInterval: 10 * time.Millisecond,
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	pub, err := wsql.NewPublisher(svc.db, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true}, watermill.NopLogger{})
	require.NoError(t, err)
	svc.fail.Store(3)
	svc.handle("charge", "orders", sub)
	svc.start()
	for range 2 {
		for i := range events {
			msg := message.NewMessage(watermill.NewUUID(), []byte(`{"n": 1}`))
			msg.Metadata.Set("event_id", fmt.Sprintf("k%d", i))
			require.NoError(t, pub.Publish("orders", msg))
		}
	}
	s.eventually("all are consumed", func() bool { return svc.consumer.Stats().Duplicates == events })
	s.requireCommands(events)
	require.Equal(t, events, s.effects(), "attempts that failed left nothing")
	requireOutcomes(t, consumer.Stats{Done: events, Duplicates: events, Failed: 3}, svc.consumer.Stats())
}

// TestSQL_WatermillSQLPublisherWritesToTheOutbox: a service that publishes with
// watermill-sql's Publisher in its own transactions switches by its
// SchemaAdapter, and its messages end in a consumer once.
func TestSQL_WatermillSQLPublisherWritesToTheOutbox(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	svc := s.openSQL(s.db.URL, func(cfg *consumer.Config) { cfg.Key = keys.LogicalID() })
	source := s.open(s.wiring(), options{})
	svc.handle("charge", s.stream.Subject("new"), source.subscriber("charge", "charge"))
	svc.start()
	for i := range 20 {
		tx, err := svc.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		pub, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: watermillsql.NewSchemaAdapter(svc.box)}, watermill.NopLogger{})
		require.NoError(t, err)
		require.NoError(t, pub.Publish(s.stream.Subject("new"), message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "%d", i))))
		if i%2 == 0 {
			require.NoError(t, tx.Rollback())
			continue
		}
		require.NoError(t, tx.Commit())
	}
	s.eventually("what was committed arrives", func() bool { return svc.consumer.Stats().Done == 10 })
	s.settled("charge")
	s.requireCommands(10)
	require.Equal(t, 10, s.effects())
}
