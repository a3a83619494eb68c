package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/outbox"
)

// Consumer turns each delivery of a message into one transaction. Make one for
// each Config with [New] or [NewSQL] and use it for all handlers of the
// service. Safe for concurrent use.
type Consumer struct {
	cfg    Config
	store  store
	inbox  *dedup.Inbox
	outbox *outbox.Outbox
	slots  chan struct{}
	counts counters

	repeats repeats

	ready    atomic.Bool
	checking sync.Mutex

	mu         sync.Mutex
	operations map[string]bool
}

// New returns a Consumer on a pgx pool. It validates cfg and does no I/O.
func New(pool *pgxpool.Pool, cfg Config) (*Consumer, error) {
	cfg, err := cfg.withDefaults(int(pool.Config().MaxConns))
	if err != nil {
		return nil, err
	}
	c, name, err := newConsumer(cfg)
	if err != nil {
		return nil, err
	}
	c.store = &pgxStore{pool, c.inbox, c.outbox, name, cfg.AcquireTimeout}
	return c, nil
}

// NewSQL returns a Consumer on database/sql over pgx/stdlib. Handlers get
// their transaction from [SQLTx]. Each statement is a round trip of its own,
// where New needs two in all.
func NewSQL(db *sql.DB, cfg Config) (*Consumer, error) {
	cfg, err := cfg.withDefaults(db.Stats().MaxOpenConnections)
	if err != nil {
		return nil, err
	}
	if cfg.Group {
		return nil, errors.New("consumer.Config.Group: groups need a Consumer made by New; use it, or leave Group out")
	}
	c, name, err := newConsumer(cfg)
	if err != nil {
		return nil, err
	}
	c.store = &sqlStore{db, c.inbox, c.outbox, name, cfg.AcquireTimeout}
	return c, nil
}

func newConsumer(cfg Config) (*Consumer, schema.Name, error) {
	name, err := schema.ParseName(cfg.Inbox.Schema)
	if err != nil {
		return nil, name, fmt.Errorf("consumer.Config.Inbox.%w", err)
	}
	inbox, err := dedup.NewInbox(cfg.Inbox)
	if err != nil {
		return nil, name, fmt.Errorf("consumer.Config.Inbox: %w", err)
	}
	box := cfg.Outbox
	if box == nil {
		if box, err = outbox.New(outbox.Config{Schema: cfg.Inbox.Schema}); err != nil {
			return nil, name, fmt.Errorf("consumer.Config.Inbox: %w", err)
		}
	}
	if box.Schema() != name.String() {
		return nil, name, fmt.Errorf("consumer.Config.Outbox: its schema is %q and that of Config.Inbox is %q, but one transaction writes both and one check covers both; give outbox.Config.Schema and Config.Inbox.Schema one name", box.Schema(), name)
	}
	return &Consumer{
		cfg:        cfg,
		inbox:      inbox,
		outbox:     box,
		slots:      make(chan struct{}, cfg.Concurrency),
		operations: make(map[string]bool),
	}, name, nil
}

// HandlerFunc handles one message in its transaction. The messages it returns
// are sent, in order, to the publish topic of the Router's handler when the
// transaction commits. Each takes over correlation_id, traceparent, tracestate
// and baggage of the incoming message unless it has its own; msg itself may be
// among them. ctx ends with the message's context and with
// Config.HandlerTimeout. msg is the handler's own copy: acking or nacking it
// is an error.
type HandlerFunc func(ctx context.Context, tx Tx, msg *message.Message) ([]*message.Message, error)

// Handler returns a Watermill handler that runs h once for each intent.
//
// operation is the stable name of what is done and by whom, chosen by hand: it
// is part of the key, so that a renamed operation does everything again. One
// returned handler may be added to the Router several times (a topic
// migration). It panics if the name is not 1 to 128 visible ASCII bytes or is
// in use already, or if the Consumer was made by NewSQL.
func (c *Consumer) Handler(operation string, h HandlerFunc) message.HandlerFunc {
	if _, ok := c.store.(*pgxStore); !ok {
		panic("consumer: Handler needs a Consumer made by New; with NewSQL use Middleware and SQLTx")
	}
	op := c.register(operation)
	if c.cfg.Group {
		op.group = newGroup(c, op, oneByOne)
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		return c.handle(op, msg, func(msg *message.Message) ([]*message.Message, error) {
			return h(msg.Context(), TxFrom(msg.Context()), msg)
		})
	}
}

