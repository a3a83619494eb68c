package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// Defaults of Config.
const (
	// DefaultHandlerTimeout ends handlers that hang long before people notice
	// and long after a handler that only uses its database is done.
	DefaultHandlerTimeout = time.Minute
	// DefaultCommitTimeout is how long a commit may take, also while the
	// service shuts down: a synchronous replica may be slow, a dead one ends
	// in doubt.
	DefaultCommitTimeout = 10 * time.Second
	// DefaultAcquireTimeout bounds the wait for a pooled connection.
	DefaultAcquireTimeout = 10 * time.Second
	// DefaultMinDelay and DefaultMaxDelay bound the delay with which a message
	// goes back: it doubles with each delivery in between.
	DefaultMinDelay = time.Second
	DefaultMaxDelay = time.Minute
	// DefaultBusyDelay is the delay after a live rival kept the key busy. The
	// rival is working on it now, so that it is short.
	DefaultBusyDelay = 500 * time.Millisecond
	// DefaultNackWait bounds how long the Consumer itself waits before a nack
	// when the Subscriber cannot delay. The message stays unsettled meanwhile,
	// so it stays well below common ack deadlines.
	DefaultNackWait = 2 * time.Second
)

// Defaults of groups.
const (
	// DefaultGroupSize is where a larger group gains nothing any more, and its
	// failure costs more.
	DefaultGroupSize = 500
	// DefaultLanes keeps groups large: what waits is shared by the lanes.
	DefaultLanes = 2
)

// Config configures a Consumer. Key and one of Scope and ScopeFrom are
// required. A zero field means its default.
type Config struct {
	// Scope is the tenant or security domain of all messages.
	Scope string
	// ScopeFrom takes the scope from the message instead. No scope, or an
	// error, is permanent: the message becomes a dead letter.
	ScopeFrom func(*message.Message) (string, error)
	// Key takes the event's stable id from the message.
	Key keys.Func
	// EventTime takes the producer's time of the event from the message. With
	// the zero time the one that the key carries counts, if it does: the one in
	// a UUIDv7 or ULID id, or what a keys.Timed says. An error is permanent: the
	// message becomes a dead letter. nil means the Oncemill-Time header or the
	// time that the key carries, whichever is earlier. Set it where the id is
	// not the event's but that of something older, or where CloudEvents are
	// sent long after their time.
	EventTime func(*message.Message) (time.Time, error)
	// Fingerprint tells one payload from another. nil means
	// dedup.RawFingerprint: any other byte is another payload. Metadata counts
	// only if it was declared with Fingerprinter.WithMetadata.
	Fingerprint *dedup.Fingerprinter
	// Operations overrides Key, EventTime and Fingerprint for named operations;
	// Inbox.Retentions does so for retention.
	Operations map[string]Operation

	// Inbox says where and how long keys are remembered.
	Inbox dedup.InboxConfig
	// Outbox takes the messages that handlers send. nil means an Outbox with
	// the schema of Inbox. A relay built on the same Outbox is woken after
	// each commit.
	Outbox *outbox.Outbox
	// ProviderKeys, if set, give every outgoing message a provider key.
	ProviderKeys *dedup.ProviderKeys

	// Concurrency is how many deliveries are worked on at the same time; the
	// others wait without a connection. Each needs one pooled connection. 0
	// means one less than the pool has (at least 1), which leaves one for
	// everything else. It may not exceed the pool's size.
	Concurrency int
	// Group lets deliveries of one operation that are in flight at the same time
	// share a transaction, also for plain handlers (QueueHandler and SetHandler
	// always do). See the package documentation for what this changes for them.
	Group bool
	// GroupSize is how many deliveries may share a transaction. 0 means
	// DefaultGroupSize. It shrinks while groups fail, and grows back.
	GroupSize int
	// Lanes is how many groups of an operation run at the same time, each on a
	// connection of its own. 0 means DefaultLanes, or Concurrency if that is
	// less.
	Lanes int
	// LaneKey names what a message's effect locks, such as an account: messages
	// of one key are in one lane, and groups apply them in the order of their
	// keys, so that groups don't deadlock. nil, or an empty key, means the
	// intent's key.
	LaneKey func(*message.Message) string
	// HandlerTimeout is the deadline of the handler's context. Negative means
	// none.
	HandlerTimeout time.Duration
	// CommitTimeout bounds commit and rollback. They run to their end even
	// when the message's context is cancelled.
	CommitTimeout time.Duration
	// AcquireTimeout bounds the wait for a pooled connection.
	AcquireTimeout time.Duration
	// MinDelay and MaxDelay bound the delay of a message that goes back, before
	// jitter: each delay is up to a quarter shorter or longer.
	MinDelay, MaxDelay time.Duration
	// BusyDelay is the delay of a message whose key is held by a live rival,
	// jittered likewise.
	BusyDelay time.Duration
	// NackWait bounds the wait before a nack with Subscribers that cannot
	// delay one. Negative means not to wait.
	NackWait time.Duration
	// Logger gets one line per message that failed, was held or went back.
	// Payloads, metadata values and keys are never in it. nil means
	// slog.Default().
	Logger *slog.Logger
}

