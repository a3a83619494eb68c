package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// peersInFlight is what was best for those that have no queue between message
// and work.
const peersInFlight = 8

// peers are other projects that do the inbox's task, each at the number in
// flight that was best for it among 8, 32 and 128, with the settings that its
// documentation recommends.
func peers() []Variant {
	against := []Baseline{{"pgx-message", 0}}
	return []Variant{
		{Name: "watermill-deduplicator", InFlight: peersInFlight, Run: inboxTask{on: watermillDeduplicator, inFlight: peersInFlight}.run, Against: against},
		{Name: "watermill-sql-v3", InFlight: 128, Run: inboxTask{on: watermillSQL, inFlight: 128}.run, Against: against},
		{Name: "river", InFlight: 128, Run: inboxTask{on: riverPeer, inFlight: 128}.run, Against: against},
		{Name: "dbos", InFlight: peersInFlight, Run: inboxTask{on: dbosPeer, inFlight: peersInFlight}.run, Against: against},
	}
}

// watermillDeduplicator is Watermill's middleware with its own repository, a
// map that a crash loses, around the effect in a transaction. The default hash
// (Adler-32 of the payload) takes different messages for the same one, so that
// the event's id is the key.
func watermillDeduplicator(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	repository, err := middleware.NewMapExpiringKeyRepository(time.Minute)
	if err != nil {
		return nil, err
	}
	d := middleware.Deduplicator{
		KeyFactory: middleware.NewMessageHasherFromMetadataField(eventID),
		Repository: repository,
		Timeout:    time.Minute,
	}
	return d.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		return nil, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return effect(ctx, tx, msg) })
	}), nil
}

// riverJob is a message as a River job; only its id makes it unique.
type riverJob struct {
	ID string `json:"id" river:"unique"`
	event
}

func (riverJob) Kind() string { return "book" }

func (riverJob) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
}

// riverWorker is as River's example of transactional completion: the effect and
// the end of the job commit together.
type riverWorker struct {
	river.WorkerDefaults[riverJob]
	pool *pgxpool.Pool
	done sync.Map // id to the channel that is closed when the job is done
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverJob]) error {
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := job.Args.effect(ctx, tx, job.Args.ID); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if done, ok := w.done.LoadAndDelete(job.Args.ID); ok && err == nil {
		close(done.(chan struct{}))
	}
	return err
}

// riverFetchCooldown bounds how often jobs are fetched. The default (100 ms)
// would bound the rate at 128 in flight; 1 ms was slower than this, since it
// fetches smaller batches.
const riverFetchCooldown = 10 * time.Millisecond

// riverSchema is named, since the search path is empty here.
const riverSchema = "river"

// riverPeer inserts a unique job for each message, and acks when it has been
// worked on. River's README has 100 workers.
func riverPeer(ctx context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Schema: riverSchema})
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, "CREATE SCHEMA "+riverSchema); err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	w := &riverWorker{pool: pool}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(driver, &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		Workers:       workers,
		FetchCooldown: riverFetchCooldown,
		Schema:        riverSchema,
		Logger:        slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		e, id, done := decode(msg), msg.Metadata.Get(eventID), make(chan struct{})
		w.done.Store(id, done)
		job, err := client.Insert(msg.Context(), riverJob{id, e}, nil)
		if err != nil || job.UniqueSkippedAsDuplicate {
			return nil, err
		}
		select {
		case <-done:
			return nil, nil
		case <-msg.Context().Done():
			return nil, msg.Context().Err()
		}
	}, nil
}

// dbosPeer runs a workflow per message, whose id is the event's, with the
// effect in a transaction of DBOS's data source. It shares the pool, so that
// effect and checkpoint are one transaction.
func dbosPeer(ctx context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	d, err := dbos.NewContext(ctx, dbos.Config{AppName: "bench", SystemDBPool: pool, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	source, err := dbos.NewDataSource(d, pool)
	if err != nil {
		return nil, err
	}
	workflow := func(ctx dbos.Context, in dbosInput) (bool, error) {
		return dbos.RunAsTransaction(ctx, source, func(ctx context.Context, tx dbos.Tx) (bool, error) {
			err := in.effect(ctx, dbosTx{tx}, in.ID)
			return err == nil, err
		})
	}
	dbos.RegisterWorkflow(d, workflow)
	if err := dbos.Launch(d); err != nil {
		return nil, err
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		e, id := decode(msg), msg.Metadata.Get(eventID)
		run, err := dbos.RunWorkflow(d, workflow, dbosInput{id, e}, dbos.WithWorkflowID(id))
		if err == nil {
			_, err = run.GetResult()
		}
		return nil, err
	}, nil
}

// dbosInput is a message as a workflow's input.
type dbosInput struct {
	ID string
	event
}

// dbosTx is a dbos.Tx as an execer.
type dbosTx struct{ dbos.Tx }

func (t dbosTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	_, err := t.Tx.Exec(ctx, sql, args...)
	return pgconn.CommandTag{}, err
}
