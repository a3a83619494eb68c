package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// lookEvery is how often the state is read, and shown.
	lookEvery = 200 * time.Millisecond
	// settleBound is how long after the last publish was due everything must be
	// settled: long for a busy machine.
	settleBound = 150 * time.Second
	// collectBound bounds the check.
	collectBound = time.Minute
)

// errUnsettled ends a run that takes too long. It is checked all the same.
var errUnsettled = errors.New("not everything was settled in time")

// demo is one run.
type demo struct {
	options
	console  *console
	bed      *bed
	crew     *crew
	producer *producer
	outages  []*outage
	start    time.Time // of publishing
	last     state
}

// run runs the demo. The error says that there is no result.
func run(ctx context.Context, o options, c *console) (r result, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	c.note("starting PostgreSQL, NATS and %d workers", o.workers)
	b, err := openBed(ctx, o)
	if err != nil {
		return r, cause(ctx, err)
	}
	defer func() {
		if closed := b.close(); err == nil {
			err = closed
		}
	}()
	log := io.Discard
	if o.verbose {
		log = c
	}
	d := &demo{options: o, console: c, bed: b}
	d.crew = &crew{role: o.role(), args: b.workerArgs(), log: log, fail: fail}
	d.producer = &producer{js: b.payments.JS, subject: b.payments.Subject("requested"), load: newLoad(o)}
	if !o.calm {
		d.outages = newOutages(b, o)
	}
	took, err := d.work(ctx)
	if err != nil && !errors.Is(err, errUnsettled) {
		return r, cause(ctx, err)
	}
	r, err = d.check(ctx, took, err)
	return r, cause(ctx, err)
}

// cause is why ctx ended, if err is only a consequence of that.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// work starts the workers, storms them until everything is settled, and stops
// them. It returns how long that took from the first publish.
func (d *demo) work(ctx context.Context) (time.Duration, error) {
	defer d.crew.stop()
	if err := d.crew.start(ctx, d.workers); err != nil {
		return 0, err
	}
	d.console.note("publishing %d payments, %d per second", d.intents, d.rate)
	d.start = time.Now()
	return d.storm(ctx)
}

// storm publishes, kills workers and stops servers until everything is settled.
func (d *demo) storm(ctx context.Context) (time.Duration, error) {
	ctx, timedOut := context.WithTimeoutCause(ctx, d.producer.load.length()+settleBound, errUnsettled)
	defer timedOut()
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	background := func(f func(context.Context) error) <-chan struct{} {
		ended := make(chan struct{})
		running.Go(func() {
			defer close(ended)
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
		return ended
	}
	published := background(func(ctx context.Context) error { return d.producer.run(ctx, d.start) })
	struck := background(func(ctx context.Context) error { return d.strike(ctx, published) })
	if d.killEvery > 0 && !d.calm {
		background(func(ctx context.Context) error {
			return d.crew.harass(ctx, d.killEvery, random(d.seed, randomVictims))
		})
	}
	return d.settle(ctx, published, struck)
}

// settle waits until everything was published, each outage is over, and nothing
// is outstanding.
func (d *demo) settle(ctx context.Context, published, struck <-chan struct{}) (time.Duration, error) {
	defer d.console.show("")
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return time.Since(d.start), context.Cause(ctx)
		case <-tick.C:
		}
		complete := isClosed(published) && isClosed(struck) // before the look
		s, err := d.bed.look(ctx)
		if err == nil {
			d.last = s
		}
		d.console.show(d.progress())
		if complete && err == nil && s.settled() {
			return time.Since(d.start), nil
		}
	}
}

func (d *demo) progress() string {
	return fmt.Sprintf("%5.1fs  sent %d  delivered %d  applied %d  relayed %d  killed %d",
		time.Since(d.console.start).Seconds(), d.producer.firsts.Load()+d.producer.copies.Load(),
		d.last.deliveries, d.last.entries, d.last.relayed, d.crew.killed())
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// check holds what the run left behind against the producer's list.
func (d *demo) check(ctx context.Context, took time.Duration, unsettled error) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, collectBound)
	defer cancel()
	d.console.note("checking the ledger, the balances and the commands")
	e, err := d.bed.collect(ctx)
	if err != nil {
		return result{}, err
	}
	v := judge(d.producer.load.payments, e)
	r := newResult(d.options, e, v, took)
	r.republished = int(d.producer.copies.Load())
	r.WorkerKills = d.crew.killed()
	if !d.calm {
		r.DatabaseRestarts, r.BrokerRestarts = d.outages[0].count(), d.outages[1].count()
	}
	r.broken = complain(r.broken, unsettled != nil, "%v: %d messages and %d commands are outstanding", unsettled, d.last.unsettled, d.last.queued)
	r.examine(d.options, v)
	return r, nil
}
