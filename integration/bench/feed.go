package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// feed delivers messages to h from inFlight goroutines for a while, as a
// Router does: the next one when the last one is acked. The first failure ends
// it.
func feed(ctx context.Context, inFlight int, d time.Duration, h message.HandlerFunc, next func() *message.Message) (Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lanes := make([][]time.Duration, inFlight)
	start := time.Now()
	end := start.Add(d)
	var wg sync.WaitGroup
	for i := range lanes {
		wg.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) {
				took, err := deliver(ctx, h, next())
				if err != nil {
					cancel(err)
					return
				}
				lanes[i] = append(lanes[i], took)
			}
		})
	}
	wg.Wait()
	s := Sample{Elapsed: time.Since(start)}
	for _, lane := range lanes {
		s.Latencies = append(s.Latencies, lane...)
	}
	s.Ops = len(s.Latencies)
	return s, context.Cause(ctx)
}

// maxDeliveries bounds how often a message that goes back is delivered again: a
// busy machine makes a few wait for locks, nothing makes one wait for ever.
const maxDeliveries = 10

// deliver hands over one message, again if it goes back or is one that fails
// once, and acks it.
func deliver(ctx context.Context, h message.HandlerFunc, first *message.Message) (time.Duration, error) {
	start := time.Now()
	for range maxDeliveries {
		msg := first.Copy()
		msg.SetContext(ctx)
		produced, err := h(msg)
		fails := msg.Metadata[failsOnce] != ""
		if fails {
			delete(first.Metadata, failsOnce)
		}
		switch {
		case err != nil && fails:
		case err != nil:
			return 0, fmt.Errorf("the handler failed: %w", err)
		case len(produced) > 0:
			return 0, fmt.Errorf("the handler left %d messages to publish", len(produced))
		case msg.Ack():
			return time.Since(start), nil
		}
	}
	return 0, fmt.Errorf("a message went back %d times", maxDeliveries)
}
