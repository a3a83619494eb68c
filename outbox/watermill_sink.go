package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// WatermillConfig configures WatermillPublisher. Its zero value works.
type WatermillConfig struct {
	// Classify judges an error of Publish. nil: each is InDoubt, so that an
	// outage parks nothing, and a message that the receiver will never take
	// is tried for ever, slowly, and listed by Failing. The reason may be
	// seen by operators: no payloads.
	Classify func(error) (outcome Outcome, reason string)
}

// WatermillPublisher is a Sink on any Watermill Publisher. It publishes one
// message at a time and lane, so order per key holds as far as the publisher
// keeps it. A publisher that returns before the broker confirmed loses
// messages: configure it to wait.
//
// The message has the UUID given at write, else its logical id, and all
// headers but HeaderBrokerID as metadata.
func WatermillPublisher(pub message.Publisher, cfg WatermillConfig) (Sink, error) {
	if pub == nil {
		return nil, errors.New("outbox: WatermillPublisher: publisher is nil")
	}
	if cfg.Classify == nil {
		cfg.Classify = func(err error) (Outcome, string) {
			return InDoubt, fmt.Sprintf("the publisher failed (%T)", err)
		}
	}
	return &watermillSink{pub, cfg}, nil
}

type watermillSink struct {
	pub message.Publisher
	cfg WatermillConfig
}

func (s *watermillSink) Send(ctx context.Context, m *Message, done func(error)) {
	metadata, err := m.Metadata()
	if err != nil {
		done(&SendError{Unsendable, "the stored headers cannot be decoded", err})
		return
	}
	uuid, ok := metadata[HeaderUUID]
	if !ok {
		uuid = m.LogicalID
	}
	delete(metadata, HeaderUUID)
	msg := message.NewMessageWithContext(ctx, uuid, m.Payload)
	msg.Metadata = metadata
	if err := s.pub.Publish(m.Topic, msg); err != nil {
		outcome, reason := s.cfg.Classify(err)
		done(&SendError{outcome, reason, err})
		return
	}
	done(nil)
}

func (s *watermillSink) Ready() error { return nil }

func (s *watermillSink) MaxBytes() int { return 0 }
