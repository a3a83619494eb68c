package main

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	shortestOutage = 300 * time.Millisecond
	longestOutage  = time.Second
)

// outage stops a server as a crash would, and starts it again.
type outage struct {
	server      string
	begins      time.Duration // after the start
	lasts       time.Duration
	stop, start func(context.Context) error

	// struck: it happened, while messages were outstanding.
	struck bool
}

// newOutages draws when the two servers go away: each in a part of its own of
// the time in which payments are published for the first time.
func newOutages(b *bed, o options) []*outage {
	r := random(o.seed, randomOutages)
	publishing := time.Duration(o.intents) * time.Second / time.Duration(o.rate)
	draw := func(from, to float64) time.Duration {
		return time.Duration((from + (to-from)*r.Float64()) * float64(publishing))
	}
	lasts := func() time.Duration {
		return shortestOutage + time.Duration(r.Int64N(int64(longestOutage-shortestOutage)))
	}
	return []*outage{
		{server: "PostgreSQL", begins: draw(0.2, 0.4), lasts: lasts(),
			stop:  func(ctx context.Context) error { return b.postgres.Stop(ctx, testbed.Immediate) },
			start: b.postgres.Start},
		{server: "NATS", begins: draw(0.6, 0.8), lasts: lasts(),
			stop:  b.nats.Kill,
			start: b.nats.Start},
	}
}

// count is how often the outage struck.
func (o *outage) count() int {
	if o.struck {
		return 1
	}
	return 0
}

// strike lets the outages happen, one after the other.
func (d *demo) strike(ctx context.Context, published <-chan struct{}) error {
	for _, o := range d.outages {
		pause(ctx, time.Until(d.start.Add(o.begins)))
		if !d.awaitOutstanding(ctx, published) {
			return nil
		}
		if err := o.stop(ctx); err != nil {
			return err
		}
		d.console.note("%s is gone, as in a crash", o.server)
		pause(ctx, o.lasts)
		if err := o.start(ctx); err != nil {
			return err
		}
		d.console.note("%s is back", o.server)
		o.struck = true
	}
	return nil
}

// awaitOutstanding waits until a message is outstanding. None will be once all
// were published and settled.
func (d *demo) awaitOutstanding(ctx context.Context, published <-chan struct{}) bool {
	for ctx.Err() == nil {
		complete := isClosed(published)
		s, err := d.bed.look(ctx)
		switch {
		case err == nil && s.unsettled > 0:
			return true
		case err == nil && complete:
			return false
		}
		pause(ctx, lookEvery/10)
	}
	return false
}
