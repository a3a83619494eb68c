package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"
)

// WorkerConfig configures a worker process; its zero value works.
type WorkerConfig struct {
	Args []string // what Args returns in the worker
	Env  []string // NAME=value, added to this process's environment
}

// Worker is a copy of this binary that runs a role in a process of its own, to
// be killed, paused and watched. The guard kills it when this process ends.
// Its methods may be called concurrently.
type Worker struct {
	proc           *child
	stdout, stderr output
}

// StartWorker starts a process that runs the role; see [Role].
func StartWorker(role string, cfg WorkerConfig) (*Worker, error) {
	if _, known := roles[role]; !known {
		return nil, fmt.Errorf("testbed: no role %q: call testbed.Role before Main or Init", role)
	}
	cmd, err := selfCommand(role, cfg.Args)
	if err != nil {
		return nil, err
	}
	w := &Worker{}
	cmd.Env = append(cmd.Env, cfg.Env...)
	cmd.Stdout, cmd.Stderr = &w.stdout, &w.stderr
	cmd.WaitDelay = 2 * time.Second            // a grandchild may keep the pipes open
	if _, err := cmd.StdinPipe(); err != nil { // its line to us; see exitWithParent
		return nil, fmt.Errorf("testbed: starting worker %q: %w", role, err)
	}
	if w.proc, err = startChild(cmd, "kill"); err != nil {
		return nil, fmt.Errorf("testbed: starting worker %q: %w", role, err)
	}
	return w, nil
}

// PID is the worker's process id.
func (w *Worker) PID() int { return w.proc.pid() }

// Wait returns when the worker has ended, with an *exec.ExitError if it failed
// or was killed, or when ctx has ended.
func (w *Worker) Wait(ctx context.Context) error {
	if err := w.proc.wait(ctx); err != nil {
		return err
	}
	return w.proc.err
}

// Done is closed when the worker has ended.
func (w *Worker) Done() <-chan struct{} { return w.proc.done }

// Kill ends the worker with SIGKILL and waits until it is gone. Killing one
// that has ended does nothing.
func (w *Worker) Kill() error {
	if err := w.proc.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-w.proc.done
	return nil
}

// Signal sends a signal; a worker that has ended gets none.
func (w *Worker) Signal(sig syscall.Signal) error { return w.proc.signal(sig) }

// Pause stops the worker with SIGSTOP, as a long pause of a machine would. On
// Linux it returns when the kernel says that the worker is stopped.
func (w *Worker) Pause(ctx context.Context) error {
	if err := w.proc.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return poll(ctx, "the worker has stopped", func() (bool, error) {
		state := processState(w.PID())
		if state == "Z" {
			return false, errors.New("testbed: pausing a worker: it has ended")
		}
		return state == "T" || state == "", nil
	})
}

// Resume lets a paused worker go on.
func (w *Worker) Resume() error { return w.proc.signal(syscall.SIGCONT) }

// Stdout is what the worker has written so far.
func (w *Worker) Stdout() string { return w.stdout.String() }

// Stderr is what the worker has written so far, a panic's trace included.
func (w *Worker) Stderr() string { return w.stderr.String() }

// WaitOutput returns when text has appeared in the worker's standard output.
// A worker that ends without having written it is an error that quotes the end
// of its standard error.
func (w *Worker) WaitOutput(ctx context.Context, text string) error {
	for {
		changed := w.stdout.changes()
		if strings.Contains(w.Stdout(), text) {
			return nil
		}
		select {
		case <-changed:
		case <-w.proc.done:
			if strings.Contains(w.Stdout(), text) {
				return nil
			}
			stderr := w.Stderr()
			return fmt.Errorf("testbed: waiting for a worker to write %q: it ended (%v): %s", text, w.proc.cmd.ProcessState, stderr[max(0, len(stderr)-2000):])
		case <-ctx.Done():
			return fmt.Errorf("testbed: waiting for a worker to write %q: %w", text, ctx.Err())
		}
	}
}

// output collects what a process writes and tells who waits for more.
type output struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed by the next write; nil when nobody waits
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) changes() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}
