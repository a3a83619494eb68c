package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/header"
	"github.com/oncemill/oncemill/outbox"
)

// sent returns the headers of the messages in the outbox, by topic.
func (b bench) sent() map[string]map[string]string {
	b.t.Helper()
	rows, err := b.Pool.Query(b.t.Context(), `SELECT topic, header FROM oncemill.outbox`)
	require.NoError(b.t, err)
	got := map[string]map[string]string{}
	var topic string
	var encoded []byte
	_, err = pgx.ForEachRow(rows, []any{&topic, &encoded}, func() (err error) {
		got[topic], err = header.DecodeMap(encoded)
		return err
	})
	require.NoError(b.t, err)
	return got
}

// to gives the deliveries of h a Router's publish topic.
func to(t *testing.T, topic string, h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		msg.SetContext(publishTopic(t, msg.Context(), topic))
		return h(msg)
	}
}

func TestCorrelationAndTraceGoOn(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	produce := func(ctx context.Context) ([]*message.Message, error) {
		published := message.NewMessage("", nil)
		published.SetContext(ctx)
		outbox.SetOrderingKey(published, "order")
		returned := message.NewMessage("", nil)
		returned.Metadata.Set("mine", "1")
		topic := message.PublishTopicFromCtx(ctx) + ".published"
		err := c.Publisher().Publish(topic, published)
		require.Empty(t, published.Metadata, "the message stays the user's")
		return []*message.Message{returned}, err
	}
	handlers := map[string]message.HandlerFunc{
		"handler": c.Handler("handler", func(ctx context.Context, _ consumer.Tx, msg *message.Message) ([]*message.Message, error) {
			clear(msg.Metadata) // the handler's own copy
			return produce(ctx)
		}),
		"middleware": c.Middleware("middleware")(func(msg *message.Message) ([]*message.Message, error) { return produce(msg.Context()) }),
	}
	trace := map[string]string{
		"correlation_id": "c-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"tracestate": "a=b", "baggage": "user=1",
	}
	for name, h := range handlers {
		msg := event(name, "a")
		for k, v := range trace {
			msg.Metadata.Set(k, v)
		}
		require.True(t, deliver(t, to(t, name, h), msg).acked)
		require.Equal(t, trace, b.sent()[name+".published"])
		mine := b.sent()[name]
		require.Equal(t, "1", mine["mine"])
		delete(mine, "mine")
		require.Equal(t, trace, mine)
	}
	require.Equal(t, len(handlers), b.count(`SELECT count(*) FROM oncemill.outbox WHERE ordering_key = 'order'`))
}

func TestCorrelationAndTraceOfTheirOwnStay(t *testing.T) {
	b := newBench(t)
	h := b.consumer(b.Pool, nil).Handler("charge", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
		own := message.NewMessage("", nil)
		own.Metadata = message.Metadata{"correlation_id": "own", "traceparent": "own"}
		return []*message.Message{own}, nil
	})
	msg := event("k", "a")
	msg.Metadata["correlation_id"], msg.Metadata["Traceparent"], msg.Metadata["tracestate"], msg.Metadata["Baggage"] = "in", "in", "in", "in"
	require.True(t, deliver(t, to(t, "out", h), msg).acked)
	require.Equal(t, map[string]string{"correlation_id": "own", "traceparent": "own", "Baggage": "in"}, b.sent()["out"],
		"a trace state belongs to its parent")
}

func TestATraceThatNATSCannotCarryIsLeftOut(t *testing.T) {
	b := newBench(t)
	bad := ""
	h := b.consumer(b.Pool, nil).Handler("charge", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
		own := message.NewMessage("", nil)
		if bad != "" {
			own.Metadata.Set("baggage", bad)
		}
		return []*message.Message{own}, nil
	})
	msg := event("k", "a")
	msg.Metadata["correlation_id"], msg.Metadata["traceparent"], msg.Metadata["baggage"] = "c-1", " blank", "two\r\nlines"
	require.True(t, deliver(t, to(t, "out", h), msg.Copy()).acked)
	require.Equal(t, map[string]string{"correlation_id": "c-1"}, b.sent()["out"])

	bad = "two\r\nlines of its own"
	msg.Metadata.Set("event_id", "other")
	var refused *outbox.RefusedError
	require.ErrorAs(t, deliver(t, to(t, "out", h), msg).err, &refused)
	require.Equal(t, "baggage", refused.Header)
}

// received sends msg through the outbox, a relay and JetStream.
func (b bench) received(s *testbed.Stream, msg *message.Message) *message.Message {
	t := b.t
	t.Helper()
	secret, err := dedup.NewProviderKeys([]byte("0123456789abcdef"), "test")
	require.NoError(t, err)
	first := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.ProviderKeys = secret }).Handler("first",
		func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
			outbox.SetOrderingKey(msg, "order")
			return []*message.Message{msg}, nil
		})
	require.True(t, deliver(t, to(t, s.Subject("in"), first), event("first", "a")).acked)
	sub, err := jetstream.New(s.Conn, jetstream.Config{Durable: "pass"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	messages, err := sub.Subscribe(t.Context(), s.Subject("in"))
	require.NoError(t, err)
	sink, err := outbox.JetStream(s.Conn, outbox.JetStreamConfig{})
	require.NoError(t, err)
	relay, err := outbox.NewRelay(b.Pool, outbox.RelayConfig{Sink: sink})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = relay.Run(ctx) }()
	defer func() { stop(); <-stopped }()
	select {
	case got := <-messages:
		got.Ack()
		return got
	case <-time.After(30 * time.Second):
		require.FailNow(t, "no message came")
		return nil
	}
}

// Passing a message on is usual: what describes the incoming copy stays behind.
func TestTheIncomingMessageCanBePassedOn(t *testing.T) {
	b := newBench(t)
	s := testbed.NewStream(t, nil)
	original := message.NewMessage("uuid", []byte("body"))
	original.Metadata.Set("kind", "paid")
	incoming := b.received(s, original)
	for _, name := range []string{outbox.HeaderID, outbox.HeaderProviderKey, outbox.HeaderTime, outbox.HeaderOrderingKey, outbox.HeaderBrokerID} {
		require.NotEmpty(t, incoming.Metadata[name], "the relay sends %s", name)
	}
	incoming.Metadata.Set(outbox.HeaderUUID, incoming.UUID) // as Subscribers leave it that don't know it

	c := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.Key = keys.LogicalID() })
	require.True(t, deliver(t, to(t, "passed", c.Middleware("pass")(message.PassthroughHandler)), incoming.Copy()).acked)
	require.Equal(t, map[string]string{"kind": "paid", outbox.HeaderUUID: "uuid"}, b.sent()["passed"])
	require.Equal(t, 1, b.count(`SELECT count(*) FROM oncemill.outbox WHERE topic = 'passed' AND payload = 'body' AND logical_id <> $1`, incoming.Metadata[outbox.HeaderID]))

	for name, h := range map[string]message.HandlerFunc{
		"changed": func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata.Set(outbox.HeaderID, "mine")
			return []*message.Message{msg}, nil
		},
		"added": func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata.Set("Nats-Mine", "")
			return []*message.Message{msg}, nil
		},
	} {
		var refused *outbox.RefusedError
		got := deliver(t, to(t, "passed", c.Middleware(name)(h)), incoming.Copy())
		require.ErrorAs(t, got.err, &refused, name)
		require.Equal(t, "header", refused.Field, name)
	}
}

func TestPublishingNilIsRefused(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	require.ErrorContains(t, c.Publisher().Publish("out", nil), "message 0 of 1, counted from 0, is nil")
}
