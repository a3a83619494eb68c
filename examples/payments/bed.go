package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	// durableName is the position that all workers share.
	durableName = "charge-account"
	// ackWait is how long the messages of a killed worker stay away.
	ackWait = 3 * time.Second
	// maxAge is how long the broker can deliver a payment: less than the inbox
	// remembers it.
	maxAge = 24 * time.Hour
	// closeBound bounds the way out.
	closeBound = 20 * time.Second
)

// tables of the service. Nothing in them keeps a payment from being entered
// twice.
const tables = `
	CREATE TABLE public.ledger (
		entry      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		payment_id text   NOT NULL,
		account    text   NOT NULL,
		amount     bigint NOT NULL
	);
	CREATE TABLE public.balances (
		account text   PRIMARY KEY,
		amount  bigint NOT NULL
	)`

// bed is the two servers and what the workers find there.
type bed struct {
	postgres *testbed.Postgres
	nats     *testbed.NATS
	db       *testbed.DB
	// payments holds the events, commands what the handler sends.
	payments, commands *testbed.Stream
	durable            jetstream.Consumer
	group              bool
}

// openBed starts PostgreSQL and NATS and sets them up.
func openBed(ctx context.Context, o options) (*bed, error) {
	b := &bed{group: o.group}
	if err := errors.Join(b.openDatabase(ctx, o), b.openStreams(ctx)); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bed) openDatabase(ctx context.Context, o options) (err error) {
	b.postgres, err = testbed.StartPostgres(ctx, testbed.PostgresConfig{
		// Servers crash here, not machines: what was written to files stays. Syncing
		// them would cost a third of the time and change nothing else.
		NoFsync:  true,
		Settings: map[string]string{"max_connections": strconv.Itoa(50 + o.workers*2*connections)}, // killed ones linger
	})
	if err != nil {
		return err
	}
	if b.db, err = b.postgres.OpenDB(ctx); err != nil {
		return err
	}
	if _, err = b.db.Pool.Exec(ctx, tables); err != nil {
		return fmt.Errorf("create the tables of the service: %w", err)
	}
	return oncemill.Migrate(ctx, b.db.Pool, oncemill.MigrateConfig{})
}

func (b *bed) openStreams(ctx context.Context) (err error) {
	if b.nats, err = testbed.StartNATSProcess(ctx, testbed.NATSConfig{}); err != nil {
		return err
	}
	keep := func(c *jetstream.StreamConfig) { c.MaxAge = maxAge }
	if b.payments, err = b.nats.OpenStream(ctx, keep); err != nil {
		return err
	}
	if b.commands, err = b.nats.OpenStream(ctx, nil); err != nil {
		return err
	}
	b.durable, err = b.payments.Stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable:       durableName,
		FilterSubject: b.payments.Subject("requested"),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1,
	})
	return err
}

// workerArgs tell a worker where everything is.
func (b *bed) workerArgs() []string {
	cfg, _ := json.Marshal(workerConfig{ // nothing in it can fail
		Database:  b.db.URL,
		NATS:      b.nats.URL(),
		Stream:    b.payments.Name,
		Durable:   durableName,
		Requested: b.payments.Subject("requested"),
		Commands:  b.commands.Subject("charge"),
		Group:     b.group,
	})
	return []string{string(cfg)}
}

// close removes everything. It works on a bed that was opened half.
func (b *bed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	var err error
	for _, s := range []*testbed.Stream{b.payments, b.commands} {
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
