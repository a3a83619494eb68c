package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oncemill/oncemill/integration/testbed"
)

// fault is something that happens to a run.
type fault struct {
	name string
	// weight is how often it happens for each time that the rarest does.
	weight int
	// happen ends with the servers and workers as they were. It returns
	// errMissed if nothing happened.
	happen func(ctx context.Context, s *soak, r *rand.Rand) error
}

// errMissed says that a fault had nothing to strike.
var errMissed = errors.New("nothing came along to strike")

// faults are all, each of which may strike at any moment of a transaction.
var faults = []fault{
	{"kill a worker", 4, func(ctx context.Context, s *soak, r *rand.Rand) error { return s.crew.replace(r.IntN(workers)) }},
	{"suspend a worker", 2, suspend},
	{"cut before a commit", 3, func(ctx context.Context, s *soak, r *rand.Rand) error {
		return awaitFault(ctx, s.bed.databaseLine.CutBeforeCommit(1+r.IntN(mostCommits)))
	}},
	{"cut after a commit", 3, func(ctx context.Context, s *soak, r *rand.Rand) error {
		return awaitFault(ctx, s.bed.databaseLine.CutAfterCommit(1+r.IntN(mostCommits)))
	}},
	{"cut the database", 1, func(_ context.Context, s *soak, _ *rand.Rand) error { s.bed.databaseLine.Cut(); return nil }},
	{"cut NATS", 1, func(_ context.Context, s *soak, _ *rand.Rand) error { s.bed.natsLine.Cut(); return nil }},
	{"crash PostgreSQL", 1, func(ctx context.Context, s *soak, r *rand.Rand) error {
		return outage(ctx, r, func(ctx context.Context) error { return s.bed.postgres.Stop(ctx, testbed.Immediate) }, s.bed.postgres.Start)
	}},
	{"kill NATS", 1, func(ctx context.Context, s *soak, r *rand.Rand) error {
		return outage(ctx, r, s.bed.nats.Kill, s.bed.nats.Start)
	}},
}

const (
	// mostCommits is how many commits may pass before one that is cut.
	mostCommits = 50
	// commitWait bounds the wait for that one.
	commitWait = 2 * time.Second
	// Suspensions are shorter and longer than what a worker holds is its own.
	shortestSuspension, longestSuspension = 200 * time.Millisecond, 2 * ackWait
	shortestOutage, longestOutage         = 100 * time.Millisecond, time.Second
)

// draw returns a duration between two.
func draw(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}

// suspend stops a worker in the middle of whatever it does, and lets it go on
// when others may have taken over.
func suspend(ctx context.Context, s *soak, r *rand.Rand) error {
	w := s.crew.members[r.IntN(workers)]
	if err := w.Pause(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	pause(ctx, draw(r, shortestSuspension, longestSuspension))
	return w.Resume()
}

func awaitFault(ctx context.Context, f *testbed.Fault) error {
	select {
	case <-f.Done():
	case <-ctx.Done():
	case <-time.After(commitWait):
	}
	f.Disarm()
	if f.Fired() == 0 {
		return errMissed
	}
	return nil
}

func outage(ctx context.Context, r *rand.Rand, stop, start func(context.Context) error) error {
	whole := context.WithoutCancel(ctx)
	if err := stop(whole); err != nil {
		return err
	}
	pause(ctx, draw(r, shortestOutage, longestOutage))
	return start(whole)
}

const shortestCalm, longestCalm = 100 * time.Millisecond, time.Second

// storm has faults happen, one after the other, until ctx ends. Each round has
// every fault as often as its weight says, in an order of its own.
func (s *soak) storm(ctx context.Context, r *rand.Rand) error {
	for {
		for _, f := range round(r) {
			pause(ctx, draw(r, shortestCalm, longestCalm))
			if ctx.Err() != nil {
				return nil
			}
			switch err := f.happen(ctx, s, r); {
			case errors.Is(err, errMissed):
			case err != nil:
				return fmt.Errorf("%s: %w", f.name, err)
			default:
				s.count(f.name)
			}
		}
	}
}

// round is the faults in the order in which they happen next.
func round(r *rand.Rand) (list []fault) {
	for _, f := range faults {
		for range f.weight {
			list = append(list, f)
		}
	}
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
