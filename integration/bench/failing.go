package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/consumer"
)

// failingInFlight is how many the failing benchmark has in flight.
const failingInFlight = 128

// failingBench compares groups some of whose members fail with groups that
// have no such member.
func failingBench() Bench {
	b := Bench{Name: "inbox-failing", Task: "as inbox, with 0 or 1 % of the events failing once, by their handler or by a statement"}
	add := func(name string, percent int, fail failure, against ...Baseline) {
		b.Variants = append(b.Variants, Variant{
			Name: name, InFlight: failingInFlight, Against: against,
			Run: inboxTask{on: oncemillQueueFailing(fail), inFlight: failingInFlight, failing: percent}.run,
		})
	}
	add("oncemill-queue-0", 0, handlerFails)
	add("oncemill-queue-1", 1, handlerFails, Baseline{"oncemill-queue-0", 0.7})
	add("oncemill-queue-1-statement", 1, statementFails, Baseline{"oncemill-queue-0", 0})
	return b
}

// failure makes the handling of a message fail.
type failure func(q consumer.Queue) error

func handlerFails(consumer.Queue) error { return errors.New("fails once") }

// statementFails is known by the server's answer only: the group's transaction
// is over, and the others begin again.
func statementFails(q consumer.Queue) error {
	q.Queue(`SELECT 1 / 0`)
	return nil
}

// oncemillQueueFailing is oncemillQueue that fails when it should.
func oncemillQueueFailing(fail failure) handlerOn {
	return func(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
		c, err := groupConsumer(pool, false)
		if err != nil {
			return nil, err
		}
		return c.QueueHandler("book", func(ctx context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
			if msg.Metadata.Get(failsOnce) != "" {
				if err := fail(q); err != nil {
					return nil, err
				}
			}
			return queueEffect(ctx, q, msg)
		}), nil
	}
}
