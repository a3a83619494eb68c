package main

import (
	"context"
	"log/slog"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
)

// oncemillHandler is consumer.Handler with its defaults.
func oncemillHandler(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	c, err := consumer.New(pool, consumer.Config{Scope: "bench", Key: keys.Metadata(eventID)})
	if err != nil {
		return nil, err
	}
	return c.Handler("book", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		return nil, effect(ctx, tx, msg)
	}), nil
}

// groupConsumer is a consumer with the defaults, but for its lane key. What
// fails comes again at once, as from a broker that has other messages meanwhile.
func groupConsumer(pool *pgxpool.Pool, plain bool) (*consumer.Consumer, error) {
	return consumer.New(pool, consumer.Config{
		Scope: "bench", Key: keys.Metadata(eventID), Group: plain, NackWait: -1, Logger: slog.New(slog.DiscardHandler),
		LaneKey: func(msg *message.Message) string { return strconv.Itoa(decode(msg).Account) },
	})
}

// oncemillGrouped is consumer.Handler with Config.Group.
func oncemillGrouped(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	c, err := groupConsumer(pool, true)
	if err != nil {
		return nil, err
	}
	return c.Handler("book", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		return nil, effect(ctx, tx, msg)
	}), nil
}

// oncemillQueue is consumer.QueueHandler.
func oncemillQueue(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	c, err := groupConsumer(pool, false)
	if err != nil {
		return nil, err
	}
	return c.QueueHandler("book", queueEffect), nil
}

func queueEffect(_ context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
	e := decode(msg)
	q.Queue(insertLedger, msg.Metadata.Get(eventID), e.Account, e.Amount)
	q.Queue(updateBalance, e.Account, e.Amount)
	return nil, nil
}

// The effect of a set: rows in the order of the arrays, which is that of the
// accounts.
const (
	insertLedgerSet  = `INSERT INTO bench.ledger (id, account, amount) SELECT * FROM unnest($1::text[]::uuid[], $2::int[], $3::bigint[])`
	updateBalanceSet = `UPDATE bench.account a SET balance = balance + b.amount
FROM (SELECT account, sum(amount)::bigint AS amount FROM unnest($1::int[], $2::bigint[]) AS u (account, amount) GROUP BY account ORDER BY account) b
WHERE a.id = b.account`
)

// oncemillSet is consumer.SetHandler.
func oncemillSet(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	c, err := groupConsumer(pool, false)
	if err != nil {
		return nil, err
	}
	return c.SetHandler("book", func(_ context.Context, tx consumer.Tx, msgs []*message.Message) ([][]*message.Message, error) {
		ids, accounts, amounts := make([]string, len(msgs)), make([]int, len(msgs)), make([]int64, len(msgs))
		for i, msg := range msgs {
			e := decode(msg)
			ids[i], accounts[i], amounts[i] = msg.Metadata.Get(eventID), e.Account, e.Amount
		}
		tx.Queue(insertLedgerSet, ids, accounts, amounts)
		tx.Queue(updateBalanceSet, accounts, amounts)
		return nil, nil
	}), nil
}
