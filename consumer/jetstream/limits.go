package jetstream

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/consumer"
)

var _ consumer.LimitedSubscriber = (*Subscriber)(nil)

// Limits returns how long the stream of topic keeps messages, and how long a
// message may be worked on. It asks the server.
func (s *Subscriber) Limits(ctx context.Context, topic string) (consumer.SourceLimits, error) {
	name, err := s.streamOf(ctx, topic)
	if err != nil {
		return consumer.SourceLimits{}, err
	}
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return consumer.SourceLimits{}, fmt.Errorf("stream %q: %w", name, err)
	}
	ackWait := s.cfg.AckWait
	if cons, err := stream.Consumer(ctx, s.cfg.durableFor(topic)); err == nil {
		ackWait = shortestWait(cons.CachedInfo().Config)
	}
	return consumer.SourceLimits{
		Known:       true,
		MaxAge:      stream.CachedInfo().Config.MaxAge,
		MaxHandling: max(s.cfg.MaxExtend, ackWait),
	}, nil
}
