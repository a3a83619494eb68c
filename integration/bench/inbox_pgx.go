package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The statements of oncemill's handler, for hand-written code.
const (
	claimByHand = `INSERT INTO bench.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
VALUES (CASE WHEN set_config('bench.lock_timeout', current_setting('lock_timeout'), true) IS NOT NULL
        THEN CASE WHEN set_config('lock_timeout', '250', true) IS NOT NULL THEN $1::uuid END END,
    1, 1, $2::bytea, clock_timestamp(), 'bench', 'book')
ON CONFLICT (id) DO NOTHING
RETURNING pg_current_xact_id()::text, clock_timestamp(), (SELECT h.floor FROM oncemill.horizon h WHERE h.operation = 'book'),
    set_config('lock_timeout', current_setting('bench.lock_timeout'), true),
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END`

	checkByHand = `SELECT 1 / (coalesce(pg_current_xact_id_if_assigned()::text = $1::text, false)
    AND current_setting('synchronous_commit') <> 'off'
    AND NOT EXISTS (SELECT FROM oncemill.horizon h WHERE h.operation = 'book' AND h.floor > $2::timestamptz))::integer`

	// claimMinimal is what people write first: it waits for a rival without a
	// bound, and nothing finds out that the handler ended the transaction.
	claimMinimal = claimOrFail + ` ON CONFLICT (id) DO NOTHING`

	claimOrFail = `INSERT INTO bench.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
VALUES ($1, 1, 1, $2, clock_timestamp(), 'bench', 'book')`
)

// pgxMessage has oncemill's statements written by hand, each a round trip.
func pgxMessage(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		return nil, pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
			sum := sha256.Sum256(msg.Payload)
			var xid string
			var now time.Time
			var floor *time.Time
			var bound, raised *string
			err := tx.QueryRow(ctx, claimByHand, msg.Metadata.Get(eventID), sum[:]).Scan(&xid, &now, &floor, &bound, &raised)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			if err == nil {
				err = effect(ctx, tx, msg)
			}
			if err != nil {
				return err
			}
			var one int
			return tx.QueryRow(ctx, checkByHand, xid, now).Scan(&one)
		})
	}, nil
}

// pgxMinimal is the least that dedups: a transaction per message, each
// statement a round trip.
func pgxMinimal(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		return nil, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			sum := sha256.Sum256(msg.Payload)
			tag, err := tx.Exec(ctx, claimMinimal, msg.Metadata.Get(eventID), sum[:])
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			return effect(ctx, tx, msg)
		})
	}, nil
}

// pgxPipelined is pgxMinimal with all statements in one round trip, which is
// one transaction: a duplicate makes the claim fail and so the rest.
func pgxPipelined(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	return func(msg *message.Message) ([]*message.Message, error) {
		e, id, sum := decode(msg), msg.Metadata.Get(eventID), sha256.Sum256(msg.Payload)
		b := &pgx.Batch{}
		b.Queue(claimOrFail, id, sum[:])
		b.Queue(insertLedger, id, e.Account, e.Amount)
		b.Queue(updateBalance, e.Account, e.Amount)
		err := pool.SendBatch(msg.Context(), b).Close()
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.TableName == "inbox" && refused.Code == "23505" {
			err = nil
		}
		return nil, err
	}, nil
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
