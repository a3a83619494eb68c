package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// ErrClosed is returned by Subscribe after Close.
var ErrClosed = errors.New("jetstream: subscriber is closed")

// Subscriber reads durable pull consumers of NATS JetStream; see the package
// documentation. It implements [message.Subscriber] and
// [message.SubscribeInitializer], and is safe for concurrent use.
type Subscriber struct {
	nc    *nats.Conn
	js    natsjs.JetStream
	cfg   Config
	count counters

	stop    context.Context // ends when Close begins
	stopNow context.CancelFunc
	drop    context.Context // ends when Close no longer waits
	dropNow context.CancelFunc

	running sync.WaitGroup // one per subscription
	close   sync.Once
	closed  error

	mu     sync.Mutex
	topics map[string]string // by durable
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// New returns a Subscriber on nc, which stays the caller's: Close does not
// close it. New does no I/O and starts no goroutine. It reports a setting of
// cfg that cannot be.
func New(nc *nats.Conn, cfg Config) (*Subscriber, error) {
	if nc == nil {
		return nil, errors.New("jetstream: nc: is missing")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("jetstream: Config.%w", err)
	}
	js, err := natsjs.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	s := &Subscriber{nc: nc, js: js, cfg: cfg, topics: map[string]string{}}
	s.stop, s.stopNow = context.WithCancel(context.Background())
	s.drop, s.dropNow = context.WithCancel(context.Background())
	return s, nil
}

// SubscribeInitialize creates or checks the durable of topic, without reading
// from it.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if err := s.claim(topic); err != nil {
		return err
	}
	_, err := s.bind(s.stop, topic)
	return s.subscribeError(topic, err)
}

// Subscribe creates or checks the durable of topic, a subject that may hold
// wildcards, and starts reading. Any number of subscriptions, here and in other
// processes, share the messages of one durable.
//
// The channel is closed when ctx ends or Close is called; until then faults are
// logged and got over. A message's context has the values of ctx and a
// [consumer.Delivery]. It does not end with ctx: it ends when the message is
// acked or nacked, or when Close no longer waits for it.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.claim(topic); err != nil {
		return nil, err
	}
	bindCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stop, cancel)()
	d, err := s.bind(bindCtx, topic)
	if err != nil {
		return nil, s.subscribeError(topic, err)
	}
	return s.start(ctx, topic, d)
}

func (s *Subscriber) subscribeError(topic string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("jetstream: subscribing to %q: %w", topic, err)
}

// claim reserves topic's durable for topic.
func (s *Subscriber) claim(topic string) error {
	if s.stop.Err() != nil {
		return ErrClosed
	}
	name := s.cfg.durableFor(topic)
	if topic == "" || !validDurable(name) {
		return fmt.Errorf("jetstream: topic %q: is empty or makes no consumer name", topic)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, taken := s.topics[name]; taken && other != topic {
		return fmt.Errorf("jetstream: topic %q: its durable %q already serves topic %q; put {topic} into Config.Durable, or use a Subscriber for each", topic, name, other)
	}
	s.topics[name] = topic
	return nil
}

func (s *Subscriber) start(ctx context.Context, topic string, d *durable) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop.Err() != nil {
		return nil, ErrClosed
	}
	sub := newSubscription(ctx, s, topic, d)
	s.running.Go(sub.run)
	return sub.out, nil
}

// Close stops fetching, closes all output channels and waits for the messages
// in flight, at most for [Config.CloseTimeout]. Messages that are not settled
// then are delivered again; Close returns an error that counts them. Further
// calls wait for the first and return the same. Close it before the connection,
// or acks are lost.
func (s *Subscriber) Close() error {
	s.close.Do(func() {
		s.mu.Lock() // no subscription starts from here on
		s.stopNow()
		s.mu.Unlock()
		bound := time.AfterFunc(s.cfg.CloseTimeout, s.dropNow)
		s.running.Wait()
		bound.Stop()
		s.dropNow()
		s.closed = s.leave()
	})
	return s.closed
}

// leave sends what is buffered and reports what was left behind.
func (s *Subscriber) leave() error {
	var errs []error
	if n := s.count.inFlight.Load(); n > 0 {
		errs = append(errs, fmt.Errorf("jetstream: close: %d messages were not settled within %s and will be delivered again", n, s.cfg.CloseTimeout))
	}
	if s.nc.IsConnected() {
		if err := s.nc.FlushTimeout(flushTimeout); err != nil {
			errs = append(errs, fmt.Errorf("jetstream: close: sending the last acks: %w", err))
		}
	}
	return errors.Join(errs...)
}

// flushTimeout bounds the last round trip of Close.
const flushTimeout = 5 * time.Second

func (s *Subscriber) logFields(topic string, d *durable) watermill.LogFields {
	return watermill.LogFields{"topic": topic, "stream": d.stream, "durable": d.name}
}
