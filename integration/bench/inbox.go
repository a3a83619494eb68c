package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
)

const (
	inboxInFlight = 32
	accounts      = 10_000
	payloadSize   = 256
	eventID       = "event_id"
)

func inboxBench() Bench {
	return Bench{
		Name: "inbox",
		Task: "claim a fresh key, insert into a ledger, update one of 10,000 balances; one transaction per message",
		Variants: []Variant{
			{Name: "pgx-minimal", InFlight: inboxInFlight, Run: inboxRun(pgxMinimal)},
			{Name: "pgx-message", InFlight: inboxInFlight, Run: inboxRun(pgxMessage)},
			{Name: "oncemill-handler", InFlight: inboxInFlight, Run: inboxRun(oncemillHandler),
				Against: []Baseline{{Variant: "pgx-message", Must: 0.95}, {Variant: "pgx-minimal"}}},
		},
	}
}

// inboxTables are what the effect needs, and an inbox for hand-written code
// that is like oncemill's.
const inboxTables = `
CREATE SCHEMA bench;
CREATE TABLE bench.inbox (LIKE oncemill.inbox INCLUDING ALL);
CREATE TABLE bench.ledger (id uuid PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
CREATE TABLE bench.account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO bench.account SELECT n, 0 FROM generate_series(0, 9999) AS n;
VACUUM ANALYZE bench.account`

const (
	insertLedger  = `INSERT INTO bench.ledger (id, account, amount) VALUES ($1, $2, $3)`
	updateBalance = `UPDATE bench.account SET balance = balance + $2 WHERE id = $1`
)

// inboxRun measures a handler on a new database.
func inboxRun(newHandler func(*pgxpool.Pool) (message.HandlerFunc, error)) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, env *Env) (s Sample, err error) {
		err = env.database(ctx, inboxInFlight+1, func(_ string, pool *pgxpool.Pool) error {
			for sql := range strings.SplitSeq(inboxTables, ";") {
				if _, err := pool.Exec(ctx, sql); err != nil {
					return fmt.Errorf("make the tables: %w", err)
				}
			}
			h, err := newHandler(pool)
			if err != nil {
				return err
			}
			if _, err := feed(ctx, inboxInFlight, env.Scale.WarmUp, h, newEvent); err != nil {
				return err
			}
			if err := checkpoint(ctx, pool); err != nil {
				return err
			}
			s, err = measured(ctx, pool, func() (Sample, error) {
				return feed(ctx, inboxInFlight, env.Scale.Duration, h, newEvent)
			})
			return err
		})
		return s, err
	}
}

// event is the payload of a message.
type event struct {
	Account int    `json:"account"`
	Amount  int64  `json:"amount"`
	Note    string `json:"note"`
}

// newEvent returns a message with a fresh id and a payload of payloadSize.
func newEvent() *message.Message {
	e := event{Account: rand.IntN(accounts), Amount: 1 + rand.Int64N(1000)} // Not a secret.
	bare, _ := json.Marshal(e)
	e.Note = strings.Repeat("x", payloadSize-len(bare))
	payload, _ := json.Marshal(e) // a struct of ints and text always can be
	id := uuid.Must(uuid.NewV7()).String()
	msg := message.NewMessage(id, payload)
	msg.Metadata.Set(eventID, id)
	return msg
}

// execer is the part of a transaction that the effect needs.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// effect is what the handlers of all variants do, with a round trip for each
// statement.
func effect(ctx context.Context, tx execer, msg *message.Message) error {
	var e event
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, insertLedger, msg.Metadata.Get(eventID), e.Account, e.Amount); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, updateBalance, e.Account, e.Amount)
	return err
}

// oncemillHandler is consumer.Handler with its defaults.
func oncemillHandler(pool *pgxpool.Pool) (message.HandlerFunc, error) {
	c, err := consumer.New(pool, consumer.Config{Scope: "bench", Key: keys.Metadata(eventID)})
	if err != nil {
		return nil, err
	}
	return c.Handler("book", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		return nil, effect(ctx, tx, msg)
	}), nil
}

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
	claimMinimal = `INSERT INTO bench.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
VALUES ($1, 1, 1, $2, clock_timestamp(), 'bench', 'book') ON CONFLICT (id) DO NOTHING`
)

// pgxMessage has oncemill's statements written by hand, each a round trip.
func pgxMessage(pool *pgxpool.Pool) (message.HandlerFunc, error) {
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
func pgxMinimal(pool *pgxpool.Pool) (message.HandlerFunc, error) {
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
