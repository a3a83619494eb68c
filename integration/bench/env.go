package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/integration/testbed"
)

// scale is how much a run does.
type scale struct {
	Rounds int
	// WarmUp and Duration are the unmeasured and the measured part of a run
	// that goes by time.
	WarmUp, Duration time.Duration
	// Rows are what a relay and the forwarder drain.
	Rows int
	// Shrink divides the rows that growth loads before.
	Shrink int
	// Idle is how long a relay that has nothing to do is watched.
	Idle time.Duration
	// Short leaves the long variants out.
	Short bool
}

var (
	fullScale  = scale{Rounds: 5, WarmUp: time.Second, Duration: 4 * time.Second, Rows: 50_000, Shrink: 1, Idle: 30 * time.Second}
	quickScale = scale{Rounds: 3, WarmUp: 500 * time.Millisecond, Duration: 1500 * time.Millisecond, Rows: 50_000, Shrink: 1, Idle: 10 * time.Second, Short: true}
)

// Env is what runs share.
type Env struct {
	Scale    scale
	Postgres *testbed.Postgres
	NATS     *testbed.NATS

	kept map[string]keptDatabase
}

// postgresSettings keep the server's own checkpoints out of the runs; fsync
// and synchronous_commit stay on.
var postgresSettings = map[string]string{"max_wal_size": "8GB", "checkpoint_timeout": "1h"}

// newEnv starts the servers, each a process of its own. testbed.Close ends
// them.
func newEnv(ctx context.Context, s scale) (*Env, error) {
	pg, err := testbed.StartPostgres(ctx, testbed.PostgresConfig{Settings: postgresSettings})
	if err != nil {
		return nil, err
	}
	nats, err := testbed.StartNATSProcess(ctx, testbed.NATSConfig{})
	if err != nil {
		return nil, err
	}
	return &Env{Scale: s, Postgres: pg, NATS: nats}, nil
}

// database calls fn with a pool of that many connections on a new database
// with oncemill's schema, and drops it.
func (e *Env) database(ctx context.Context, connections int, fn func(url string, pool *pgxpool.Pool) error) (err error) {
	k, err := e.openKept(ctx, connections)
	defer func() { err = firstError(err, k.close(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	return fn(k.db.URL, k.pool)
}

// keptDatabase is a database with oncemill's schema.
type keptDatabase struct {
	db   *testbed.DB
	pool *pgxpool.Pool
}

// openKept makes one, which the caller closes, also after an error.
func (e *Env) openKept(ctx context.Context, connections int) (k keptDatabase, err error) {
	if k.db, err = e.Postgres.OpenDB(ctx); err != nil {
		return k, err
	}
	if k.pool, err = newPool(ctx, k.db.URL, connections); err != nil {
		return k, err
	}
	return k, oncemill.Migrate(ctx, k.pool, oncemill.MigrateConfig{})
}

func (k keptDatabase) close(ctx context.Context) error {
	if k.pool != nil {
		k.pool.Close()
	}
	if k.db == nil {
		return nil
	}
	return k.db.Close(ctx)
}

// keep returns the pool of a database that fill filled once and that stays
// until the benchmark ends.
func (e *Env) keep(ctx context.Context, name string, connections int, fill func(*pgxpool.Pool) error) (*pgxpool.Pool, error) {
	if k, ok := e.kept[name]; ok {
		return k.pool, nil
	}
	k, err := e.openKept(ctx, connections)
	if err == nil {
		err = fill(k.pool)
	}
	if err != nil {
		return nil, errors.Join(err, k.close(context.WithoutCancel(ctx)))
	}
	if e.kept == nil {
		e.kept = map[string]keptDatabase{}
	}
	e.kept[name] = k
	return k.pool, nil
}

// dropKept drops what keep made. The servers are thrown away in the end: an
// error here is no matter.
func (e *Env) dropKept(ctx context.Context) {
	for _, k := range e.kept {
		_ = k.close(ctx)
	}
	e.kept = nil
}

// newPool returns a pool of that many connections.
func newPool(ctx context.Context, url string, connections int) (*pgxpool.Pool, error) {
	return testbed.NewPool(ctx, url, func(cfg *pgxpool.Config) {
		cfg.MaxConns = int32(connections) // Constants of this package.
		cfg.MinConns = cfg.MaxConns
	})
}

// stream calls fn with a new stream on file storage, and deletes it.
func (e *Env) stream(ctx context.Context, fn func(*testbed.Stream) error) (err error) {
	s, err := e.NATS.OpenStream(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.Close(context.WithoutCancel(ctx))) }()
	return fn(s)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkpoint lets each run begin with the same work left to the server.
func checkpoint(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, `CHECKPOINT`); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// walPosition is how many bytes of log the server has written.
func walPosition(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	var n int64
	err := pool.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("read the log position: %w", err)
	}
	return n, nil
}

// measured runs fn and adds the log that it wrote to its sample.
func measured(ctx context.Context, pool *pgxpool.Pool, fn func() (Sample, error)) (Sample, error) {
	before, err := walPosition(ctx, pool)
	if err != nil {
		return Sample{}, err
	}
	s, err := fn()
	if err != nil {
		return s, err
	}
	after, err := walPosition(ctx, pool)
	s.WAL = after - before
	return s, err
}

// inBatches calls fn for 0, 1, … n-1 in groups of at most size.
func inBatches(n, size int, fn func(from, to int) error) error {
	for from := 0; from < n; from += size {
		if err := fn(from, min(from+size, n)); err != nil {
			return err
		}
	}
	return nil
}
