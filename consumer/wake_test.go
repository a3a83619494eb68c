package consumer_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// The relay of this test polls once an hour: without a wake-up it sends nothing.
func TestWritesOfAHandlerWakeTheRelay(t *testing.T) {
	b := newBench(t)
	stream := testbed.NewStream(t, nil)
	box, err := outbox.New(outbox.Config{})
	require.NoError(t, err)
	sink, err := outbox.JetStream(stream.Conn, outbox.JetStreamConfig{})
	require.NoError(t, err)
	relay, err := outbox.NewRelay(b.Pool, outbox.RelayConfig{Outbox: box, Sink: sink, Poll: time.Hour, Lease: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = relay.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	eventually(t, func() bool { return relay.Stats().Lanes == 4 })

	write := func(ctx context.Context, tx consumer.Tx) error {
		return outbox.Write(ctx, tx, stream.Subject("a"), message.NewMessage("", []byte("x")))
	}
	c := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.Outbox = box })
	for i, h := range []message.HandlerFunc{
		c.Handler("one", func(ctx context.Context, tx consumer.Tx, _ *message.Message) ([]*message.Message, error) {
			return nil, write(ctx, tx)
		}),
		c.SetHandler("all", func(ctx context.Context, tx consumer.Tx, _ []*message.Message) ([][]*message.Message, error) {
			return nil, write(ctx, tx)
		}),
	} {
		require.True(t, deliver(t, h, event("k", "a")).acked)
		eventually(t, func() bool { return relay.Stats().Sent == uint64(i+1) })
	}
}
