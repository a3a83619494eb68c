package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/integration/testbed"
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
			b.Variants = append(b.Variants, Variant{Name: name, InFlight: n, Long: n < 32, Run: inboxTask{on: on, inFlight: n}.run, Against: against})
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
			Variant{Name: fresh, InFlight: duplicatesInFlight, Run: inboxTask{on: way.on, inFlight: duplicatesInFlight}.run},
			Variant{Name: way.name + "-50", InFlight: duplicatesInFlight, Run: inboxTask{on: way.on, inFlight: duplicatesInFlight, duplicates: 50}.run, Against: []Baseline{{fresh, 0}}},
			Variant{Name: way.name + "-100", InFlight: duplicatesInFlight, Run: inboxTask{on: way.on, inFlight: duplicatesInFlight, duplicates: 100}.run, Against: []Baseline{{fresh, way.must}}})
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

// inboxTask is how a run does the inbox's task, on a new database.
type inboxTask struct {
	on       handlerOn
	inFlight int
	// duplicates is the percentage of deliveries that were handled before,
	// failing that of fresh events whose first delivery fails.
	duplicates, failing int
	// random says that ids carry no time.
	random bool
	// away is the network between handler and database, one way.
	away time.Duration
}

func (t inboxTask) run(ctx context.Context, env *Env) (s Sample, err error) {
	connections := min(t.inFlight, inboxConnections) + 1
	err = env.database(ctx, connections, func(url string, pool *pgxpool.Pool) error {
		if err := makeInboxTables(ctx, pool); err != nil {
			return err
		}
		return t.withNetwork(ctx, url, connections, pool, func(far *pgxpool.Pool) error {
			s, err = t.measure(ctx, env.Scale, pool, far)
			return err
		})
	})
	return s, err
}

// withNetwork calls fn with a pool that is that far away from the database.
func (t inboxTask) withNetwork(ctx context.Context, url string, connections int, pool *pgxpool.Pool, fn func(far *pgxpool.Pool) error) error {
	if t.away == 0 {
		return fn(pool)
	}
	proxy, err := testbed.StartProxy(url)
	if err != nil {
		return err
	}
	defer proxy.Close()
	proxy.Delay(testbed.ToServer, t.away)
	proxy.Delay(testbed.ToClient, t.away)
	far, err := newPool(ctx, proxy.URL(), connections)
	if err != nil {
		return err
	}
	defer far.Close()
	return fn(far)
}

// measure has the handler work on one pool and looks at the server by another.
func (t inboxTask) measure(ctx context.Context, s scale, pool, far *pgxpool.Pool) (sample Sample, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h, err := t.on(ctx, far)
	if err != nil {
		return sample, err
	}
	src := source{failing: t.failing, random: t.random}
	if err := src.handled(ctx, t.duplicates, h); err != nil {
		return sample, err
	}
	if _, err := feed(ctx, t.inFlight, s.WarmUp, h, src.next); err != nil {
		return sample, err
	}
	if err := checkpoint(ctx, pool); err != nil {
		return sample, err
	}
	sample, err = measured(ctx, pool, func() (Sample, error) {
		return feed(ctx, t.inFlight, s.Duration, h, src.next)
	})
	if err != nil {
		return sample, err
	}
	return sample, booked(ctx, pool, src.fresh.Load())
}

func makeInboxTables(ctx context.Context, pool *pgxpool.Pool) error {
	for sql := range strings.SplitSeq(inboxTables, ";") {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make the tables: %w", err)
		}
	}
	return nil
}

// bookedBound is how long the last effects may take to commit after their
// handlers said that they are done: watermill-sql commits by batches.
const bookedBound = 10 * time.Second

// booked makes sure that each of n events had its effect once: a figure for
// other work is none.
func booked(ctx context.Context, pool *pgxpool.Pool, n int64) error {
	var lines int64
	var balanced bool
	err := await(ctx, bookedBound, func() (bool, error) {
		err := pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM bench.ledger),
			(SELECT coalesce(sum(amount), 0) FROM bench.ledger) = (SELECT sum(balance) FROM bench.account)`).Scan(&lines, &balanced)
		return lines >= n, err
	})
	if (err == nil || errors.Is(err, context.DeadlineExceeded)) && (lines != n || !balanced) {
		err = fmt.Errorf("%d events left %d lines in the ledger, balanced: %t", n, lines, balanced)
	}
	return err
}
