package jetstream

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

const (
	// defaultInFlight keeps a few handlers' worth of messages at hand; a
	// consumer that groups messages wants more.
	defaultInFlight = 64
	// maxInFlight bounds the memory that a typing error can claim.
	maxInFlight = 1 << 16
	// defaultAckWait is the server's own default.
	defaultAckWait = 30 * time.Second
	// defaultMaxExtend is far above the deadline of any reasonable handler.
	defaultMaxExtend = 5 * time.Minute
	// defaultCloseTimeout is that of Watermill's Router.
	defaultCloseTimeout = 30 * time.Second
	// defaultMaxAckPending is the server's own default.
	defaultMaxAckPending = 1000

	topicPlaceholder = "{topic}"
)

// Config says what a [Subscriber] reads and how. Only Durable is required. Zero
// means the default.
type Config struct {
	// Stream is the name of the stream. Default: the stream that covers the
	// topic, looked up when subscribing.
	Stream string

	// Durable is the name of the durable consumer, and with it the position
	// that all processes of a service share. Every topic needs a durable of its
	// own: a Subscriber for several topics puts {topic} into the name, which is
	// replaced by the topic with everything but letters, digits, "-" and "_"
	// turned into "_".
	Durable string

	// Bind uses an existing durable only, whatever its filter, and never
	// creates one. Default: create it if it is missing.
	Bind bool

	// MaxAckPending is how many unsettled messages the server allows over all
	// processes, for a durable that is created. Default: 1000, or InFlight if
	// that is more.
	MaxAckPending int

	// Configure changes the configuration of a durable before it is created,
	// for example its DeliverPolicy (default: all messages of the stream) or
	// Replicas. It is not called for one that exists.
	Configure func(*natsjs.ConsumerConfig)

	// AckWait is how long the server waits for a settlement or a sign of
	// progress, for a durable that is created. An existing one keeps its own.
	// Default: 30 s.
	AckWait time.Duration

	// InFlight is how many messages one subscription holds at most: asked for,
	// fetched or handed out, and not settled. It is the concurrency of a
	// Watermill Router. Default: 64, at most 65536.
	InFlight int

	// MaxExtend is how long a message is kept from redelivery while its handler
	// runs. It must not be shorter than the handler's deadline. Default: 5 min;
	// negative: not at all, so that AckWait is the handler's deadline.
	MaxExtend time.Duration

	// AckConfirm waits for the server to confirm acks and terminations, and
	// sends them again for up to one AckWait if it does not. Costs a round trip
	// per message, and the message's slot meanwhile; saves redeliveries after a
	// lost connection. Default: off.
	AckConfirm bool

	// Decode makes a message of what the server delivered, in place of the
	// default (see [Decode]). It is called from one goroutine per subscription
	// and must not change its argument, which has no reply subject: settling is
	// not its business. An error, a panic or a nil message makes the message
	// undecodable (consumer.Delivery.DecodeErr); it does not stop others.
	Decode func(*nats.Msg) (*message.Message, error)

	// CloseTimeout is how long Close waits for messages in flight. Default:
	// 30 s; negative: not at all.
	CloseTimeout time.Duration

	// Logger gets what goes wrong on the way. It never gets payloads or header
	// values. Default: none.
	Logger watermill.LoggerAdapter
}

func (c Config) withDefaults() Config {
	setDefault(&c.InFlight, defaultInFlight)
	setDefault(&c.MaxAckPending, max(defaultMaxAckPending, c.InFlight))
	setDefault(&c.AckWait, defaultAckWait)
	setDefault(&c.MaxExtend, defaultMaxExtend)
	setDefault(&c.CloseTimeout, defaultCloseTimeout)
	if c.Decode == nil {
		c.Decode = Decode
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
	return c
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

func (c Config) validate() error {
	switch {
	case strings.Trim(c.Durable, " \t") == "":
		return errors.New("Durable: is missing; name the durable consumer that holds the position")
	case !validDurable(c.durableFor("x")):
		return errors.New(`Durable: a consumer name has no blanks and none of . * > / \`)
	case c.InFlight < 1 || c.InFlight > maxInFlight:
		return fmt.Errorf("InFlight: %d is not between 1 and %d", c.InFlight, maxInFlight)
	case c.MaxAckPending < 1:
		return fmt.Errorf("MaxAckPending: %d is not positive; without a limit one stuck consumer takes the whole stream", c.MaxAckPending)
	case c.AckWait < 0:
		return fmt.Errorf("AckWait: %s is negative", c.AckWait)
	}
	return nil
}

func validDurable(name string) bool {
	return name != "" && !strings.ContainsAny(name, ">*. /\\\t\r\n")
}

// durableFor is the name of topic's durable.
func (c Config) durableFor(topic string) string {
	safe := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '_':
			return r
		}
		return '_'
	}, topic)
	return strings.ReplaceAll(c.Durable, topicPlaceholder, safe)
}

// consumerConfig is the durable to create for topic.
func (c Config) consumerConfig(topic string) natsjs.ConsumerConfig {
	cc := natsjs.ConsumerConfig{
		Durable:       c.durableFor(topic),
		FilterSubject: topic,
		AckPolicy:     natsjs.AckExplicitPolicy,
		AckWait:       c.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: c.MaxAckPending,
		DeliverPolicy: natsjs.DeliverAllPolicy,
	}
	if c.Configure != nil {
		c.Configure(&cc)
	}
	return cc
}
