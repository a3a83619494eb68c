package main

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
)

// networkDelay is that of a database in another zone, one way.
const networkDelay = time.Millisecond

// delayBench shows what round trips cost: pgx-message has six, oncemill-handler
// four, which bounds its ratio at 1.5, and oncemill-handler-queued two.
func delayBench() Bench {
	b := Bench{Name: "inbox-delay", Task: "as inbox, with 1 ms of network delay each way between handler and database"}
	for _, n := range []int{8, 32} {
		against := func(must float64) []Baseline { return []Baseline{{"pgx-message", must}} }
		add := func(name string, on handlerOn, against []Baseline) {
			b.Variants = append(b.Variants, Variant{
				Name: name, InFlight: n, Long: n < 32, Against: against,
				Run: inboxTask{on: on, inFlight: n, away: networkDelay}.run,
			})
		}
		add("pgx-message", pgxMessage, nil)
		add("oncemill-handler", oncemillHandler, against(1.5))
		add("oncemill-handler-queued", oncemillHandlerQueued, against(1.5))
		add("oncemill-queue", oncemillQueue, against(0))
	}
	return b
}

// oncemillHandlerQueued is oncemillHandler whose statements go with the commit.
func oncemillHandlerQueued(_ context.Context, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	c, err := consumer.New(pool, consumer.Config{Scope: "bench", Key: keys.Metadata(eventID)})
	if err != nil {
		return nil, err
	}
	return c.Handler("book", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		return queueEffect(ctx, tx, msg)
	}), nil
}
