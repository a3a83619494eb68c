package consumer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/dedup"
)

// keep holds a message as a dead letter. When that is durable the message may
// be acked, which is what nil says.
func (c *Consumer) keep(op operation, msg *message.Message, intent *dedup.Intent, reason Reason, cause error) error {
	delivery, _ := DeliveryFrom(msg.Context())
	h := heldMessage{
		operation: op.name,
		topic:     topicOf(msg, delivery),
		reason:    reason,
		err:       cause,
		msg:       msg,
		delivery:  delivery,
		intent:    intent,
		conflict:  reason == ReasonConflict,
	}
	ctx, cancel := c.ending(msg.Context())
	defer cancel()
	held, err := c.hold(ctx, h)
	if err != nil {
		return errors.Join(errConnectionLost, err)
	}
	if !held {
		c.counts.duplicates.Add(1)
		return nil
	}
	if delivery != nil && reason == ReasonUndecodable {
		delivery.Terminate()
	}
	c.counts.dead.Add(1)
	c.cfg.Logger.ErrorContext(msg.Context(), "message held as a dead letter",
		append(c.attributes(op, msg, intent), slog.String("reason", string(reason)), slog.String("error", clean(cause)))...)
	return nil
}

// topicOf is where the message was published, as far as it is known.
func topicOf(msg *message.Message, d *Delivery) string {
	if d != nil && d.Subject != "" {
		return d.Subject
	}
	return message.SubscribeTopicFromCtx(msg.Context())
}

// attributes are what a log line says about a message: configured names, the
// broker's position, the key as a digest.
func (c *Consumer) attributes(op operation, msg *message.Message, intent *dedup.Intent) []any {
	attrs := []any{slog.String("operation", op.name)}
	if intent != nil {
		attrs = append(attrs, slog.String("key", intent.Key.String()))
	}
	if d, ok := DeliveryFrom(msg.Context()); ok && d.Stream != "" {
		attrs = append(attrs, slog.String("stream", d.Stream), slog.Uint64("sequence", d.Sequence), slog.Uint64("delivery", d.Count))
	}
	return attrs
}

// settle turns the outcome of a delivery into what the Router makes of it. An
// outcome that is nobody's fault is nacked here and is no error to the Router,
// nor to the middlewares in between.
func (c *Consumer) settle(op operation, msg *message.Message, err error) error {
	if err == nil {
		return nil
	}
	kind := classify(err)
	delay := c.delay(msg, err)
	log := c.cfg.Logger.With(c.attributes(op, msg, nil)...)
	switch kind {
	case transient, inDoubt:
		level := slog.LevelWarn
		if isBusy(err) {
			level = slog.LevelDebug
			c.counts.busy.Add(1)
		} else if kind == inDoubt {
			c.counts.inDoubt.Add(1)
		} else {
			c.counts.transient.Add(1)
		}
		log.Log(msg.Context(), level, "message goes back", "delay", delay, "error", clean(err))
		c.nackAfter(msg, delay)
		msg.Nack()
		return nil
	}
	c.counts.failed.Add(1)
	if p := (*PanicError)(nil); errors.As(err, &p) {
		log.ErrorContext(msg.Context(), "handler panicked or ended its goroutine", "error", p.Error(), "stack", string(p.Stack))
	}
	c.nackAfter(msg, delay)
	return &HandlerError{Operation: op.name, Err: err}
}

func isBusy(err error) bool {
	var busy *dedup.BusyError
	return errors.As(err, &busy)
}

// delay is how long the message stays away: short after a rival, else doubled
// with each delivery, with jitter so that messages that failed together don't
// come back together.
func (c *Consumer) delay(msg *message.Message, err error) time.Duration {
	base := c.cfg.MinDelay
	if isBusy(err) {
		base = c.cfg.BusyDelay
	} else if d, ok := DeliveryFrom(msg.Context()); ok {
		for n := uint64(1); n < d.Count && base < c.cfg.MaxDelay; n++ {
			base *= 2
		}
		base = min(base, c.cfg.MaxDelay)
	}
	return jitter(base)
}

// jitter returns a duration within a quarter of d.
func jitter(d time.Duration) time.Duration {
	return d - d/4 + rand.N(d/2+1)
}

// nackAfter sees to it that the message that is about to be nacked stays away
// for the delay. Where the Subscriber cannot do it, it waits itself, bounded.
func (c *Consumer) nackAfter(msg *message.Message, delay time.Duration) {
	if d, ok := DeliveryFrom(msg.Context()); ok {
		d.NackAfter(delay)
		return
	}
	if c.cfg.NackWait < 0 {
		return
	}
	wait(msg.Context(), min(delay, c.cfg.NackWait))
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
