package outbox_test

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/oncemill/oncemill/outbox"
)

// spy is a sink in front of a real one: it watches what is sent and may come
// between.
type spy struct {
	outbox.Sink
	// before sees each message before it is sent; false: it is never sent,
	// as if the process had ended.
	before func(m *outbox.Message) bool
	// after sees each answer before the relay does; false: the relay never
	// gets it.
	after func(m *outbox.Message, err error) bool

	mu      sync.Mutex
	sent    []string
	unacked map[string]int
	worst   int // most unacknowledged messages of one key
}

func (s *spy) Send(ctx context.Context, m *outbox.Message, done func(error)) {
	if s.before != nil && !s.before(m) {
		return
	}
	s.mu.Lock()
	s.sent = append(s.sent, string(m.Payload))
	if s.unacked == nil {
		s.unacked = map[string]int{}
	}
	if m.OrderingKey != "" {
		s.unacked[m.OrderingKey]++
		s.worst = max(s.worst, s.unacked[m.OrderingKey])
	}
	s.mu.Unlock()
	s.Sink.Send(ctx, m, func(err error) {
		s.mu.Lock()
		s.unacked[m.OrderingKey]--
		s.mu.Unlock()
		if s.after == nil || s.after(m, err) {
			done(err)
		}
	})
}

func (s *spy) mostUnacked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worst
}

// hand is a sink whose answers the test gives.
type hand struct {
	outbox.Sink
	sends chan func(error)
	count atomic.Int64
}

func (h *hand) Send(_ context.Context, _ *outbox.Message, done func(error)) {
	h.count.Add(1)
	h.sends <- done
}
