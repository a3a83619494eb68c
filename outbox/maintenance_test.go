package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/header"
	"github.com/oncemill/oncemill/outbox"
)

func encodeHeader(name, value string) []byte {
	return header.EncodeMap(map[string]string{name: value})
}

func TestRepublish(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	for i := range 25 {
		write(t, db, o, s.Subject("a"), keyed(fmt.Sprint("k ", i), "k"))
	}
	exec(t, db, `UPDATE oncemill.outbox SET created_at = created_at - interval '2 hours' WHERE id <= 5`)
	relay := newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
	runOnce(t, relay)
	write(t, db, o, s.Subject("a"), keyed("k 25", "k"))

	now := scalar[time.Time](t, db, `SELECT clock_timestamp()`)
	cfg := outbox.RepublishConfig{Since: now.Add(-time.Hour), Batch: 3}
	_, err := o.Republish(t.Context(), db.Pool, cfg)
	require.ErrorContains(t, err, "Horizon")
	cfg.Horizon = 30 * time.Minute
	_, err = o.Republish(t.Context(), db.Pool, cfg)
	require.ErrorContains(t, err, "Since")
	cfg.Horizon = 2 * time.Hour
	for round := 1; round <= 2; round++ {
		n, err := o.Republish(t.Context(), db.Pool, cfg)
		require.NoError(t, err)
		require.EqualValues(t, 19+round, n, "sent rows of the last hour, in the first round without the queued one")
		runOnce(t, relay)
	}
	msgs := stored(t, s)
	require.Len(t, msgs, 26+20+21)
	checkHistory(t, msgs, map[string]int{"k": 26})
	broker := map[string]bool{}
	for _, m := range msgs {
		id := m.Header.Get(outbox.HeaderBrokerID)
		require.False(t, broker[id], "each round has broker ids of its own")
		broker[id] = true
	}
}

func TestWatermillPublisherSink(t *testing.T) {
	db := newDB(t)
	o := newOutbox(t, outbox.Config{})
	pubsub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	t.Cleanup(func() { _ = pubsub.Close() })
	received, err := pubsub.Subscribe(t.Context(), "topic-name")
	require.NoError(t, err)
	msg := message.NewMessage("uuid-1", []byte("k 0"))
	msg.Metadata["a"] = "b"
	outbox.SetOrderingKey(msg, "k")
	write(t, db, o, "topic-name", msg, keyed("k 1", "k"), keyed("k 2", "k"))

	flaky := &flakyPublisher{Publisher: pubsub, failures: 2}
	sink, err := outbox.WatermillPublisher(flaky, outbox.WatermillConfig{})
	require.NoError(t, err)
	std := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { _ = std.Close() })
	relay, err := outbox.NewRelaySQL(std, relayConfig(sink))
	require.NoError(t, err)
	run(t, relay)
	for i := range 3 {
		got := <-received
		got.Ack()
		require.Equal(t, fmt.Sprint("k ", i), string(got.Payload))
		if i == 0 {
			require.Equal(t, "uuid-1", got.UUID)
			require.Equal(t, "b", got.Metadata["a"])
		}
		require.NotEmpty(t, got.Metadata[outbox.HeaderID])
		require.Equal(t, "k", got.Metadata[outbox.HeaderOrderingKey])
	}
	drained(t, db)
	require.EqualValues(t, 2, relay.Stats().InDoubt)
}

func TestWatermillPublisherSinkClassifies(t *testing.T) {
	db := newDB(t)
	o := newOutbox(t, outbox.Config{})
	refused := errors.New("a secret in the error text")
	sink, err := outbox.WatermillPublisher(&flakyPublisher{err: refused, failures: 1 << 30}, outbox.WatermillConfig{
		Classify: func(err error) (outbox.Outcome, string) {
			if errors.Is(err, refused) {
				return outbox.Unsendable, "refused\n\x00for good"
			}
			return outbox.InDoubt, ""
		},
	})
	require.NoError(t, err)
	write(t, db, o, "topic", newMessage("x"))
	runOnce(t, newRelay(t, db, relayConfig(sink)))
	parked, err := o.Parked(t.Context(), db.Pool, 10)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, "refused  for good", parked[0].Reason)
}

// flakyPublisher fails some times, then works.
type flakyPublisher struct {
	message.Publisher
	failures int
	err      error
}

func (p *flakyPublisher) Publish(topic string, msgs ...*message.Message) error {
	if p.failures > 0 {
		p.failures--
		if p.err == nil {
			return context.DeadlineExceeded
		}
		return p.err
	}
	return p.Publisher.Publish(topic, msgs...)
}