// Operation overrides Config for one operation. A zero field leaves what
// Config says.
type Operation struct {
	Key         keys.Func
	LaneKey     func(*message.Message) string
	EventTime   func(*message.Message) (time.Time, error)
	Fingerprint *dedup.Fingerprinter
}

// withDefaults returns a validated copy of cfg. connections is the size of the
// pool, 0 if it has no limit.
func (cfg Config) withDefaults(connections int) (Config, error) {
	switch {
	case cfg.Scope == "" && cfg.ScopeFrom == nil:
		return cfg, errors.New("consumer.Config.Scope: is missing; name the tenant or security domain of the messages, or set ScopeFrom")
	case cfg.Scope != "" && cfg.ScopeFrom != nil:
		return cfg, errors.New("consumer.Config.Scope: is set together with ScopeFrom; set one of them")
	case cfg.Key == nil:
		return cfg, errors.New("consumer.Config.Key: is missing; say where the event's stable id is, for example keys.Metadata(\"event_id\")")
	}
	if cfg.Scope != "" {
		if _, err := dedup.NewKey(cfg.Scope, "o", "i"); err != nil {
			return cfg, fmt.Errorf("consumer.Config.Scope: %w", err)
		}
	}
	for name := range cfg.Operations {
		if _, err := dedup.NewKey("s", name, "i"); err != nil {
			return cfg, fmt.Errorf("consumer.Config.Operations: %q: %w", name, err)
		}
	}
	if cfg.Fingerprint == nil {
		cfg.Fingerprint = dedup.RawFingerprint()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := cfg.defaultDurations(); err != nil {
		return cfg, err
	}
	return cfg, cfg.defaultConcurrency(connections)
}

func (cfg *Config) defaultDurations() error {
	for _, d := range []struct {
		name   string
		value  *time.Duration
		def    time.Duration
		canOff bool
	}{
		{"HandlerTimeout", &cfg.HandlerTimeout, DefaultHandlerTimeout, true},
		{"CommitTimeout", &cfg.CommitTimeout, DefaultCommitTimeout, false},
		{"AcquireTimeout", &cfg.AcquireTimeout, DefaultAcquireTimeout, false},
		{"MinDelay", &cfg.MinDelay, DefaultMinDelay, false},
		{"MaxDelay", &cfg.MaxDelay, max(DefaultMaxDelay, cfg.MinDelay), false},
		{"BusyDelay", &cfg.BusyDelay, DefaultBusyDelay, false},
		{"NackWait", &cfg.NackWait, DefaultNackWait, true},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value < 0 && !d.canOff {
			return fmt.Errorf("consumer.Config.%s: %s is negative; use a positive duration", d.name, *d.value)
		}
	}
	if cfg.MinDelay > cfg.MaxDelay {
		return fmt.Errorf("consumer.Config.MinDelay: %s is more than MaxDelay %s", cfg.MinDelay, cfg.MaxDelay)
	}
	return nil
}

func (cfg *Config) defaultConcurrency(connections int) error {
	switch {
	case cfg.Concurrency < 0:
		return fmt.Errorf("consumer.Config.Concurrency: %d is negative; use 1 or more", cfg.Concurrency)
	case connections > 0 && cfg.Concurrency > connections:
		return fmt.Errorf("consumer.Config.Concurrency: %d deliveries need a connection each and the pool has %d; lower it, or raise the pool to Concurrency + 1, and 3 more for a relay in this process", cfg.Concurrency, connections)
	case cfg.Concurrency == 0 && connections > 0:
		cfg.Concurrency = max(connections-1, 1)
	case cfg.Concurrency == 0:
		cfg.Concurrency = defaultUnlimited
	}
	return cfg.defaultGroups()
}

func (cfg *Config) defaultGroups() error {
	switch {
	case cfg.GroupSize < 0:
		return fmt.Errorf("consumer.Config.GroupSize: %d is negative; use 1 or more", cfg.GroupSize)
	case cfg.Lanes < 0:
		return fmt.Errorf("consumer.Config.Lanes: %d is negative; use 1 or more", cfg.Lanes)
	case cfg.Lanes > cfg.Concurrency:
		return fmt.Errorf("consumer.Config.Lanes: %d is more than Concurrency %d, which bounds the groups that run", cfg.Lanes, cfg.Concurrency)
	}
	if cfg.GroupSize == 0 {
		cfg.GroupSize = DefaultGroupSize
	}
	if cfg.Lanes == 0 {
		cfg.Lanes = min(DefaultLanes, cfg.Concurrency)
	}
	return nil
}

// defaultUnlimited is the concurrency with a pool that has no limit of its own
// (database/sql's default): the usual share of max_connections = 100.
const defaultUnlimited = 32

// headerTime is the default event time: when the outbox of the producer made
// the message, as its relay says. A malformed header is an error, and so is the
// zero time, which would count as none: dropping it would turn a refused
// message into a fresh one.
func headerTime(msg *message.Message) (time.Time, error) {
	text := msg.Metadata.Get(outbox.HeaderTime)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.IsZero() {
		return time.Time{}, dedup.Permanent(fmt.Errorf("header %s is not an RFC 3339 time, or Go's zero time", outbox.HeaderTime))
	}
	return t, nil
}
