package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// settleBound is how long after the last fault everything must be settled:
	// long for a busy machine.
	settleBound = 2 * time.Minute
	// lookEvery is how often that is looked at.
	lookEvery = 200 * time.Millisecond
	// collectBound bounds the check.
	collectBound = time.Minute
)

// soak is one run.
type soak struct {
	bed    *bed
	crew   *crew
	faults map[string]int // how often each happened
}

func (s *soak) count(fault string) { s.faults[fault]++ }

// result is what a run came to.
type result struct {
	Seed    uint64         `json:"seed"`
	Seconds float64        `json:"seconds"`
	Events  int            `json:"events"`
	Copies  int            `json:"copies"`
	Effects int            `json:"effects"` // rows of the ledger
	Faults  map[string]int `json:"faults"`
	verdict
}

// Random streams of a run: one does not change with another.
const (
	randomEvents uint64 = iota
	randomFaults
)

// run publishes events for that long, under faults, lets everything settle, and
// judges. An error says that there is no result.
func run(ctx context.Context, seed uint64, d time.Duration) (r result, err error) {
	start := time.Now()
	b, err := openBed(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	s := &soak{bed: b, crew: &crew{args: b.worker}, faults: map[string]int{}}
	p := &producer{js: b.events.JS, subject: b.events.Subject("new")}
	if err := s.work(ctx, seed, d, p); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, collectBound)
	defer cancel()
	h, err := b.collect(ctx, p.events)
	if err != nil {
		return r, err
	}
	return result{
		Seed: seed, Seconds: time.Since(start).Seconds(), Events: len(p.events), Copies: p.copies,
		Effects: len(h.ledger), Faults: s.faults, verdict: judge(h),
	}, nil
}

// work ends when everything is settled or the bound is over, with no worker
// left.
func (s *soak) work(ctx context.Context, seed uint64, d time.Duration, p *producer) (err error) {
	defer func() { err = errors.Join(err, s.crew.stop()) }()
	if err := s.crew.start(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stormCtx, calm := context.WithTimeout(ctx, d)
	defer calm()
	var storm, publish error
	var both sync.WaitGroup
	both.Go(func() {
		if storm = s.storm(stormCtx, rand.New(rand.NewPCG(seed, randomFaults))); storm != nil {
			cancel()
		}
	})
	both.Go(func() { publish = p.run(ctx, d, rand.New(rand.NewPCG(seed, randomEvents))) })
	both.Wait()
	if storm != nil {
		return storm
	}
	if publish != nil {
		return publish
	}
	return s.settle(ctx)
}

// settle waits until nothing is outstanding. If something is in the end, the
// history shows it.
func (s *soak) settle(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for end := time.Now().Add(settleBound); time.Now().Before(end); {
		if now, err := s.bed.look(ctx); err == nil && now == (state{}) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
