package main

import (
	"context"
	"fmt"
	"log/slog"
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
	return Bench{
		Name: "relay",
		Task: "drain 50,000 messages of 256 bytes, just written, to a JetStream stream on disk",
		Variants: []Variant{
			{Name: "raw-publish", InFlight: relayInFlight, Run: rawPublish},
			{Name: "forwarder", InFlight: 1, Run: forwarderDrain},
			{Name: "oncemill-1", InFlight: relayInFlight, Run: oncemillDrain,
				Against: []Baseline{{Variant: "raw-publish", Must: 0.4}, {Variant: "forwarder", Must: 15}}},
		},
	}
}

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

// oncemillDrain is one relay; the rows are kept.
func oncemillDrain(ctx context.Context, env *Env) (s Sample, err error) {
	err = env.database(ctx, relayConnections, func(_ string, pool *pgxpool.Pool) error {
		return env.stream(ctx, func(st *testbed.Stream) error {
			if err := writeOutbox(ctx, pool, st.Subject("new"), env.Scale.Rows); err != nil {
				return err
			}
			relay, err := newRelay(pool, st, nil)
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

// newRelay returns a relay with its defaults; box may be nil.
func newRelay(pool *pgxpool.Pool, st *testbed.Stream, box *outbox.Outbox) (*outbox.Relay, error) {
	sink, err := outbox.JetStream(st.Conn, outbox.JetStreamConfig{})
	if err != nil {
		return nil, err
	}
	return outbox.NewRelay(pool, outbox.RelayConfig{Outbox: box, Sink: sink, Logger: slog.New(slog.DiscardHandler)})
}

// writeOutbox writes n messages in transactions of loadBatch.
func writeOutbox(ctx context.Context, pool *pgxpool.Pool, topic string, n int) error {
	return inBatches(n, loadBatch, func(from, to int) error {
		msgs := make([]*message.Message, to-from)
		for i := range msgs {
			msgs[i] = message.NewMessage(uuid.NewString(), relayPayload)
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return outbox.Write(ctx, tx, topic, msgs...) })
	})
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
