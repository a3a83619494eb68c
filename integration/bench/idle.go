package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// idleShare is how much of a core a relay may use that has nothing to do.
const idleShare = 0.01

// idleBench measures the processor time of a relay and of its connections'
// server processes. It reads /proc: only on Linux.
func idleBench() Bench {
	return Bench{
		Name: "idle",
		Task: "a relay with nothing to send, and its database backends: microseconds of processor time per second (10,000 are 1 % of a core)",
		Variants: []Variant{
			{Name: "oncemill-1", Run: idleRelay, Own: Baseline{"1 % of a core", 1}},
		},
	}
}

// idleRelay's Ratio is the allowed time to the used one.
func idleRelay(ctx context.Context, env *Env) (s Sample, err error) {
	err = env.database(ctx, relayConnections, func(url string, pool *pgxpool.Pool) error {
		return env.stream(ctx, func(st *testbed.Stream) error {
			relay, err := newRelay(pool, st, outbox.RelayConfig{})
			if err != nil {
				return err
			}
			defer background(ctx, relay.Run)()
			held := func() (bool, error) { return relay.Stats().Lanes == relayLanes, nil }
			if err := await(ctx, shareBound, held); err != nil {
				return fmt.Errorf("wait for the relay to take its lanes: %w", err)
			}
			s, err = idleFor(ctx, pool, url, env.Scale.Idle)
			return err
		})
	})
	return s, err
}

func idleFor(ctx context.Context, pool *pgxpool.Pool, url string, d time.Duration) (s Sample, err error) {
	pids, err := backends(ctx, pool, url)
	if err != nil {
		return s, err
	}
	start := time.Now()
	before, err := processorTime(pids)
	if err != nil {
		return s, err
	}
	if err := sleep(ctx, d); err != nil {
		return s, err
	}
	after, err := processorTime(pids)
	if err != nil {
		return s, err
	}
	used, elapsed := max(after-before, time.Microsecond), time.Since(start)
	return Sample{Ops: int(used.Microseconds()), Elapsed: elapsed, Ratio: idleShare * float64(elapsed) / float64(used)}, nil
}

// backends are the server processes of the pool's connections. It asks by a
// connection of its own, so as not to take one of theirs.
func backends(ctx context.Context, pool *pgxpool.Pool, url string) (pids []int, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, _ := conn.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`) // its error comes from rows
	pids, err = pgx.CollectRows(rows, pgx.RowTo[int])
	if err == nil && len(pids) < int(pool.Stat().TotalConns()) {
		err = fmt.Errorf("%d backends for %d connections", len(pids), pool.Stat().TotalConns())
	}
	return pids, err
}

// processorTime is that of this process and of others, so far.
func processorTime(pids []int) (time.Duration, error) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return 0, err
	}
	sum := time.Duration(own.Utime.Nano() + own.Stime.Nano())
	for _, pid := range pids {
		used, err := processorTimeOf(pid)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// userHertz is the unit of times in /proc: it is the same on all of Linux.
const userHertz = 100

// processorTimeOf reads /proc/pid/stat: the 14th and 15th field, counted from
// behind the name, which may hold blanks.
func processorTimeOf(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of a backend: %w", err)
	}
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the processor time of a backend: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / userHertz, nil
}
