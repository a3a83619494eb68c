package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

const (
	// relayInFlight is what one relay has in flight by default: 4 lanes with a
	// window of 1024. The raw publisher gets the same.
	relayInFlight = 4096
	// relayConnections is what a relay uses: two for its lanes, one for itself.
	relayConnections = 3
	// stallWait is how long the raw publisher waits for room: a full window is
	// no failure.
	stallWait = 30 * time.Second
	// loadBatch is how many rows are written at a time before a drain.
	loadBatch = 500
)

func relayBench() Bench {
	raw, one := Baseline{Variant: "raw-publish"}, Baseline{Variant: "oncemill-1"}
	must := func(b Baseline, ratio float64) Baseline {
		b.Must = ratio
		return b
	}
	return Bench{
		Name: "relay",
		Task: "drain 50,000 messages of 256 bytes, just written, to a JetStream stream on disk",
		Variants: []Variant{
			{Name: "raw-publish", InFlight: relayInFlight, Run: rawPublish},
			{Name: "forwarder", InFlight: 1, Run: forwarderDrain(forwarderConfig{}), Against: []Baseline{raw}},
			{Name: "forwarder-tuned", InFlight: 1, Run: forwarderDrain(tunedForwarder), Against: []Baseline{raw}},
			{Name: "oncemill-1", InFlight: relayInFlight, Run: drain{key: noKey}.run,
				Against: []Baseline{must(raw, 0.4), {Variant: "forwarder", Must: 25}}},
			{Name: "oncemill-3", InFlight: relayInFlight, Run: oncemillTogether, Against: []Baseline{raw, one}},
			{Name: "oncemill-1-keyed", InFlight: relayInFlight, Run: drain{key: oneOfKeys}.run, Against: []Baseline{raw, must(one, 0.7)}},
			{Name: "oncemill-1-hotkey", InFlight: relayInFlight, Run: drain{key: hotKey}.run, Against: []Baseline{raw, one}},
			{Name: "oncemill-1-delete", InFlight: relayInFlight, Run: drain{key: noKey, deleteSent: true}.run, Against: []Baseline{must(raw, 0.45), one}},
			{Name: "oncemill-1-oldsnapshot", InFlight: relayInFlight, Run: drain{key: noKey, oldSnapshot: true}.run,
				Against: []Baseline{raw, must(one, 0.8)}},
		},
	}
}

// orderingKey is that of message i; "" for none.
type orderingKey func(i int) string

func noKey(int) string       { return "" }
func oneOfKeys(i int) string { return strconv.Itoa(i % 1000) }
func hotKey(int) string      { return "hot" }

var relayPayload = []byte(`{"note":"` + strings.Repeat("x", payloadSize-len(`{"note":""}`)) + `"}`)

// rawPublish is nats.go alone, without a database.
func rawPublish(ctx context.Context, env *Env) (s Sample, err error) {
	err = env.stream(ctx, func(st *testbed.Stream) error {
		js, err := jetstream.New(st.Conn, jetstream.WithPublishAsyncMaxPending(relayInFlight))
		if err != nil {
			return err
		}
		ids := make([]string, env.Scale.Rows)
		for i := range ids {
			ids[i] = uuid.NewString()
		}
		start := time.Now()
		for _, id := range ids {
			msg := &nats.Msg{Subject: st.Subject("new"), Header: nats.Header{outbox.HeaderBrokerID: {id}}, Data: relayPayload}
			if _, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(stallWait)); err != nil {
				return err
			}
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-ctx.Done():
			return ctx.Err()
		}
		s = Sample{Ops: len(ids), Elapsed: time.Since(start)}
		return arrived(ctx, st, len(ids))
	})
	return s, err
}

// drain is one relay.
type drain struct {
	key         orderingKey
	deleteSent  bool // else the rows are kept
	oldSnapshot bool // another transaction sees the time before the rows
}

func (d drain) run(ctx context.Context, env *Env) (s Sample, err error) {
	err = env.database(ctx, relayConnections+1, func(_ string, pool *pgxpool.Pool) error {
		return env.stream(ctx, func(st *testbed.Stream) error {
			if d.oldSnapshot {
				tx, err := holdSnapshot(ctx, pool)
				if err != nil {
					return err
				}
				defer tx.Rollback(context.WithoutCancel(ctx))
			}
			if err := writeOutbox(ctx, pool, st.Subject("new"), env.Scale.Rows, d.key); err != nil {
				return err
			}
			relay, err := newRelay(pool, st, outbox.RelayConfig{DeleteSent: d.deleteSent})
			if err != nil {
				return err
			}
			if err := checkpoint(ctx, pool); err != nil {
				return err
			}
			s, err = measured(ctx, pool, func() (Sample, error) {
				start := time.Now()
				err := relay.RunOnce(ctx)
				return Sample{Ops: env.Scale.Rows, Elapsed: time.Since(start)}, err
			})
			if err != nil {
				return err
			}
			return arrived(ctx, st, env.Scale.Rows)
		})
	})
	return s, err
}

