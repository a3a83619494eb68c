package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	// workers is how many processes there are at a time.
	workers = 3
	// readyBound bounds the start of the first ones.
	readyBound = 30 * time.Second
	// stopBound bounds their orderly end.
	stopBound = 2 * closeTimeout
)

// crew is the worker processes. It is for one goroutine.
type crew struct {
	args    []string
	members []*testbed.Worker
}

// start starts the workers and waits until they consume.
func (c *crew) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	for range workers {
		w, err := testbed.StartWorker(workerRole, testbed.WorkerConfig{Args: c.args})
		if err != nil {
			return err
		}
		c.members = append(c.members, w)
	}
	var err error
	for _, w := range c.members {
		err = errors.Join(err, w.WaitOutput(ctx, readyLine))
	}
	return err
}

// replace kills the n-th worker and starts another one.
func (c *crew) replace(n int) error {
	if err := c.ended(n); err != nil {
		return err
	}
	if err := c.members[n].Kill(); err != nil {
		return err
	}
	w, err := testbed.StartWorker(workerRole, testbed.WorkerConfig{Args: c.args})
	if err == nil {
		c.members[n] = w
	}
	return err
}

// ended says how a worker ended that was not to.
func (c *crew) ended(n int) error {
	select {
	case <-c.members[n].Done():
		log := c.members[n].Stderr()
		return fmt.Errorf("worker %d ended by itself: %s", n, log[max(0, len(log)-2000):])
	default:
		return nil
	}
}

// stop lets the workers end, kills those that take too long, and tells of those
// that had ended before.
func (c *crew) stop() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stopBound)
	defer cancel()
	for n, w := range c.members {
		err = errors.Join(err, c.ended(n))
		_ = w.Signal(syscall.SIGTERM) // it fails for a worker that is gone
	}
	for _, w := range c.members {
		if _ = w.Wait(ctx); ctx.Err() != nil {
			_ = w.Kill()
		}
	}
	return err
}
