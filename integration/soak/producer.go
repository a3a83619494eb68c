package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// pace is 100 events per second, each for every form.
	pace = 10 * time.Millisecond
	// copyShare is how many events are published again, under new broker ids.
	copyShare = 0.3
	// latestCopy is how long after the first one a copy comes at most.
	latestCopy = 5 * time.Second
	// publishers is how many publishes may wait for their acknowledgement.
	publishers = 64
	// publishTimeout is after how long a publish is in doubt, publishPause
	// between two tries.
	publishTimeout, publishPause = 2 * time.Second, 50 * time.Millisecond
)

// producer publishes at least once.
type producer struct {
	js      jetstream.JetStream
	subject string
	events  []Event
	copies  int
}

// run publishes for that long, and returns when all is acknowledged.
func (p *producer) run(ctx context.Context, d time.Duration, r *rand.Rand) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	slots := make(chan struct{}, publishers)
	var publishing sync.WaitGroup
	publish := func(e Event, brokerID string, delay time.Duration) {
		publishing.Go(func() {
			pause(ctx, delay)
			slots <- struct{}{}
			defer func() { <-slots }()
			p.publish(ctx, e, brokerID)
		})
	}
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; {
		<-tick.C
		e := newEvent(r, len(p.events))
		p.events = append(p.events, e)
		publish(e, e.ID, 0)
		if r.Float64() < copyShare {
			p.copies++
			publish(e, e.ID+"/copy", time.Duration(r.Int64N(int64(latestCopy))))
		}
	}
	publishing.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// publish repeats until there is an acknowledgement, or ctx ends.
func (p *producer) publish(ctx context.Context, e Event, brokerID string) {
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, publishTimeout)
		_, err := p.js.Publish(once, p.subject, e.encode(), jetstream.WithMsgID(brokerID))
		cancel()
		if err == nil {
			return
		}
		pause(ctx, publishPause)
	}
}
