package consumer

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
)

// intent derives from a message what it is about. With a permanent error the
// reason says why the message is to be held.
func (c *Consumer) intent(op operation, msg *message.Message) (*dedup.Intent, Reason, error) {
	if d, ok := DeliveryFrom(msg.Context()); ok && d.DecodeErr != nil {
		return nil, ReasonUndecodable, dedup.Permanent(fmt.Errorf("decode the message: %w", d.DecodeErr))
	}
	scope := c.cfg.Scope
	if c.cfg.ScopeFrom != nil {
		var err error
		if scope, err = c.cfg.ScopeFrom(msg); err != nil {
			return nil, ReasonNoKey, dedup.Permanent(fmt.Errorf("take the scope from the message: %w", err))
		}
	}
	id, err := op.Key.ID(msg)
	if err != nil {
		return nil, ReasonNoKey, fmt.Errorf("take the key from the message (%s): %w", op.Key, err)
	}
	key, err := dedup.NewKey(scope, op.name, id)
	if err != nil {
		return nil, ReasonNoKey, fmt.Errorf("take the key from the message (%s): %w", op.Key, err)
	}
	at, err := op.eventTime(key, msg)
	if err != nil {
		return nil, ReasonNoKey, dedup.Permanent(fmt.Errorf("take the event time from the message: %w", err))
	}
	return &dedup.Intent{Key: key, Fingerprint: op.fingerprint(key, msg), EventTime: at}, "", nil
}

func (op operation) fingerprint(key dedup.Key, msg *message.Message) dedup.Fingerprint {
	names := op.Fingerprint.Metadata()
	values := make([][]byte, len(names))
	for i, name := range names {
		values[i] = []byte(msg.Metadata[name])
	}
	return op.Fingerprint.Fingerprint(key, msg.Payload, values...)
}

// eventTime is the declared time, else the earliest that the producer put into
// the message: an old event that an outbox sends anew has a new header.
func (op operation) eventTime(key dedup.Key, msg *message.Message) (time.Time, error) {
	declared := headerTime
	if op.EventTime != nil {
		declared = op.EventTime
	}
	at, err := declared(msg)
	if err != nil || op.EventTime != nil && !at.IsZero() {
		return at, err
	}
	own, err := op.keyTime(key, msg)
	if at.IsZero() || !own.IsZero() && own.Before(at) {
		at = own
	}
	return at, err
}

// keyTime is the time that the key carries, zero if none.
func (op operation) keyTime(key dedup.Key, msg *message.Message) (time.Time, error) {
	if timed, ok := op.Key.(keys.Timed); ok {
		return timed.Time(msg)
	}
	at, _ := key.Time()
	return at, nil
}
