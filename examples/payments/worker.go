package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	// connections of a worker: one for each payment it applies, three for its
	// relay.
	connections = concurrency + 3
	// restartPause is between two tries to start while a server is away.
	restartPause = 100 * time.Millisecond
	// readyLine is what a worker prints when it consumes.
	readyLine = "ready"
)

// Roles of the processes that run this program.
const (
	roleOncemill = "payments"
	roleNaive    = "payments-naive"
)

func init() {
	testbed.Role(roleOncemill, func() { work(serve) })
	testbed.Role(roleNaive, func() { work(serveNaively) })
}

// workerConfig is what a worker process is started with, as JSON.
type workerConfig struct {
	Database, NATS      string // URLs
	Stream, Durable     string
	Requested, Commands string // subjects
	Group               bool   // payments that wait share a transaction
}

// service is what a worker runs until ctx ends. It returns earlier if it cannot
// start.
type service func(ctx context.Context, cfg workerConfig, pool *pgxpool.Pool, nc *nats.Conn) error

// work is the main function of a worker process. It runs the service until
// SIGTERM, and starts it again while a server is away.
func work(run service) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	cfg, err := receivedConfig()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for ctx.Err() == nil {
		if err := run.once(ctx, cfg); err != nil {
			slog.Warn("the service will start again", "error", err)
		}
		pause(ctx, restartPause)
	}
}

func receivedConfig() (cfg workerConfig, err error) {
	if len(testbed.Args()) != 1 {
		return cfg, errors.New("worker: its configuration must be its only argument")
	}
	if err := json.Unmarshal([]byte(testbed.Args()[0]), &cfg); err != nil {
		return cfg, fmt.Errorf("worker: decode its configuration: %w", err)
	}
	return cfg, nil
}

// once runs the service with connections of its own.
func (run service) once(ctx context.Context, cfg workerConfig) error {
	pool, err := testbed.NewPool(ctx, cfg.Database, func(c *pgxpool.Config) { c.MaxConns = connections })
	if err != nil {
		return err
	}
	defer pool.Close()
	nc, err := testbed.ConnectNATS(cfg.NATS)
	if err != nil {
		return err
	}
	defer nc.Close()
	return run(ctx, cfg, pool, nc)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
