package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
)

// evidence is what a run left behind, read with SQL and nats.go alone.
type evidence struct {
	ledger     []entry
	balances   map[string]int64 // by account
	outbox     int              // rows
	commands   []command
	deliveries uint64
}

// entry is a row of the ledger.
type entry struct {
	PaymentID, Account string
	Amount             int64
}

// command is a message of the stream of commands.
type command struct {
	Charge
	logicalID   string
	providerKey string
}

// collect reads the evidence.
func (b *bed) collect(ctx context.Context) (evidence, error) {
	e := evidence{balances: make(map[string]int64)}
	if err := b.collectRows(ctx, &e); err != nil {
		return e, err
	}
	if err := b.collectCommands(ctx, &e); err != nil {
		return e, fmt.Errorf("read the stream of commands: %w", err)
	}
	durable, err := b.durable.Info(ctx)
	if err != nil {
		return e, fmt.Errorf("read the count of deliveries: %w", err)
	}
	e.deliveries = durable.Delivered.Consumer
	return e, nil
}

func (b *bed) collectRows(ctx context.Context, e *evidence) error {
	rows, _ := b.db.Pool.Query(ctx, `SELECT payment_id, account, amount FROM public.ledger`) // its error comes from rows
	var err error
	if e.ledger, err = pgx.CollectRows(rows, pgx.RowToStructByPos[entry]); err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	rows, _ = b.db.Pool.Query(ctx, `SELECT account, amount FROM public.balances`)
	var account string
	var amount int64
	_, err = pgx.ForEachRow(rows, []any{&account, &amount}, func() error {
		e.balances[account] = amount
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the balances: %w", err)
	}
	if err := b.db.Pool.QueryRow(ctx, `SELECT count(*) FROM oncemill.outbox`).Scan(&e.outbox); err != nil {
		return fmt.Errorf("count the outbox: %w", err)
	}
	return nil
}

func (b *bed) collectCommands(ctx context.Context, e *evidence) error {
	info, err := b.commands.Stream.Info(ctx)
	if err != nil {
		return err
	}
	reader, err := b.commands.Stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := reader.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range info.State.Msgs {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		c, err := readCommand(m)
		if err != nil {
			return err
		}
		e.commands = append(e.commands, c)
	}
	return nil
}

// readCommand reads one message. Without a logical id nothing tells it from
// others but its place in the stream.
func readCommand(m jetstream.Msg) (command, error) {
	c := command{logicalID: m.Headers().Get("Oncemill-Id"), providerKey: m.Headers().Get("Oncemill-Provider-Key")}
	if c.logicalID == "" {
		meta, err := m.Metadata()
		if err != nil {
			return c, err
		}
		c.logicalID = "at " + strconv.FormatUint(meta.Sequence.Stream, 10)
	}
	return c, json.Unmarshal(m.Data(), &c.Charge)
}