// Middleware is [Consumer.Handler] for handlers that exist: they get their
// transaction from TxFrom(msg.Context()), or SQLTx with a Consumer made by
// NewSQL. What they return is sent with the transaction, and nothing is left
// for the Router to publish.
//
// Add it to one handler. To use one operation for several handlers (a topic
// migration) name them all in handlers. Used for more, as with
// Router.AddMiddleware, it refuses every message with a *MisuseError: the
// operation would no longer say what is done.
func (c *Consumer) Middleware(operation string, handlers ...string) message.HandlerMiddleware {
	op := c.register(operation)
	if c.cfg.Group {
		op.group = newGroup(c, op, oneByOne)
	}
	var wrapped atomic.Int32
	return func(h message.HandlerFunc) message.HandlerFunc {
		wrapped.Add(1)
		return func(msg *message.Message) ([]*message.Message, error) {
			name := message.HandlerNameFromCtx(msg.Context())
			if int(wrapped.Load()) > max(len(handlers), 1) || len(handlers) > 0 && !slices.Contains(handlers, name) {
				return nil, c.settle(op, msg, &MisuseError{Operation: operation, Handler: name})
			}
			return c.handle(op, msg, h)
		}
	}
}

// MisuseError says that one operation's middleware is used for a handler that
// it was not made for. Nothing was run or acked.
type MisuseError struct{ Operation, Handler string }

func (e *MisuseError) Error() string {
	return fmt.Sprintf("operation %s: its middleware wraps several handlers, %q among them; use Handler.AddMiddleware with an operation for each, or name the handlers that share it in Consumer.Middleware", e.Operation, e.Handler)
}

// Subscriber wraps the Subscriber that feeds the operation's handler. Its
// Subscribe first makes sure that the database is ready for this code, so that
// a Router does not start to consume otherwise; then it passes deliveries on.
func (c *Consumer) Subscriber(operation string, sub message.Subscriber) message.Subscriber {
	if _, err := dedup.NewKey("s", operation, "i"); err != nil {
		panic(fmt.Sprintf("consumer: operation %q: %v", operation, err))
	}
	return &subscriber{consumer: c, operation: operation, sub: sub}
}

type subscriber struct {
	consumer  *Consumer
	operation string
	sub       message.Subscriber
}

func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.consumer.Check(ctx); err != nil {
		return nil, fmt.Errorf("operation %s: %w", s.operation, err)
	}
	messages, err := s.sub.Subscribe(ctx, topic)
	if err == nil {
		s.warn(ctx, topic)
	}
	return messages, err
}

func (s *subscriber) Close() error { return s.sub.Close() }

// Check makes sure that the database is reachable, has the schema version that
// this code needs, and grants the current role what it needs; the error says
// what to run. The first delivery does the same.
func (c *Consumer) Check(ctx context.Context) error {
	if c.ready.Load() {
		return nil
	}
	c.checking.Lock()
	defer c.checking.Unlock()
	if c.ready.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AcquireTimeout)
	defer cancel()
	if err := c.store.check(ctx); err != nil {
		return errors.Join(errConnectionLost, err)
	}
	c.ready.Store(true)
	return nil
}

// operation is a registered operation with what applies to it.
type operation struct {
	name string
	Operation
	group *group // nil: each delivery has its own transaction
}

func (c *Consumer) register(name string) operation {
	if _, err := dedup.NewKey("s", name, "i"); err != nil {
		panic(fmt.Sprintf("consumer: operation %q: %v", name, err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.operations[name] {
		panic(fmt.Sprintf("consumer: operation %q is registered already; an operation is one thing that is done, so give this handler another name, or add the first registration to several handlers", name))
	}
	c.operations[name] = true
	op := operation{name: name, Operation: c.cfg.Operations[name]}
	if op.Key == nil {
		op.Key = c.cfg.Key
	}
	if op.LaneKey == nil {
		op.LaneKey = c.cfg.LaneKey
	}
	if op.EventTime == nil {
		op.EventTime = c.cfg.EventTime
	}
	if op.Fingerprint == nil {
		op.Fingerprint = c.cfg.Fingerprint
	}
	return op
}

// KeySource says where the key of an operation's messages is taken from, for
// people who wonder why a message counts as new.
func (c *Consumer) KeySource(operation string) string {
	source := c.cfg.Key
	if o := c.cfg.Operations[operation]; o.Key != nil {
		source = o.Key
	}
	return source.String()
}
