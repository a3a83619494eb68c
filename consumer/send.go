package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// cause is what outgoing messages come from.
type cause struct {
	key      dedup.Key
	metadata message.Metadata // of the incoming message
}

type causeKey struct{}

// KeyFrom returns the key of the delivery whose context ctx is, and whether
// there is one.
func KeyFrom(ctx context.Context) (dedup.Key, bool) {
	from, ok := ctx.Value(causeKey{}).(cause)
	return from.key, ok
}

// sendAll prepares messages for topic, which leave with the commit.
func (c *Consumer) sendAll(s sender, from cause, topic string, msgs []*message.Message) error {
	if len(msgs) > 0 && topic == "" {
		return errors.New("the handler returned messages and the Router's handler has no publish topic; add it with Router.AddHandler and a topic, or send with outbox.Write")
	}
	for _, msg := range msgs {
		if msg == nil {
			return errors.New("the handler returned a nil message; return messages or none")
		}
		err := s.send(func(step int) (outbox.Row, error) { return c.prepare(from, topic, msg, strconv.Itoa(step)) })
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare gives the step-th message of an intent its ids, and what it inherits.
func (c *Consumer) prepare(from cause, topic string, msg *message.Message, step string) (outbox.Row, error) {
	stamp := outbox.Stamp{LogicalID: logicalID(from.key, step)}
	if c.cfg.ProviderKeys != nil {
		stamp.ProviderKey = c.cfg.ProviderKeys.Derive(from.key, step)
	}
	out, inherited := inherit(msg, from.metadata)
	row, err := c.outbox.Prepare(topic, out, stamp)
	for dropRefused(out, inherited, err) {
		row, err = c.outbox.Prepare(topic, out, stamp)
	}
	if err != nil {
		return row, fmt.Errorf("send message %s of the handler: %w", step, err)
	}
	return row, nil
}

// logicalID names the step-th message of an intent, the same whenever the
// handler runs again.
func logicalID(key dedup.Key, step string) string {
	digest := key.Digest()
	sum := sha256.Sum256(append(append([]byte("oncemill logical id v1"), digest[:]...), step...))
	return hex.EncodeToString(sum[:16])
}

// Publisher returns a Watermill Publisher that sends with the transaction of
// the delivery that the message's context belongs to: a message published
// with it leaves when that transaction commits, or never. Without a
// transaction in the context it refuses. cqrs buses made with it work inside
// handlers. Close does nothing.
func (c *Consumer) Publisher() message.Publisher { return publisher{c} }

type publisher struct{ consumer *Consumer }

func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	for i, msg := range msgs {
		if msg == nil {
			return fmt.Errorf("consumer: Publisher: message %d of %d, counted from 0, is nil; publish messages or none", i, len(msgs))
		}
		s, ok := msg.Context().Value(sessionKey{}).(sender)
		from, caused := msg.Context().Value(causeKey{}).(cause)
		if !ok || !caused {
			return errors.New("consumer: Publisher: no transaction in the message's context; publish inside a handler with the context it was given, or use outbox.Write in a transaction of your own")
		}
		if err := p.consumer.sendAll(s, from, topic, []*message.Message{msg}); err != nil {
			return err
		}
	}
	return nil
}

func (publisher) Close() error { return nil }
