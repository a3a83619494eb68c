package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	watermillSQLTopic = "bench"
	// watermillSQLPoll is far below the default of a second, which would bound
	// the rate of a feeder that waits for its messages.
	watermillSQLPoll = time.Millisecond
)

// watermillSQL publishes each message to a topic in PostgreSQL, whose
// subscriber has the effect in the transaction that moves its offset: exactly
// once for each row, though not for each event. A message is done when its
// handler acks; its batch commits soon after.
func watermillSQL(ctx context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	// The pool's connections have no search path, which its tables want.
	db, err := sql.Open("pgx", pool.Config().ConnString())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(inboxConnections)
	db.SetMaxIdleConns(inboxConnections)
	context.AfterFunc(ctx, func() { _ = db.Close() })
	schema := watermillsql.DefaultPostgreSQLSchema{}
	sub, err1 := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval: watermillSQLPoll, InitializeSchema: true,
	}, watermill.NopLogger{})
	pub, err2 := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	messages, err := sub.Subscribe(ctx, watermillSQLTopic)
	if err != nil {
		return nil, err
	}
	var done sync.Map // id to the channel that is closed when the message is acked
	go func() {
		for msg := range messages {
			tx, _ := watermillsql.TxFromContext(msg.Context())
			if err := decode(msg).effectSQL(msg.Context(), tx, msg.UUID); err != nil {
				msg.Nack()
				continue
			}
			msg.Ack()
			if ch, ok := done.LoadAndDelete(msg.UUID); ok {
				close(ch.(chan struct{}))
			}
		}
	}()
	return func(msg *message.Message) ([]*message.Message, error) {
		acked := make(chan struct{})
		done.Store(msg.UUID, acked)
		if err := pub.Publish(watermillSQLTopic, msg); err != nil {
			return nil, err
		}
		select {
		case <-acked:
			return nil, nil
		case <-msg.Context().Done():
			return nil, msg.Context().Err()
		}
	}, nil
}

func (e event) effectSQL(ctx context.Context, tx *sql.Tx, id string) error {
	if _, err := tx.ExecContext(ctx, insertLedger, id, e.Account, e.Amount); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, updateBalance, e.Account, e.Amount)
	return err
}
