package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
)

// naive is a service without oncemill, as one writes it by hand with care: a
// transaction for each delivery, the command published after the commit, the
// ack after that. Nothing gets lost, and everything may happen again.
type naive struct {
	pool     *pgxpool.Pool
	js       jetstream.JetStream
	commands string
}

func serveNaively(ctx context.Context, cfg workerConfig, pool *pgxpool.Pool, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	durable, err := js.Consumer(ctx, cfg.Stream, cfg.Durable)
	if err != nil {
		return err
	}
	n := naive{pool, js, cfg.Commands}
	for range concurrency {
		receive := func(m jetstream.Msg) { n.receive(ctx, m) }
		consuming, err := durable.Consume(receive, jetstream.PullMaxMessages(inFlight/concurrency))
		if err != nil {
			return err
		}
		defer consuming.Stop()
	}
	fmt.Println(readyLine)
	<-ctx.Done()
	return nil
}

func (n naive) receive(ctx context.Context, m jetstream.Msg) {
	if err := n.apply(ctx, m); err != nil {
		slog.Warn("message goes back", "error", err)
		_ = m.NakWithDelay(longestDelay) // without it the message comes back after ackWait
	}
}

func (n naive) apply(ctx context.Context, m jetstream.Msg) error {
	var produced []*message.Message
	err := pgx.BeginFunc(ctx, n.pool, func(tx pgx.Tx) (err error) {
		plain := &plainTx{}
		if produced, err = charge(ctx, plain, message.NewMessage("", m.Data())); err != nil {
			return err
		}
		return tx.SendBatch(ctx, &plain.queue).Close()
	})
	if err != nil {
		return err
	}
	for _, command := range produced {
		if _, err := n.js.Publish(ctx, n.commands, command.Payload); err != nil {
			return err
		}
	}
	return m.Ack()
}

// plainTx is what the handler sees of a transaction.
type plainTx struct{ queue pgx.Batch }

// Queue implements consumer.Queue, without checks.
func (p *plainTx) Queue(query string, args ...any) consumer.Queued {
	p.queue.Queue(query, args...)
	return consumer.Queued{}
}

// SetResult implements consumer.Queue. There is no place for a result.
func (p *plainTx) SetResult([]byte) {}
