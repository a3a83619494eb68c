package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
)

// DurableError says why a durable consumer is refused: messages could be lost
// or handled under the wrong topic. It is never changed silently.
type DurableError struct {
	Stream, Durable string
	// Field is the setting in question, Rule what it must be and what to do.
	Field, Rule string
}

func (e *DurableError) Error() string {
	return fmt.Sprintf("durable consumer %q of stream %q: %s: %s", e.Durable, e.Stream, e.Field, e.Rule)
}

// durable is what a subscription needs to know of its durable consumer.
type durable struct {
	stream, name string
	ackWait      time.Duration
	// Limits of one pull request, zero if there are none.
	maxBatch   int
	maxExpires time.Duration
}

// bind finds the durable of topic, or creates it, and checks it.
func (s *Subscriber) bind(ctx context.Context, topic string) (*durable, error) {
	stream, err := s.streamOf(ctx, topic)
	if err != nil {
		return nil, err
	}
	name := s.cfg.durableFor(topic)
	cons, err := s.findOrCreate(ctx, stream, name, topic)
	switch {
	case errors.Is(err, natsjs.ErrNotPullConsumer):
		return nil, &DurableError{stream, name, "DeliverSubject", "must be empty; this is a push consumer, take another name"}
	case err != nil:
		return nil, fmt.Errorf("durable consumer %q of stream %q: %w", name, stream, err)
	}
	cfg := cons.CachedInfo().Config
	if field, rule := s.objection(cfg, topic); field != "" {
		return nil, &DurableError{stream, name, field, rule}
	}
	return &durable{
		stream: stream, name: name, ackWait: shortestWait(cfg),
		maxBatch: cfg.MaxRequestBatch, maxExpires: cfg.MaxRequestExpires,
	}, nil
}

func (s *Subscriber) streamOf(ctx context.Context, topic string) (string, error) {
	if s.cfg.Stream != "" {
		return s.cfg.Stream, nil
	}
	name, err := s.js.StreamNameBySubject(ctx, topic)
	if err != nil {
		return "", fmt.Errorf("looking up the stream of topic %q (or set Config.Stream): %w", topic, err)
	}
	return name, nil
}

func (s *Subscriber) findOrCreate(ctx context.Context, stream, name, topic string) (natsjs.Consumer, error) {
	cons, err := s.js.Consumer(ctx, stream, name)
	if s.cfg.Bind || !errors.Is(err, natsjs.ErrConsumerNotFound) {
		return cons, err
	}
	cons, err = s.js.CreateConsumer(ctx, stream, s.cfg.consumerConfig(topic))
	if errors.Is(err, natsjs.ErrConsumerExists) { // another process was faster
		return s.js.Consumer(ctx, stream, name)
	}
	return cons, err
}

// objection names the setting of an existing durable that must not be, and what
// to do about it; empty if there is none.
func (s *Subscriber) objection(cfg natsjs.ConsumerConfig, topic string) (field, rule string) {
	switch {
	case cfg.AckPolicy != natsjs.AckExplicitPolicy:
		return "AckPolicy", "must be explicit; create another consumer, the policy of one cannot be changed"
	case cfg.MaxDeliver > 0:
		return "MaxDeliver", fmt.Sprintf("must be -1, it is %d: after so many deliveries the server drops the message from delivery for good; update it, for example with nats consumer edit", cfg.MaxDeliver)
	case cfg.HeadersOnly:
		return "HeadersOnly", "must be off; the payload is needed"
	case len(cfg.PriorityGroups) > 0:
		return "PriorityGroups", "must be empty; priority groups are not supported"
	case !s.cfg.Bind && !filtersExactly(cfg, topic):
		return "FilterSubject", fmt.Sprintf("must be the topic %q; give every topic a durable of its own ({topic} in Config.Durable), or set Config.Bind to use this one as it is", topic)
	}
	return "", ""
}

func filtersExactly(cfg natsjs.ConsumerConfig, topic string) bool {
	return cfg.FilterSubject == topic || slices.Equal(cfg.FilterSubjects, []string{topic})
}

// shortestWait is the shortest time after which the server may deliver an
// unsettled message again: BackOff overrides AckWait.
func shortestWait(cfg natsjs.ConsumerConfig) time.Duration {
	if len(cfg.BackOff) > 0 {
		return slices.Min(cfg.BackOff)
	}
	return cfg.AckWait
}
