package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	// processRole is the role of a child that handles messages.
	processRole = "bench-inbox"
	// processInFlight is how many each process has in flight.
	processInFlight = 128
	// processBound is how long a child may take beyond its warm-up and run.
	processBound = time.Minute
	// stormShare is what share of the operations may end in a deadlock.
	stormShare = 0.001
)

// processWays are those that are measured in processes of their own.
var processWays = map[string]handlerOn{"pgx-group": pgxGroup, "oncemill-queue": oncemillQueue, "oncemill-set": oncemillSet}

// processesBench compares two processes, which update the same accounts, with
// one.
func processesBench() Bench {
	b := Bench{Name: "inbox-2proc", Task: "as inbox, by two processes, each with 128 in flight; -1proc is one"}
	for _, way := range []struct {
		name string
		must float64
	}{{"pgx-group", 0}, {"oncemill-queue", 0.9}, {"oncemill-set", 0.9}} {
		alone := way.name + "-1proc"
		b.Variants = append(b.Variants,
			Variant{Name: alone, InFlight: processInFlight, Run: inboxProcesses(1, way.name)},
			Variant{Name: way.name, InFlight: processInFlight, Run: inboxProcesses(2, way.name), Against: []Baseline{{alone, way.must}}})
	}
	return b
}

// processTask is the argument of a child.
type processTask struct {
	URL, Way         string
	InFlight         int
	WarmUp, Duration time.Duration
}

// processResult is what a child prints in the end.
type processResult struct {
	Ops     int
	Elapsed time.Duration
	Events  int64
}

// Words of a child on its output.
const (
	processReady = "ready\n"
	processDone  = "done "
)

// runProcess is a child: it warms up, says so, waits for SIGUSR1, and handles
// messages.
func runProcess() {
	if err := process(context.Background(), testbed.Args()[0]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func process(ctx context.Context, arg string) error {
	var task processTask
	if err := json.Unmarshal([]byte(arg), &task); err != nil {
		return err
	}
	begin := make(chan os.Signal, 1)
	signal.Notify(begin, syscall.SIGUSR1)
	pool, err := newPool(ctx, task.URL, min(task.InFlight, inboxConnections)+1)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h, err := processWays[task.Way](ctx, pool)
	if err != nil {
		return err
	}
	var src source
	if _, err := feed(ctx, task.InFlight, task.WarmUp, h, src.next); err != nil {
		return err
	}
	fmt.Print(processReady)
	<-begin
	s, err := feed(ctx, task.InFlight, task.Duration, h, src.next)
	if err != nil {
		return err
	}
	line, err := json.Marshal(processResult{s.Ops, s.Elapsed, src.fresh.Load()})
	if err != nil {
		return err
	}
	fmt.Printf("%s%s\n", processDone, line)
	return nil
}

// inboxProcesses measures n processes on one new database.
func inboxProcesses(n int, way string) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, env *Env) (s Sample, err error) {
		err = env.database(ctx, 1, func(url string, pool *pgxpool.Pool) error {
			if err := makeInboxTables(ctx, pool); err != nil {
				return err
			}
			arg, err := json.Marshal(processTask{url, way, processInFlight, env.Scale.WarmUp, env.Scale.Duration})
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, processBound+env.Scale.WarmUp+env.Scale.Duration)
			defer cancel()
			var events int64
			s, events, err = together(ctx, pool, n, string(arg))
			if err != nil {
				return err
			}
			if err := calm(ctx, pool, s.Ops); err != nil {
				return err
			}
			return booked(ctx, pool, events)
		})
		return s, err
	}
}

// together starts n children and measures them from when all are warm.
func together(ctx context.Context, pool *pgxpool.Pool, n int, arg string) (s Sample, events int64, err error) {
	children := make([]*testbed.Worker, n)
	for i := range children {
		w, err := testbed.StartWorker(processRole, testbed.WorkerConfig{Args: []string{arg}})
		if err != nil {
			return s, 0, err
		}
		defer func() { _ = w.Kill() }() // it fails for one that has ended
		children[i] = w
	}
	for _, w := range children {
		if err := w.WaitOutput(ctx, processReady); err != nil {
			return s, 0, err
		}
	}
	if err := checkpoint(ctx, pool); err != nil {
		return s, 0, err
	}
	s, err = measured(ctx, pool, func() (all Sample, err error) {
		for _, w := range children {
			if err := w.Signal(syscall.SIGUSR1); err != nil {
				return all, err
			}
		}
		for _, w := range children {
			one, err := resultOf(ctx, w)
			if err != nil {
				return all, err
			}
			all.Ops, all.Elapsed, events = all.Ops+one.Ops, max(all.Elapsed, one.Elapsed), events+one.Events
		}
		return all, nil
	})
	return s, events, err
}

func resultOf(ctx context.Context, w *testbed.Worker) (r processResult, err error) {
	if err := w.Wait(ctx); err != nil {
		return r, fmt.Errorf("a process failed: %w: %s", err, w.Stderr())
	}
	_, line, _ := strings.Cut(w.Stdout(), processDone)
	return r, json.Unmarshal([]byte(line), &r)
}

// calm makes sure that hardly any transaction ended in a deadlock: each costs
// its victims the second that the server waits before it looks for one.
func calm(ctx context.Context, pool *pgxpool.Pool, ops int) error {
	var deadlocks int
	err := pool.QueryRow(ctx, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&deadlocks)
	if err == nil && float64(deadlocks) > stormShare*float64(ops) {
		err = fmt.Errorf("%d deadlocks in %d operations", deadlocks, ops)
	}
	return err
}
