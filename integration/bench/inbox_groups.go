package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
)

// groupConsumer is a consumer with the defaults, but for its lane key.
func groupConsumer(pool *pgxpool.Pool, plain bool) (*consumer.Consumer, error) {
	return consumer.New(pool, consumer.Config{
		Scope: "bench", Key: keys.Metadata(eventID), Group: plain,
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
	return c.QueueHandler("book", func(_ context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
		e := decode(msg)
		q.Queue(insertLedger, msg.Metadata.Get(eventID), e.Account, e.Amount)
		q.Queue(updateBalance, e.Account, e.Amount)
		return nil, nil
	}), nil
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

// handGroup is the largest group of the hand-written code, and handLanes how
// many it has at a time: what was fastest here.
const (
	handGroup = 100
	handLanes = 2
)

type waiting struct {
	event event
	msg   *message.Message
	done  chan error
}

// pgxGroup is hand-written: groups of what waits, a set-based claim, then the
// pipelined statements of the fresh ones in the order of their accounts.
func pgxGroup(ctx context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	queue := make(chan waiting, 10*handGroup)
	for range handLanes {
		go func() {
			for {
				select {
				case first := <-queue:
					bookGroup(ctx, pool, append([]waiting{first}, taken(queue, handGroup-1)...))
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		w := waiting{decode(msg), msg, make(chan error, 1)}
		queue <- w
		select {
		case err := <-w.done:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, nil
}

// taken returns what waits, up to n.
func taken(queue <-chan waiting, n int) (list []waiting) {
	for range n {
		select {
		case w := <-queue:
			list = append(list, w)
		default:
			return list
		}
	}
	return list
}

func bookGroup(ctx context.Context, pool *pgxpool.Pool, group []waiting) {
	slices.SortFunc(group, func(a, b waiting) int { return cmp.Compare(a.event.Account, b.event.Account) })
	err := book(ctx, pool, group)
	for _, w := range group {
		w.done <- err
	}
}

const claimGroupByHand = `INSERT INTO bench.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
SELECT id, 1, 1, sum, clock_timestamp(), 'bench', 'book' FROM unnest($1::text[]::uuid[], $2::bytea[]) AS u (id, sum) ORDER BY id
ON CONFLICT (id) DO NOTHING RETURNING id::text`

// book is two round trips. Releasing a connection whose transaction did not end
// closes it.
func book(ctx context.Context, pool *pgxpool.Pool, group []waiting) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	fresh, err := claimGroup(ctx, conn, group)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	for _, w := range group {
		if id := w.msg.Metadata.Get(eventID); fresh[id] {
			b.Queue(insertLedger, id, w.event.Account, w.event.Amount)
			b.Queue(updateBalance, w.event.Account, w.event.Amount)
		}
	}
	b.Queue("commit")
	return conn.SendBatch(ctx, b).Close()
}

// claimGroup begins a transaction and returns which ids are fresh.
func claimGroup(ctx context.Context, conn *pgxpool.Conn, group []waiting) (fresh map[string]bool, err error) {
	ids, sums := make([]string, len(group)), make([][]byte, len(group))
	for i, w := range group {
		sum := sha256.Sum256(w.msg.Payload)
		ids[i], sums[i] = w.msg.Metadata.Get(eventID), sum[:]
	}
	fresh = make(map[string]bool, len(group))
	b := &pgx.Batch{}
	b.Queue("begin")
	b.Queue(claimGroupByHand, ids, sums).Query(func(rows pgx.Rows) error {
		var id string
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error { fresh[id] = true; return nil })
		return err
	})
	return fresh, conn.SendBatch(ctx, b).Close()
}
