package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// publishers is how many publishes may wait for their acknowledgement.
	publishers = 16
	// publishTimeout is after how long a publish is in doubt.
	publishTimeout = 2 * time.Second
	// publishPause is between two tries of one publish.
	publishPause = 50 * time.Millisecond
)

// producer publishes a load with plain nats.go, at least once: a publish
// without an acknowledgement is repeated, under the same broker id, until there
// is one.
type producer struct {
	js      jetstream.JetStream
	subject string
	load    load

	// Acknowledged publishes: firsts of a payment, and copies.
	firsts, copies atomic.Int64
}

// run publishes everything, in time or as soon after that as it can. Its only
// error is that of ctx.
func (p *producer) run(ctx context.Context, start time.Time) error {
	due := make(chan publication)
	var publishing sync.WaitGroup
	for range publishers {
		publishing.Go(func() {
			for pub := range due {
				p.publish(ctx, pub)
			}
		})
	}
	for _, pub := range p.load.schedule {
		if wait := time.Until(start.Add(pub.at)); wait > 0 {
			pause(ctx, wait)
		}
		due <- pub
	}
	close(due)
	publishing.Wait()
	return ctx.Err()
}

// publish returns when the publication is acknowledged, or ctx ends.
func (p *producer) publish(ctx context.Context, pub publication) {
	payment := p.load.payments[pub.payment]
	body, _ := json.Marshal(payment) // strings and a number: no error
	brokerID := fmt.Sprintf("%s/%d", payment.ID, pub.copy)
	for p.try(ctx, body, brokerID) != nil {
		if pause(ctx, publishPause); ctx.Err() != nil {
			return
		}
	}
	if pub.copy == 0 {
		p.firsts.Add(1)
	} else {
		p.copies.Add(1)
	}
}

// try publishes once. After an error the publish is in doubt.
func (p *producer) try(ctx context.Context, body []byte, brokerID string) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	_, err := p.js.Publish(ctx, p.subject, body, jetstream.WithMsgID(brokerID))
	return err
}
