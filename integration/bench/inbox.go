package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
)

const (
	// inboxConnections is the most that a variant has: more than that wait for
	// each other in the server.
	inboxConnections = 32
	accounts         = 10_000
	payloadSize      = 256
	eventID          = "event_id"
)

// inboxBench compares the ways to handle fresh messages, each with
// pgx-message at as many in flight.
func inboxBench() Bench {
	b := Bench{Name: "inbox", Task: "claim a fresh key, insert into a ledger, update one of 10,000 balances"}
	for _, n := range []int{1, 8, 32, 128} {
		add := func(name string, on handlerOn, against ...Baseline) {
			b.Variants = append(b.Variants, Variant{Name: name, InFlight: n, Long: n < 32, Run: inboxRun(n, 0, on), Against: against})
		}
		// must asks for a ratio at one number in flight only.
		must := func(at int, ratio float64) Baseline {
			if n != at {
				ratio = 0
			}
			return Baseline{"pgx-message", ratio}
		}
		add("pgx-minimal", pgxMinimal)
		add("pgx-message", pgxMessage)
		if n == peersInFlight {
			b.Variants[len(b.Variants)-1].Long = false // the peers are compared with it
		}
		add("pgx-pipelined", pgxPipelined, must(0, 0))
		add("pgx-group", pgxGroup, must(0, 0))
		add("oncemill-handler", oncemillHandler, must(32, 0.95), Baseline{"pgx-minimal", 0})
		add("oncemill-grouped", oncemillGrouped, must(128, 1.8))
		queue := []Baseline{must(128, 5)}
		if n == 128 {
			queue = append(queue, Baseline{"pgx-group", 0.85}, Baseline{"river", 25}, Baseline{"dbos", 30})
		}
		add("oncemill-queue", oncemillQueue, queue...)
		add("oncemill-set", oncemillSet, must(128, 9))
	}
	b.Variants = append(b.Variants, peers()...)
	return b
}

// duplicatesInFlight is how many the duplicates benchmark has in flight.
const duplicatesInFlight = 32

// duplicatesBench compares each way with itself without duplicates.
func duplicatesBench() Bench {
	b := Bench{Name: "duplicates", Task: "as inbox, with 0, 50 or 100 % of the deliveries being handled already"}
	for _, way := range []struct {
		name string
		on   handlerOn
		must float64 // with duplicates only
	}{{"pgx-message", pgxMessage, 0}, {"oncemill-handler", oncemillHandler, 3}, {"oncemill-queue", oncemillQueue, 0}} {
		fresh := way.name + "-0"
		b.Variants = append(b.Variants,
			Variant{Name: fresh, InFlight: duplicatesInFlight, Run: inboxRun(duplicatesInFlight, 0, way.on)},
			Variant{Name: way.name + "-50", InFlight: duplicatesInFlight, Run: inboxRun(duplicatesInFlight, 50, way.on), Against: []Baseline{{fresh, 0}}},
			Variant{Name: way.name + "-100", InFlight: duplicatesInFlight, Run: inboxRun(duplicatesInFlight, 100, way.on), Against: []Baseline{{fresh, way.must}}})
	}
	return b
}

// handlerOn makes the handler of a variant. It ends what it started when ctx
// ends.
type handlerOn func(ctx context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error)

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

// inboxRun measures a handler on a new database, with that percentage of
// deliveries that it has handled before.
func inboxRun(inFlight, duplicates int, newHandler handlerOn) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, env *Env) (s Sample, err error) {
		err = env.database(ctx, min(inFlight, inboxConnections)+1, func(_ string, pool *pgxpool.Pool) error {
			if err := makeInboxTables(ctx, pool); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			h, err := newHandler(ctx, pool)
			if err != nil {
				return err
			}
			var src source
			if err := src.handled(ctx, duplicates, h); err != nil {
				return err
			}
			if _, err := feed(ctx, inFlight, env.Scale.WarmUp, h, src.next); err != nil {
				return err
			}
			if err := checkpoint(ctx, pool); err != nil {
				return err
			}
			s, err = measured(ctx, pool, func() (Sample, error) {
				return feed(ctx, inFlight, env.Scale.Duration, h, src.next)
			})
			if err != nil {
				return err
			}
			return booked(ctx, pool, src.fresh.Load())
		})
		return s, err
	}
}

func makeInboxTables(ctx context.Context, pool *pgxpool.Pool) error {
	for sql := range strings.SplitSeq(inboxTables, ";") {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make the tables: %w", err)
		}
	}
	return nil
}

// booked makes sure that each of n events had its effect once: a figure for
// other work is none.
func booked(ctx context.Context, pool *pgxpool.Pool, n int64) error {
	var lines int64
	var balanced bool
	err := pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM bench.ledger),
		(SELECT coalesce(sum(amount), 0) FROM bench.ledger) = (SELECT sum(balance) FROM bench.account)`).Scan(&lines, &balanced)
	if err == nil && (lines != n || !balanced) {
		err = fmt.Errorf("%d events left %d lines in the ledger, balanced: %t", n, lines, balanced)
	}
	return err
}

// source makes the messages of a run.
type source struct {
	duplicates int                // percent of deliveries
	known      []*message.Message // handled already; delivered again in turn
	turn       atomic.Int64
	fresh      atomic.Int64 // how many events there are
}

// knownEvents are more than are in flight, so that no delivery meets its own
// copy.
const knownEvents = 1000

// handled has h handle the events that are delivered again later.
func (s *source) handled(ctx context.Context, duplicates int, h message.HandlerFunc) error {
	if duplicates == 0 {
		return nil
	}
	left := make(chan *message.Message, knownEvents)
	for range knownEvents {
		msg := s.next()
		s.known = append(s.known, msg)
		left <- msg
	}
	close(left)
	s.duplicates = duplicates
	group, ctx := errgroup.WithContext(ctx)
	for range duplicatesInFlight {
		group.Go(func() error {
			for msg := range left {
				if _, err := deliver(ctx, h, msg); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// next returns the next message to deliver.
func (s *source) next() *message.Message {
	if rand.IntN(100) < s.duplicates {
		return s.known[s.turn.Add(1)%knownEvents]
	}
	s.fresh.Add(1)
	return newEvent()
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

func decode(msg *message.Message) (e event) {
	_ = json.Unmarshal(msg.Payload, &e) // made by newEvent
	return e
}

// execer is the part of a transaction that the effect needs.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// effect is what the handlers of all variants do, with a round trip for each
// statement.
func effect(ctx context.Context, tx execer, msg *message.Message) error {
	return decode(msg).effect(ctx, tx, msg.Metadata.Get(eventID))
}

func (e event) effect(ctx context.Context, tx execer, id string) error {
	if _, err := tx.Exec(ctx, insertLedger, id, e.Account, e.Amount); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, updateBalance, e.Account, e.Amount)
	return err
}

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
