package main

import (
	"context"
	"fmt"
	"time"
)

// lookBound bounds one look: a server may be away.
const lookBound = time.Second

// state is what can be seen of a run at one moment.
type state struct {
	deliveries uint64 // by JetStream's count for the durable
	unsettled  uint64 // messages that wait for a delivery or an ack
	entries    int    // rows of the ledger
	queued     int    // commands in the outbox that were not relayed
	relayed    uint64 // messages in the stream of commands
}

func (s state) settled() bool { return s.unsettled == 0 && s.queued == 0 }

// look reads the state. The queue comes after the messages: once they are
// settled, it does not grow.
func (b *bed) look(ctx context.Context) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	s := state{}
	durable, err := b.durable.Info(ctx)
	if err != nil {
		return s, fmt.Errorf("look at the durable consumer: %w", err)
	}
	s.deliveries = durable.Delivered.Consumer
	s.unsettled = durable.NumPending + uint64(durable.NumAckPending)
	err = b.db.Pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM public.ledger), (SELECT count(*) FROM oncemill.outbox_queue)`).
		Scan(&s.entries, &s.queued)
	if err != nil {
		return s, fmt.Errorf("look at the database: %w", err)
	}
	commands, err := b.commands.Stream.Info(ctx)
	if err != nil {
		return s, fmt.Errorf("look at the stream of commands: %w", err)
	}
	s.relayed = commands.State.Msgs
	return s, nil
}
