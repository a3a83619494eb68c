package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
)

// provider is an outside service that takes a while, and counts calls by key.
type provider struct {
	mu    sync.Mutex
	calls map[string]int
}

func newProvider(t *testing.T, takes time.Duration) (p *provider, url string) {
	t.Helper()
	p = &provider{calls: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		key, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.calls[string(key)]++
		p.mu.Unlock()
		time.Sleep(takes) // what it takes is the provider's nature, nothing waits for it
	}))
	t.Cleanup(server.Close)
	return p, server.URL
}

// C28: many copies at once, in two processes.
func TestC28_TwentyCopiesInTwoProcesses(t *testing.T) {
	t.Parallel()
	const intents, copies = 50, 20
	s := newStack(t)
	provider, url := newProvider(t, 20*time.Millisecond)
	for i := range intents {
		key := fmt.Sprintf("k%d", i)
		for range copies {
			s.publish("new", key, "event_id", key)
		}
	}
	// All copies wait in the stream: the first ten in flight in each process
	// are those of one key.
	spec := childSpec{wiring: s.wiring(), InFlight: copies / 2, Provider: url}
	workers := []func() report{}
	for range 2 {
		w := s.child("service", spec)
		workers = append(workers, func() report { return finish(t, w) })
	}
	s.settled("charge")
	s.requireCommands(intents)
	require.Equal(t, intents, s.effects())
	require.Len(t, provider.calls, intents)
	for key, calls := range provider.calls {
		require.Equal(t, 1, calls, key)
	}
	var sum consumer.Stats
	for _, end := range workers {
		stats := end().Consumer
		sum.Done += stats.Done
		sum.Duplicates += stats.Duplicates
		sum.Failed += stats.Failed
		sum.InDoubt += stats.InDoubt
		sum.Transient += stats.Transient
	}
	requireOutcomes(t, consumer.Stats{Done: intents, Duplicates: intents * (copies - 1)}, sum)
	require.Empty(t, s.held())
}

// C33: messages that wait for a handler are not delivered again meanwhile.
func TestC33_WaitingMessagesAreNotRedelivered(t *testing.T) {
	for name, workers := range map[string]int{"one worker": 1, "two workers": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const events = 20
			s := newStack(t)
			s.publishEvents(events)
			for range workers {
				svc := s.open(s.wiring(), options{
					consumer:  func(cfg *consumer.Config) { cfg.Concurrency = 1 },
					jetstream: func(cfg *jetstream.Config) { cfg.AckWait, cfg.InFlight = 2*time.Second, 100 },
				})
				svc.handle("charge", "new", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
					if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_sleep(0.2)`); err != nil {
						return nil, err
					}
					return svc.effect(ctx, tx, msg)
				})
				s.start(svc)
			}
			s.settled("charge")
			s.requireCommands(events)
			require.Equal(t, events, s.effects())
			require.Equal(t, events, s.runs())
			require.LessOrEqual(t, s.info("charge").Delivered.Consumer, uint64(events+2), "deliveries")
		})
	}
}
