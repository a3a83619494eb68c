package consumer_test

import (
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestC67_RetentionIsComparedWithTheStreamsMaxAge(t *testing.T) {
	b := newBench(t)
	week := testbed.NewStream(t, func(cfg *natsjs.StreamConfig) { cfg.MaxAge = 7 * 24 * time.Hour })
	ever := testbed.NewStream(t, nil)
	for _, tc := range []struct {
		stream    *testbed.Stream
		retention time.Duration
		found     bool
	}{
		{week, time.Hour, true}, {week, 7 * 24 * time.Hour, true}, {week, 8 * 24 * time.Hour, false}, {week, -1, false},
		{ever, 1000 * time.Hour, true}, {ever, -1, false},
	} {
		c := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.Inbox.Retention = tc.retention })
		sub, err := jetstream.New(tc.stream.Conn, jetstream.Config{Durable: "d"})
		require.NoError(t, err)
		findings, err := c.CheckSource(t.Context(), "charge", sub, tc.stream.Subject("new"))
		require.NoError(t, err)
		require.Equal(t, tc.found, len(findings) == 1, "%v", findings)
		if tc.found {
			require.Equal(t, "Inbox.Retention", findings[0].Setting)
		}
		require.NoError(t, sub.Close())
	}
}

func TestTheHandlersDeadlineIsComparedWithTheRedelivery(t *testing.T) {
	b := newBench(t)
	stream := testbed.NewStream(t, nil)
	for extend, found := range map[time.Duration]bool{0: false, time.Minute: true} {
		c := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.Inbox.Retention = -1 })
		sub, err := jetstream.New(stream.Conn, jetstream.Config{Durable: "d", MaxExtend: extend})
		require.NoError(t, err)
		findings, err := c.CheckSource(t.Context(), "charge", sub, stream.Subject("new"))
		require.NoError(t, err)
		require.Equal(t, found, len(findings) == 1, "%v", findings)
		require.NoError(t, sub.Close())
	}
	c := b.consumer(b.Pool, nil)
	findings, err := c.CheckSource(t.Context(), "charge", oneMessage{}, "x")
	require.NoError(t, err)
	require.Empty(t, findings, "a source that says nothing")
}
