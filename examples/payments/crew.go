package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	// readyBound bounds the start of the first workers.
	readyBound = 30 * time.Second
	// stopBound bounds the orderly end of the workers, which is not under test.
	stopBound = 2 * closeTimeout
)

// crew is the worker processes. A worker that ends by itself is an error.
type crew struct {
	role string
	args []string
	log  io.Writer   // gets what workers logged
	fail func(error) // called when a worker ends by itself

	watching sync.WaitGroup // one for each worker

	mu      sync.Mutex
	members []*member
	kills   int
}

// member is a worker that is meant to run until it is dismissed.
type member struct {
	*testbed.Worker
	dismissed atomic.Bool
}

// start starts n workers and waits until they consume.
func (c *crew) start(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	for range n {
		m, err := c.recruit()
		if err != nil {
			return err
		}
		c.members = append(c.members, m)
	}
	var err error
	for _, m := range c.members {
		err = errors.Join(err, m.WaitOutput(ctx, readyLine))
	}
	return err
}

func (c *crew) recruit() (*member, error) {
	w, err := testbed.StartWorker(c.role, testbed.WorkerConfig{Args: c.args})
	if err != nil {
		return nil, err
	}
	m := &member{Worker: w}
	c.watching.Go(func() { c.watch(m) })
	return m, nil
}

// watch waits for the end of a worker.
func (c *crew) watch(m *member) {
	<-m.Done()
	log := m.Stderr()
	_, _ = io.WriteString(c.log, log)
	if !m.dismissed.Load() {
		status := m.Wait(context.Background())
		c.fail(fmt.Errorf("worker %d ended by itself (%w): %s", m.PID(), status, log[max(0, len(log)-2000):]))
	}
}

// harass kills a worker in every period and replaces it, until ctx ends.
func (c *crew) harass(ctx context.Context, period time.Duration, r *rand.Rand) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := c.replace(r.IntN(len(c.members))); err != nil {
			return err
		}
	}
}

// replace kills the n-th worker and starts another one.
func (c *crew) replace(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[n].dismissed.Store(true)
	if err := c.members[n].Kill(); err != nil {
		return err
	}
	c.kills++
	m, err := c.recruit()
	if err != nil {
		return err
	}
	c.members[n] = m
	return nil
}

// killed is the number of kills so far.
func (c *crew) killed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kills
}

// stop lets the workers end, and kills those that take too long.
func (c *crew) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopBound)
	defer cancel()
	for _, m := range c.members {
		m.dismissed.Store(true)
		_ = m.Signal(syscall.SIGTERM) // it fails for a worker that is gone
	}
	for _, m := range c.members {
		if _ = m.Wait(ctx); ctx.Err() != nil {
			_ = m.Kill()
		}
	}
	c.watching.Wait()
}
