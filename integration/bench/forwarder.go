package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	forwarderTopic = "forwarder"
	// forwarderPart is the part of a relay's rows that a forwarder drains.
	forwarderPart = 5
)

// forwarderConfig is how a forwarder reads. The zero value is what the
// documentation sets up: default schema, batch of 100, poll of 1 s.
type forwarderConfig struct {
	batch int
	poll  time.Duration
}

// tunedForwarder reads more at a time, and waits hardly at all.
var tunedForwarder = forwarderConfig{batch: 1000, poll: 5 * time.Millisecond}

// withForwarder calls fn with Watermill's forwarder from watermill-sql to
// watermill-nats, on a new database and stream. start starts the forwarder and
// returns when it subscribes.
func withForwarder(ctx context.Context, env *Env, cfg forwarderConfig, fn func(db *sql.DB, pool *pgxpool.Pool, st *testbed.Stream, start func() error) error) error {
	return env.database(ctx, 2, func(url string, pool *pgxpool.Pool) error {
		return env.stream(ctx, func(st *testbed.Stream) error {
			db, err := sql.Open("pgx", url)
			if err != nil {
				return err
			}
			defer db.Close()
			sub, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
				SchemaAdapter:    watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: cfg.batch},
				OffsetsAdapter:   watermillsql.DefaultPostgreSQLOffsetsAdapter{},
				PollInterval:     cfg.poll,
				InitializeSchema: true,
			}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			if err := sub.SubscribeInitialize(forwarderTopic); err != nil {
				return err
			}
			pub, err := watermillNATSPublisher(env)
			if err != nil {
				return err
			}
			defer pub.Close()
			f, err := forwarder.NewForwarder(sub, pub, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwarderTopic})
			if err != nil {
				return err
			}
			ran := make(chan error, 1)
			started := false
			err = fn(db, pool, st, func() error {
				started = true
				go func() { ran <- f.Run(ctx) }()
				select {
				case <-f.Running():
					return nil
				case err := <-ran:
					ran <- err
					return err
				}
			})
			if !started {
				return err
			}
			return errors.Join(err, f.Close(), <-ran)
		})
	})
}

// watermillNATSPublisher waits for JetStream's confirmation of each message,
// and has the broker drop copies.
func watermillNATSPublisher(env *Env) (message.Publisher, error) {
	return wmnats.NewPublisher(wmnats.PublisherConfig{
		URL: env.NATS.URL(), JetStream: wmnats.JetStreamConfig{TrackMsgId: true},
	}, watermill.NopLogger{})
}

// enveloped returns a publisher that writes for the forwarder.
func enveloped(db watermillsql.ContextExecutor) (message.Publisher, error) {
	pub, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	return forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic}), nil
}

// forwarderDrain is one forwarder. A plain subscriber counts. It drains a part
// of what the others drain: its rate does not depend on it.
func forwarderDrain(cfg forwarderConfig) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, env *Env) (s Sample, err error) {
		rows := max(env.Scale.Rows/forwarderPart, 1)
		err = withForwarder(ctx, env, cfg, func(db *sql.DB, pool *pgxpool.Pool, st *testbed.Stream, start func() error) error {
			if err := writeForwarder(db, st.Subject("new"), rows); err != nil {
				return err
			}
			all, err := countArrivals(st, rows)
			if err != nil {
				return err
			}
			if err := checkpoint(ctx, pool); err != nil {
				return err
			}
			s, err = measured(ctx, pool, func() (Sample, error) {
				began := time.Now()
				if err := start(); err != nil {
					return Sample{}, err
				}
				select {
				case <-all:
				case <-ctx.Done():
					return Sample{}, ctx.Err()
				}
				return Sample{Ops: rows, Elapsed: time.Since(began)}, nil
			})
			return err
		})
		return s, err
	}
}

func writeForwarder(db *sql.DB, topic string, n int) error {
	pub, err := enveloped(db)
	if err != nil {
		return err
	}
	return inBatches(n, loadBatch, func(from, to int) error {
		msgs := make([]*message.Message, to-from)
		for i := range msgs {
			msgs[i] = message.NewMessage(uuid.NewString(), relayPayload)
		}
		return pub.Publish(topic, msgs...)
	})
}

// countArrivals returns a channel that is closed when n messages were seen.
func countArrivals(st *testbed.Stream, n int) (<-chan struct{}, error) {
	all := make(chan struct{})
	seen := 0
	_, err := st.Conn.Subscribe(st.Subject("new"), func(*nats.Msg) {
		if seen++; seen == n {
			close(all)
		}
	})
	if err != nil {
		return nil, err
	}
	return all, st.Conn.Flush()
}
