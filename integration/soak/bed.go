package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/integration/testbed"
)

// tables of the service. Nothing in them keeps an event from being booked
// twice.
const tables = `
	CREATE TABLE public.ledger (form text NOT NULL, event text NOT NULL, account int NOT NULL, amount bigint NOT NULL);
	CREATE TABLE public.balances (form text, account int, amount bigint NOT NULL, PRIMARY KEY (form, account))`

// bed is the servers, the proxies before them, and what workers find there.
type bed struct {
	postgres        *testbed.Postgres
	nats            *testbed.NATS
	databaseLine    *testbed.PostgresProxy // all workers connect through it
	natsLine        *testbed.Proxy
	db              *testbed.DB
	events, replies *testbed.Stream
	worker          []string // its argument
}

// openBed starts everything but workers. close ends it, also after an error.
func openBed(ctx context.Context) (*bed, error) {
	b := &bed{}
	for _, open := range []func(context.Context) error{b.openDatabase, b.openStreams, b.openLines} {
		if err := open(ctx); err != nil {
			return nil, errors.Join(err, b.close())
		}
	}
	return b, nil
}

func (b *bed) openDatabase(ctx context.Context) (err error) {
	// Servers crash here, not machines: what was written to files stays.
	b.postgres, err = testbed.StartPostgres(ctx, testbed.PostgresConfig{NoFsync: true, Settings: map[string]string{"max_connections": "400"}})
	if err != nil {
		return err
	}
	if b.db, err = b.postgres.OpenDB(ctx); err != nil {
		return err
	}
	if _, err := b.db.Pool.Exec(ctx, tables); err != nil {
		return fmt.Errorf("create the tables of the service: %w", err)
	}
	return oncemill.Migrate(ctx, b.db.Pool, oncemill.MigrateConfig{})
}

func (b *bed) openStreams(ctx context.Context) (err error) {
	if b.nats, err = testbed.StartNATSProcess(ctx, testbed.NATSConfig{}); err != nil {
		return err
	}
	if b.events, err = b.nats.OpenStream(ctx, nil); err != nil {
		return err
	}
	if b.replies, err = b.nats.OpenStream(ctx, nil); err != nil {
		return err
	}
	for _, f := range forms {
		_, err := b.events.Stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: f.name, FilterSubject: b.events.Subject("new"), AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
		})
		if err != nil {
			return fmt.Errorf("create the durable of form %s: %w", f.name, err)
		}
	}
	return nil
}

func (b *bed) openLines(context.Context) (err error) {
	if b.databaseLine, err = testbed.StartPostgresProxy(b.db.URL); err != nil {
		return err
	}
	if b.natsLine, err = testbed.StartProxy(b.nats.URL()); err != nil {
		return err
	}
	arg, err := json.Marshal(workerConfig{
		Database: b.databaseLine.URL(), NATS: b.natsLine.URL(), Stream: b.events.Name,
		Events: b.events.Subject("new"), Commands: b.replies.Subject("sent"),
	})
	b.worker = []string{string(arg)}
	return err
}

// closeBound bounds the way out.
const closeBound = 20 * time.Second

// close removes everything.
func (b *bed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	var err error
	if b.databaseLine != nil {
		err = errors.Join(err, b.databaseLine.Close())
	}
	if b.natsLine != nil {
		err = errors.Join(err, b.natsLine.Close())
	}
	for _, s := range []*testbed.Stream{b.events, b.replies} {
		if s != nil {
			err = errors.Join(err, s.Close(ctx))
		}
	}
	if b.db != nil {
		err = errors.Join(err, b.db.Close(ctx))
	}
	if b.nats != nil {
		err = errors.Join(err, b.nats.Close())
	}
	if b.postgres != nil {
		err = errors.Join(err, b.postgres.Close())
	}
	return err
}

// state is what is outstanding.
type state struct{ unacked, queued int }

func (b *bed) look(ctx context.Context) (s state, err error) {
	for _, f := range forms {
		c, err := b.events.Stream.Consumer(ctx, f.name)
		if err != nil {
			return s, err
		}
		info := c.CachedInfo()
		s.unacked += int(info.NumPending) + info.NumAckPending
	}
	return s, b.db.Pool.QueryRow(ctx, `SELECT count(*) FROM oncemill.outbox_queue`).Scan(&s.queued)
}

// collect reads what a run left behind.
func (b *bed) collect(ctx context.Context, events []Event) (h history, err error) {
	h = history{forms: formNames(), events: events, balances: map[balance]int64{}}
	s, err := b.look(ctx)
	if err != nil {
		return h, err
	}
	h.unacked, h.queued = s.unacked, s.queued
	rows, _ := b.db.Pool.Query(ctx, `SELECT form, event, account, amount FROM public.ledger`) // its error comes from rows
	var e entry
	_, err = pgx.ForEachRow(rows, []any{&e.Form, &e.ID, &e.Account, &e.Amount}, func() error {
		h.ledger = append(h.ledger, e)
		return nil
	})
	if err != nil {
		return h, fmt.Errorf("read the ledger: %w", err)
	}
	rows, _ = b.db.Pool.Query(ctx, `SELECT form, account, amount FROM public.balances`)
	var key balance
	var amount int64
	_, err = pgx.ForEachRow(rows, []any{&key.form, &key.account, &amount}, func() error {
		h.balances[key] = amount
		return nil
	})
	if err != nil {
		return h, fmt.Errorf("read the balances: %w", err)
	}
	if err := b.db.Pool.QueryRow(ctx, `SELECT count(*) FROM oncemill.held`).Scan(&h.held); err != nil {
		return h, fmt.Errorf("count the held messages: %w", err)
	}
	h.commands, err = b.collectCommands(ctx)
	return h, err
}

func (b *bed) collectCommands(ctx context.Context) (list []command, err error) {
	info, err := b.replies.Stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the commands: %w", err)
	}
	reader, err := b.replies.Stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, fmt.Errorf("read the commands: %w", err)
	}
	messages, err := reader.Messages()
	if err != nil {
		return nil, fmt.Errorf("read the commands: %w", err)
	}
	defer messages.Stop()
	for range info.State.Msgs {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("read the commands: %w", err)
		}
		e, err := decodeEvent(m.Data())
		if err != nil {
			return nil, err
		}
		list = append(list, command{entry{m.Headers().Get(formHeader), e}, m.Headers().Get("Oncemill-Id")})
	}
	return list, nil
}
