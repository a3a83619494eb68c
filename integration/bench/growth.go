package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedup"
)

const (
	growthHandlerInFlight, growthQueueInFlight = 32, 128
	// history is how long ago the events began that an inbox remembers, and
	// retention how long a purger leaves them there: all loaded ones are over.
	history, retention = 30 * 24 * time.Hour, 24 * time.Hour
	// purgedRows is how many a purge deletes.
	purgedRows = 1_000_000
)

// growthBench shows what handling costs in an inbox that has grown, and what
// deleting from it costs beside.
func growthBench() Bench {
	b := Bench{Name: "growth", Task: "as inbox, with that many rows in the inbox before; purge deletes 1,000,000 of them beside oncemill-queue"}
	for _, way := range []struct {
		name string
		task inboxTask
		must float64
	}{
		{"oncemill-handler", inboxTask{on: oncemillHandler, inFlight: growthHandlerInFlight}, 0.85},
		{"oncemill-queue", inboxTask{on: oncemillQueue, inFlight: growthQueueInFlight}, 0.85},
		{"oncemill-queue-random", inboxTask{on: oncemillQueue, inFlight: growthQueueInFlight, random: true}, 0.65},
	} {
		empty := way.name + "-0"
		b.Variants = append(b.Variants, Variant{Name: empty, InFlight: way.task.inFlight, Run: way.task.run})
		for _, millions := range []int{1, 5, 20} {
			b.Variants = append(b.Variants, Variant{
				Name: fmt.Sprintf("%s-%dM", way.name, millions), InFlight: way.task.inFlight, Long: millions > 1,
				Against: []Baseline{{empty, way.must}}, Run: way.task.grown(millions * 1_000_000),
			})
		}
	}
	b.Variants = append(b.Variants, Variant{Name: "purge", InFlight: growthQueueInFlight, Own: Baseline{"load alone", 0.85}, Run: purgeRun})
	return b
}

// grown is the task in an inbox of that many rows, which runs share.
func (t inboxTask) grown(rows int) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, env *Env) (s Sample, err error) {
		name := fmt.Sprint(rows, t.random)
		pool, err := env.keep(ctx, name, inboxConnections+1, func(pool *pgxpool.Pool) error {
			return fillInbox(ctx, pool, rows/env.Scale.Shrink, t.random)
		})
		if err != nil {
			return s, err
		}
		if _, err := pool.Exec(ctx, `DROP SCHEMA IF EXISTS bench CASCADE`); err != nil {
			return s, fmt.Errorf("clear the tables: %w", err)
		}
		if err := makeInboxTables(ctx, pool); err != nil {
			return s, err
		}
		return t.measure(ctx, env.Scale, pool, pool)
	}
}

// fillInbox writes rows of events long ago, in the order in which they came.
func fillInbox(ctx context.Context, pool *pgxpool.Pool, rows int, random bool) error {
	begin := time.Now().Add(-history)
	step := (history - 2*retention) / time.Duration(rows)
	fingerprint := make([]byte, 32)
	n := 0
	columns := []string{"id", "state", "fingerprint_version", "at", "fingerprint", "scope", "operation"}
	next := func() ([]any, error) {
		if n == rows {
			return nil, nil
		}
		at := begin.Add(time.Duration(n) * step)
		n++
		id := uuid.New()
		if !random {
			id = idAt(at)
		}
		key, err := dedup.NewKey("bench", "book", id.String())
		if err != nil {
			return nil, err
		}
		for i := 0; i < len(fingerprint); i += 8 {
			binary.LittleEndian.PutUint64(fingerprint[i:], rand.Uint64())
		}
		return []any{key.InboxID(), int16(1), int32(1), at, fingerprint, "bench", "book"}, nil
	}
	if _, err := pool.CopyFrom(ctx, pgx.Identifier{"oncemill", "inbox"}, columns, pgx.CopyFromFunc(next)); err != nil {
		return fmt.Errorf("fill the inbox: %w", err)
	}
	if _, err := pool.Exec(ctx, `VACUUM ANALYZE oncemill.inbox`); err != nil {
		return fmt.Errorf("vacuum the inbox: %w", err)
	}
	return nil
}

// idAt is a UUIDv7 of another time than now.
func idAt(t time.Time) uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	ms := uint64(t.UnixMilli()) // after 1970
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	return id
}

// purgeRun measures the load alone, then beside a purge, from its first to its
// last page.
func purgeRun(ctx context.Context, env *Env) (s Sample, err error) {
	err = env.database(ctx, inboxConnections+2, func(_ string, pool *pgxpool.Pool) error {
		if err := makeInboxTables(ctx, pool); err != nil {
			return err
		}
		rows := purgedRows / env.Scale.Shrink
		if err := fillInbox(ctx, pool, rows, false); err != nil {
			return err
		}
		s, err = purgeBeside(ctx, env, pool, rows)
		return err
	})
	return s, err
}

// besideSlice is for how long the load runs at a time, alone and beside the
// purge, before it is asked whether that is enough.
const besideSlice = 100 * time.Millisecond

// inSlices runs the load until enough says so.
func inSlices(load func(time.Duration) (Sample, error), enough func() bool) (sum Sample, err error) {
	for {
		slice, err := load(besideSlice)
		if err != nil {
			return sum, err
		}
		sum.Ops, sum.Elapsed = sum.Ops+slice.Ops, sum.Elapsed+slice.Elapsed
		if enough() {
			return sum, nil
		}
	}
}

func purgeBeside(ctx context.Context, env *Env, pool *pgxpool.Pool, rows int) (s Sample, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h, err := oncemillQueue(ctx, pool)
	if err != nil {
		return s, err
	}
	var src source
	load := func(d time.Duration) (Sample, error) { return feed(ctx, growthQueueInFlight, d, h, src.next) }
	if _, err := load(env.Scale.WarmUp); err != nil {
		return s, err
	}
	if err := checkpoint(ctx, pool); err != nil {
		return s, err
	}
	start := time.Now()
	alone, err := inSlices(load, func() bool { return time.Since(start) >= env.Scale.Duration })
	if err != nil {
		return s, err
	}
	inbox, err := dedup.NewInbox(dedup.InboxConfig{Retention: retention})
	if err != nil {
		return s, err
	}
	purger, err := dedup.NewPurger(inbox, dedup.Pgx(pool), dedup.PurgeConfig{Operations: []string{"book"}})
	if err != nil {
		return s, err
	}
	var purge Sample
	purged := make(chan error, 1)
	go func() {
		start := time.Now()
		stats, err := purger.RunOnce(ctx)
		purge = Sample{Ops: int(stats.Deleted), Elapsed: time.Since(start)}
		purged <- err
	}()
	beside, err := inSlices(load, func() bool { return len(purged) > 0 })
	if err != nil {
		return s, err
	}
	if err := <-purged; err != nil {
		return s, err
	}
	if purge.Ops != rows {
		return s, fmt.Errorf("%d rows were purged, not %d", purge.Ops, rows)
	}
	purge.Ratio = beside.perSecond() / alone.perSecond()
	return purge, booked(ctx, pool, src.fresh.Load())
}
