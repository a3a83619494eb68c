package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// SourceLimits is what a source says about its messages, as far as it matters
// for dedup. The zero value says nothing.
type SourceLimits struct {
	// Known says that MaxAge is known.
	Known bool
	// MaxAge is how long the source keeps, and may deliver, a message. 0 means
	// for ever.
	MaxAge time.Duration
	// MaxHandling is how long a message may be worked on before it is
	// delivered again. 0 means unknown.
	MaxHandling time.Duration
}

// LimitedSubscriber is a Subscriber that knows the limits of its source, such
// as the JetStream Subscriber.
type LimitedSubscriber interface {
	message.Subscriber
	// Limits returns the limits of the source of topic.
	Limits(ctx context.Context, topic string) (SourceLimits, error)
}

// Finding is a setting that weakens a promise, with what to change.
type Finding struct {
	// Setting is the name of the setting.
	Setting string
	// Problem says what can happen.
	Problem string
	// Remedy says what to change.
	Remedy string
}

// CheckSource compares the settings of an operation with those of its source.
// Consumer.Subscriber does so when it subscribes, and logs what is found.
func (c *Consumer) CheckSource(ctx context.Context, operation string, sub message.Subscriber, topic string) ([]Finding, error) {
	limited, ok := sub.(LimitedSubscriber)
	if !ok {
		return nil, nil
	}
	limits, err := limited.Limits(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("operation %s: look up the limits of the source: %w", operation, err)
	}
	return append(c.checkRetention(operation, limits), c.checkHandling(limits)...), nil
}

func (c *Consumer) checkRetention(operation string, limits SourceLimits) []Finding {
	retention := c.inbox.Retention(operation)
	if !limits.Known || retention < 0 || limits.MaxAge > 0 && retention > limits.MaxAge {
		return nil
	}
	kept := "for ever"
	if limits.MaxAge > 0 {
		kept = "for " + limits.MaxAge.String()
	}
	return []Finding{{
		Setting: "Inbox.Retention",
		Problem: fmt.Sprintf("keys are remembered for %s and the source keeps messages %s: what it delivers later is refused if it carries a time of its own (Oncemill-Time, UUIDv7, ULID, EventTime), and runs again if not", retention, kept),
		Remedy:  "raise Inbox.Retention above the source's MaxAge, or lower MaxAge",
	}}
}

func (c *Consumer) checkHandling(limits SourceLimits) []Finding {
	needed := c.cfg.HandlerTimeout + c.cfg.CommitTimeout
	if limits.MaxHandling == 0 || c.cfg.HandlerTimeout > 0 && needed <= limits.MaxHandling {
		return nil
	}
	return []Finding{{
		Setting: "HandlerTimeout",
		Problem: fmt.Sprintf("the source delivers a message again after %s, while its handler may still be at work", limits.MaxHandling),
		Remedy:  "lower HandlerTimeout and CommitTimeout below that together, or raise the Subscriber's MaxExtend",
	}}
}

// warn logs what CheckSource finds. A source that cannot be asked now will be
// asked to deliver in a moment, so that its error shows there.
func (s *subscriber) warn(ctx context.Context, topic string) {
	log := s.consumer.cfg.Logger.With("operation", s.operation)
	findings, err := s.consumer.CheckSource(ctx, s.operation, s.sub, topic)
	if err != nil {
		log.WarnContext(ctx, "the limits of the source are not known", "error", clean(err))
	}
	for _, f := range findings {
		log.WarnContext(ctx, "a setting weakens a promise", "setting", f.Setting, "problem", f.Problem, "remedy", f.Remedy)
	}
}
