package integration

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
)

// TestRouterClosesInTheMiddleOfWork: what is under way when the Router closes
// commits and is acked, or comes again, as a duplicate if it had committed.
func TestRouterClosesInTheMiddleOfWork(t *testing.T) {
	const events = 20
	for name, tc := range map[string]struct {
		patience time.Duration // of Router and Subscriber
		cancels  bool          // contexts end with Close, as with most Subscribers of Watermill
		late     bool          // handlers return after Close gave up
		obeys    bool          // handlers return their context's error
		first    consumer.Stats
		second   consumer.Stats
	}{
		"handlers finish in time": {
			patience: bound,
			first:    consumer.Stats{Done: inFlight}, second: consumer.Stats{Done: events - inFlight},
		},
		"handlers finish in time with cancelled contexts": {
			patience: bound, cancels: true,
			first: consumer.Stats{Done: inFlight}, second: consumer.Stats{Done: events - inFlight},
		},
		"handlers finish after Close gave up": {
			patience: -1, late: true,
			first: consumer.Stats{Done: inFlight}, second: consumer.Stats{Done: events - inFlight, Duplicates: inFlight},
		},
		"handlers give up": {
			patience: bound, cancels: true, obeys: true,
			first: consumer.Stats{Transient: inFlight}, second: consumer.Stats{Done: events},
		},
		"handlers give up after Close did": {
			patience: -1, late: true, obeys: true,
			first: consumer.Stats{Transient: inFlight}, second: consumer.Stats{Done: events},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			s.publishEvents(events)
			svc := s.open(s.wiring(), options{
				jetstream: func(cfg *jetstream.Config) {
					cfg.AckWait, cfg.InFlight, cfg.CloseTimeout = time.Second, inFlight, tc.patience
				},
				router: message.RouterConfig{CloseTimeout: max(tc.patience, time.Millisecond)},
			})
			sub := &closing{Subscriber: svc.subscriber("charge", "charge"), begun: make(chan struct{})}
			if tc.cancels {
				svc.router.AddMiddleware(sub.cancels)
			}
			var working atomic.Int64
			release := make(chan struct{})
			handler := svc.consumer.Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
				commands, err := svc.effect(ctx, tx, msg)
				working.Add(1)
				<-release
				if tc.cancels || tc.late {
					<-ctx.Done()
				}
				if tc.obeys {
					return nil, ctx.Err()
				}
				return commands, err
			})
			svc.router.AddHandler("charge", svc.subject("new"), svc.consumer.Subscriber("charge", sub), svc.subject("commands"), svc.consumer.Publisher(), handler)
			s.start(svc)
			s.eventually("all slots are in use", func() bool { return working.Load() == inFlight })
			closed := make(chan error, 1)
			go func() { closed <- svc.router.Close() }()
			<-sub.begun
			if tc.late {
				require.Error(t, <-closed)
				close(release)
			} else {
				close(release)
				require.NoError(t, <-closed)
			}
			s.eventually("the handlers end", func() bool { return svc.consumer.Stats() == tc.first })
			require.Equal(t, int(tc.first.Done), s.effects())

			second := s.serve(options{})
			s.settled("charge")
			s.requireCommands(events)
			requireOutcomes(t, tc.second, second.consumer.Stats())
			require.Equal(t, events, s.effects())
		})
	}
}

// closing tells when its Close begins.
type closing struct {
	message.Subscriber
	begun chan struct{}
}

func (c *closing) Close() error {
	close(c.begun)
	return c.Subscriber.Close()
}

// cancels is a middleware under which contexts end when Close begins.
func (c *closing) cancels(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithCancel(msg.Context())
		returned := make(chan struct{})
		defer close(returned)
		go func() {
			defer cancel()
			select {
			case <-c.begun:
			case <-returned:
			}
		}()
		msg.SetContext(ctx)
		return h(msg)
	}
}
