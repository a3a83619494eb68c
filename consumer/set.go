package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// QueueHandlerFunc handles one message without reading: its statements are
// queued, and sent with those of other messages in one transaction. The
// messages it returns are sent as those of a [HandlerFunc]. An error of the
// handler itself costs the others nothing; a statement that fails has the
// others sent again.
type QueueHandlerFunc func(ctx context.Context, q Queue, msg *message.Message) ([]*message.Message, error)

// QueueHandler is [Consumer.Handler] for a handler that only queues
// statements. Deliveries that are in flight at the same time share a
// transaction (see Config.GroupSize, Config.Lanes and Config.LaneKey), so that
// it is several times faster under load. h may run more than once for a
// message, before its transaction commits: it should do nothing but queue.
func (c *Consumer) QueueHandler(operation string, h QueueHandlerFunc) message.HandlerFunc {
	return c.grouped("QueueHandler", operation, oneByOne, func(msg *message.Message) ([]*message.Message, error) {
		return h(msg.Context(), queueOnly{workOf(msg.Context())}, msg)
	})
}

// SetHandlerFunc handles messages whose effects are one: all of them commit
// together. tx is the transaction they share. What it returns at the place of
// a message is sent as what a [HandlerFunc] returns for it; nil sends nothing.
//
// With a *MessageError the message that it names leaves, and the handler is
// called again for the others. With any other error each half of the messages
// is handled by itself, down to single ones.
type SetHandlerFunc func(ctx context.Context, tx Tx, msgs []*message.Message) ([][]*message.Message, error)

// MessageError is a failure of one message of a set.
type MessageError struct {
	Message *message.Message // as the handler got it
	Err     error
}

func (e *MessageError) Error() string {
	if e.Err == nil {
		return "the handler named a message without an error"
	}
	return e.Err.Error()
}

func (e *MessageError) Unwrap() error { return e.Err }

// SetHandler is [Consumer.Handler] for a handler that takes several messages
// at once: those that were delivered at the same time and have to be processed,
// in the order of their lane keys. They have different keys, and one scope. h
// may be called more than once with a message, before its transaction commits.
// TxFrom and SetResult with the context of a message belong to that message.
func (c *Consumer) SetHandler(operation string, h SetHandlerFunc) message.HandlerFunc {
	return c.grouped("SetHandler", operation, func(t *trial) error { return t.performSet(h) }, func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg.Context(), TxFrom(msg.Context()), []*message.Message{msg})
		if err != nil {
			return nil, err
		}
		all, err := perMessage(produced, 1)
		return all[0], err
	})
}

// grouped registers an operation whose deliveries always group. single
// processes one that is alone.
func (c *Consumer) grouped(name, operation string, effects func(*trial) error, single message.HandlerFunc) message.HandlerFunc {
	if _, ok := c.store.(*pgxStore); !ok {
		panic("consumer: " + name + " needs a Consumer made by New")
	}
	op := c.register(operation)
	op.group = newGroup(c, op, effects)
	return func(msg *message.Message) ([]*message.Message, error) { return c.handle(op, msg, single) }
}

// perMessage makes what a set handler returned as long as its messages.
func perMessage(produced [][]*message.Message, n int) ([][]*message.Message, error) {
	if produced == nil {
		return make([][]*message.Message, n), nil
	}
	if len(produced) != n {
		return make([][]*message.Message, n), fmt.Errorf("the handler returned messages for %d of %d messages; return one slice for each, or nil", len(produced), n)
	}
	return produced, nil
}

// performSet runs h once for all parts.
func (t *trial) performSet(h SetHandlerFunc) error {
	c := t.group.consumer
	ctx := context.WithoutCancel(t.parts[0].msg.Context())
	if c.cfg.HandlerTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.HandlerTimeout)
		defer cancel()
	}
	all := &work{shared: t.shared}
	ctx = context.WithValue(ctx, sessionKey{}, all)
	own := make([]*message.Message, len(t.parts))
	for i, p := range t.parts {
		of := context.WithValue(p.msg.Context(), sessionKey{}, &p.work)
		own[i] = copyMessage(context.WithValue(of, causeKey{}, p.cause()), p.msg)
	}
	produced, err := runSet(ctx, h, newFacade(all), own)
	if err == nil {
		produced, err = perMessage(produced, len(own))
	}
	_, refused := all.end()
	for _, p := range t.parts {
		p.work.ended.Store(true)
	}
	t.parts[0].work.wrote |= all.wrote
	if err == nil {
		err = refused
	}
	for i := 0; err == nil && i < len(own); i++ {
		p := t.parts[i]
		err = checkSettled(p.msg, own[i])
		if err == nil {
			err = c.sendAll(&p.work, p.cause(), message.PublishTopicFromCtx(p.msg.Context()), produced[i])
		}
		if err != nil {
			err = &MessageError{own[i], err}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.cut:
		return context.DeadlineExceeded
	case t.shared.failed != nil: // whatever the handler says
		return t.blame(nil, t.shared.failed)
	case err == nil:
		return t.shared.sound()
	}
	var one *MessageError
	if errors.As(err, &one) {
		for i, p := range t.parts {
			if own[i] == one.Message {
				t.culprit = p.member
				return one
			}
		}
	}
	return err
}

// runSet turns a panic into an error.
func runSet(ctx context.Context, h SetHandlerFunc, tx Tx, msgs []*message.Message) (produced [][]*message.Message, err error) {
	_, err = runHandler(nil, func(*message.Message) ([]*message.Message, error) {
		var err error
		produced, err = h(ctx, tx, msgs)
		return nil, err
	})
	return produced, err
}
