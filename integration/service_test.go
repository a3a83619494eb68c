package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// scope is the scope of all messages.
const scope = "acme"

// wiring says where the servers of a service are. It travels to child
// processes.
type wiring struct {
	Database string // URL
	NATS     string // URL
	Prefix   string // of the stream's subjects
	Ledger   string // file that counts runs of handlers
}

// options change what a service is built from. Each may be nil.
type options struct {
	pool      func(*pgxpool.Config)
	outbox    func(*outbox.Config)
	consumer  func(*consumer.Config)
	jetstream func(*jetstream.Config)
	relay     func(*outbox.RelayConfig)
	sink      outbox.JetStreamConfig
	router    message.RouterConfig
}

// service is one process of the system: a pool, a connection to NATS, a
// Consumer, a Router with its Subscribers, a relay.
type service struct {
	wiring
	tune     options
	pool     *pgxpool.Pool
	conn     *nats.Conn
	box      *outbox.Outbox
	consumer *consumer.Consumer
	router   *message.Router
	relay    *outbox.Relay
	subs     map[string]*jetstream.Subscriber // by operation

	stopRelay func()
	stopped   error
	once      sync.Once
}

// open builds a service on the stack's servers, which is closed when the test
// ends.
func (s *stack) open(w wiring, o options) *service {
	s.Helper()
	svc, err := openService(s.Context(), w, o)
	require.NoError(s, err)
	s.Cleanup(func() { require.NoError(s, svc.close()) })
	return svc
}

// serve runs a service with one handler for events, which makes the effect
// and sends one command.
func (s *stack) serve(o options) *service {
	s.Helper()
	svc := s.open(s.wiring(), o)
	svc.handle("charge", "new", svc.effect)
	s.start(svc)
	return svc
}

func (s *stack) start(svc *service) {
	s.Helper()
	require.NoError(s, svc.start(s.Context()))
}

func openService(ctx context.Context, w wiring, o options) (*service, error) {
	s := &service{wiring: w, tune: o, subs: map[string]*jetstream.Subscriber{}, stopRelay: func() {}}
	var err error
	s.pool, err = testbed.NewPool(ctx, w.Database, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 16
		apply(o.pool, cfg)
	})
	if err != nil {
		return nil, err
	}
	if s.conn, err = testbed.ConnectNATS(w.NATS); err != nil {
		s.pool.Close()
		return nil, err
	}
	return s, errors.Join(s.openOutbox(), s.openConsumer())
}

func (s *service) openOutbox() error {
	box := outbox.Config{}
	apply(s.tune.outbox, &box)
	var err error
	if s.box, err = outbox.New(box); err != nil {
		return err
	}
	sink, err := outbox.JetStream(s.conn, s.tune.sink)
	if err != nil {
		return err
	}
	cfg := outbox.RelayConfig{
		Outbox: s.box, Sink: sink, Lease: 2 * time.Second, Poll: 50 * time.Millisecond,
		Backoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
	apply(s.tune.relay, &cfg)
	s.relay, err = outbox.NewRelay(s.pool, cfg)
	return err
}

func (s *service) openConsumer() error {
	cfg := consumer.Config{
		Scope: scope, Key: keys.Metadata("event_id"), Outbox: s.box, Concurrency: 4,
		MinDelay: 20 * time.Millisecond, MaxDelay: 200 * time.Millisecond, BusyDelay: 50 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
	apply(s.tune.consumer, &cfg)
	var err error
	if s.consumer, err = consumer.New(s.pool, cfg); err != nil {
		return err
	}
	s.router, err = message.NewRouter(s.tune.router, watermill.NopLogger{})
	return err
}

func apply[C any](tune func(*C), cfg *C) {
	if tune != nil {
		tune(cfg)
	}
}

// handle adds a handler that reads a subject through a durable with the name
// of the operation, and sends to the subject "commands".
func (s *service) handle(operation, subject string, h consumer.HandlerFunc) {
	s.add(operation, operation, subject, s.consumer.Handler(operation, h))
}

func (s *service) add(operation, durable, subject string, h message.HandlerFunc) {
	s.router.AddHandler(durable, s.subject(subject), s.consumer.Subscriber(operation, s.subscriber(operation, durable)),
		s.subject("commands"), s.consumer.Publisher(), h)
}

func (s *service) subscriber(operation, durable string) *jetstream.Subscriber {
	cfg := jetstream.Config{Durable: durable, AckWait: 5 * time.Second, InFlight: 16}
	apply(s.tune.jetstream, &cfg)
	sub, err := jetstream.New(s.conn, cfg)
	if err != nil {
		panic(fmt.Sprintf("jetstream.Config of durable %s: %v", durable, err))
	}
	s.subs[operation] = sub
	return sub
}

func (s *service) subject(name string) string { return s.Prefix + "." + name }

// start runs the Router and the relay and returns when the Router is running.
func (s *service) start(ctx context.Context) error {
	s.runRelay()
	failed := make(chan error, 1)
	go func() { failed <- s.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-s.router.Running():
		return nil
	case err := <-failed:
		return fmt.Errorf("run the Router: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *service) runRelay() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.relay.Run(ctx)
	}()
	s.stopRelay = func() {
		cancel()
		<-ended
	}
}

// close ends the service in the order in which a process should.
func (s *service) close() error {
	s.once.Do(func() {
		if s.router.IsRunning() { // Close waits for handlers that never started
			s.stopped = s.router.Close()
		}
		s.stopRelay()
		s.conn.Close()
		s.pool.Close()
	})
	return s.stopped
}

// effect is a handler: a line in the ledger, a row in effects, one command.
func (s *service) effect(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
	key, _ := consumer.KeyFrom(ctx)
	if err := s.note(key.ID); err != nil {
		return nil, err
	}
	_, err := tx.Exec(ctx, `INSERT INTO public.effects (operation, key, body) VALUES ($1, $2, coalesce($3, ''::bytea))`, key.Operation, key.ID, []byte(msg.Payload))
	if err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage("", msg.Payload)}, nil
}

// note writes a line that survives the process. Lines of several processes
// don't mix: each is one write to a file opened for appending.
func (s *service) note(key string) error {
	f, err := os.OpenFile(s.Ledger, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%q\n", key)
	return errors.Join(err, f.Close())
}

// quiet is effect without a command.
func (s *service) quiet(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
	_, err := s.effect(ctx, tx, msg)
	return nil, err
}
