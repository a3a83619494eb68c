package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

const forwarderTopic = "forwarder"

// withForwarder calls fn with Watermill's forwarder over watermill-sql, as the
// documentation of both sets it up (default schema, offsets, batch of 100,
// poll of 1 s), on a new database and stream. start starts the forwarder and
// returns when it subscribes.
func withForwarder(ctx context.Context, env *Env, fn func(db *sql.DB, pool *pgxpool.Pool, st *testbed.Stream, start func() error) error) error {
	return env.database(ctx, 2, func(url string, pool *pgxpool.Pool) error {
		return env.stream(ctx, func(st *testbed.Stream) error {
			db, err := sql.Open("pgx", url)
			if err != nil {
				return err
			}
			defer db.Close()
			sub, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
				SchemaAdapter:    watermillsql.DefaultPostgreSQLSchema{},
				OffsetsAdapter:   watermillsql.DefaultPostgreSQLOffsetsAdapter{},
				InitializeSchema: true,
			}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			if err := sub.SubscribeInitialize(forwarderTopic); err != nil {
				return err
			}
			f, err := forwarder.NewForwarder(sub, jetStreamPublisher{ctx, st.JS}, watermill.NopLogger{},
				forwarder.Config{ForwarderTopic: forwarderTopic})
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

// jetStreamPublisher is the forwarder's way out: one confirmed publish for each
// message, which is what its contract asks for.
type jetStreamPublisher struct {
	ctx context.Context
	js  jetstream.JetStream
}

func (p jetStreamPublisher) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		out := &nats.Msg{Subject: topic, Header: nats.Header{outbox.HeaderBrokerID: {msg.UUID}}, Data: msg.Payload}
		if _, err := p.js.PublishMsg(p.ctx, out); err != nil {
			return err
		}
	}
	return nil
}

func (p jetStreamPublisher) Close() error { return nil }

// enveloped returns a publisher that writes for the forwarder.
func enveloped(db watermillsql.ContextExecutor) (message.Publisher, error) {
	pub, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	return forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic}), nil
}

// forwarderDrain is one forwarder. A plain subscriber counts.
func forwarderDrain(ctx context.Context, env *Env) (s Sample, err error) {
	rows := env.Scale.Rows
	err = withForwarder(ctx, env, func(db *sql.DB, pool *pgxpool.Pool, st *testbed.Stream, start func() error) error {
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