// holdSnapshot begins a transaction that keeps dead rows from being cleared
// away, as a long report does.
func holdSnapshot(ctx context.Context, pool *pgxpool.Pool) (pgx.Tx, error) {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, `SELECT count(*) FROM oncemill.outbox_queue`)
	return tx, err
}

const (
	// relaysTogether share the lanes of one outbox.
	relaysTogether = 3
	// relayLanes is how many lanes an outbox has by default, and lanesEach the
	// most that one of relaysTogether holds.
	relayLanes, lanesEach = 4, 2
	// look is how often the relays are asked how far they are.
	look = time.Millisecond
	// shareBound is how long the relays may take to share the lanes, drainBound
	// how long to send.
	shareBound, drainBound = time.Minute, 5 * time.Minute
)

// oncemillTogether is three relays in this process, which have shared the lanes
// before the rows are committed, all at once. It ends when all are marked.
func oncemillTogether(ctx context.Context, env *Env) (s Sample, err error) {
	err = env.database(ctx, relaysTogether*relayConnections+1, func(_ string, pool *pgxpool.Pool) error {
		return env.stream(ctx, func(st *testbed.Stream) error {
			box, err := outbox.New(outbox.Config{})
			if err != nil {
				return err
			}
			relays := make([]*outbox.Relay, relaysTogether)
			for i := range relays {
				if relays[i], err = newRelay(pool, st, outbox.RelayConfig{Outbox: box}); err != nil {
					return err
				}
				defer background(ctx, relays[i].Run)()
			}
			if err := await(ctx, shareBound, func() (bool, error) { return shared(relays), nil }); err != nil {
				return fmt.Errorf("wait for the relays to share the lanes: %w", err)
			}
			s, err = drainTogether(ctx, env, st, pool, box)
			return err
		})
	})
	return s, err
}

func shared(relays []*outbox.Relay) bool {
	held, most := 0, 0
	for _, r := range relays {
		n := r.Stats().Lanes
		held, most = held+n, max(most, n)
	}
	return held == relayLanes && most <= lanesEach
}

// drainTogether measures from the commit of the rows on.
func drainTogether(ctx context.Context, env *Env, st *testbed.Stream, pool *pgxpool.Pool, box *outbox.Outbox) (s Sample, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return s, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	err = inBatches(env.Scale.Rows, loadBatch, func(from, to int) error {
		return box.Write(ctx, tx, st.Subject("new"), relayMessages(from, to, noKey)...)
	})
	if err != nil {
		return s, err
	}
	if err := checkpoint(ctx, pool); err != nil {
		return s, err
	}
	s, err = measured(ctx, pool, func() (Sample, error) {
		if err := tx.Commit(ctx); err != nil {
			return Sample{}, err
		}
		start := time.Now()
		box.Notify()
		err := await(ctx, drainBound, func() (left bool, err error) {
			err = pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM oncemill.outbox_queue)`).Scan(&left)
			return left, err
		})
		return Sample{Ops: env.Scale.Rows, Elapsed: time.Since(start)}, err
	})
	if err != nil {
		return s, err
	}
	return s, arrived(ctx, st, env.Scale.Rows)
}

// sleep waits for d.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await looks until done says so.
func await(ctx context.Context, bound time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// newRelay returns a relay to the stream with what cfg says.
func newRelay(pool *pgxpool.Pool, st *testbed.Stream, cfg outbox.RelayConfig) (*outbox.Relay, error) {
	var err error
	if cfg.Sink, err = outbox.JetStream(st.Conn, outbox.JetStreamConfig{}); err != nil {
		return nil, err
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	return outbox.NewRelay(pool, cfg)
}

// writeOutbox writes n messages in transactions of loadBatch.
func writeOutbox(ctx context.Context, pool *pgxpool.Pool, topic string, n int, key orderingKey) error {
	return inBatches(n, loadBatch, func(from, to int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return outbox.Write(ctx, tx, topic, relayMessages(from, to, key)...)
		})
	})
}

func relayMessages(from, to int, key orderingKey) []*message.Message {
	msgs := make([]*message.Message, to-from)
	for i := range msgs {
		msgs[i] = message.NewMessage(uuid.NewString(), relayPayload)
		outbox.SetOrderingKey(msgs[i], key(from+i))
	}
	return msgs
}

// arrived makes sure that the stream holds n messages: a figure for less work
// is none.
func arrived(ctx context.Context, st *testbed.Stream, n int) error {
	info, err := st.Stream.Info(ctx)
	if err != nil {
		return err
	}
	if info.State.Msgs != uint64(n) {
		return fmt.Errorf("the stream holds %d messages, %d were sent", info.State.Msgs, n)
	}
	return nil
}
