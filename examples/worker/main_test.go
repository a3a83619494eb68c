package main

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound is how long the test waits for what must happen.
const bound = 30 * time.Second

func TestAnEventThatArrivesTwiceChargesOnce(t *testing.T) {
	db := testbed.NewDB(t)
	s := testbed.NewStream(t, func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{"payments.>"} })
	for range 2 {
		event := &nats.Msg{Subject: "payments.requested", Header: nats.Header{"event_id": {"evt-1"}}, Data: []byte(`{"amount":5}`)}
		_, err := s.JS.PublishMsg(t.Context(), event)
		require.NoError(t, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, db.URL, s.Server.URL()) }()
	require.Eventually(t, func() bool { return acked(t, s, "worker") >= 2 && sent(t, s) > 0 }, bound, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)

	require.EqualValues(t, 1, sent(t, s), "outgoing messages")
	for _, table := range []string{"public.charges", "oncemill.outbox"} {
		var rows int
		require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&rows))
		require.Equal(t, 1, rows, table)
	}
}

// acked is the position in the stream up to which the durable is done.
func acked(t *testing.T, s *testbed.Stream, durable string) uint64 {
	t.Helper()
	c, err := s.Stream.Consumer(t.Context(), durable)
	if err != nil { // it is not there yet
		return 0
	}
	info, err := c.Info(t.Context())
	require.NoError(t, err)
	return info.AckFloor.Stream
}

// sent is how many outgoing messages the stream holds.
func sent(t *testing.T, s *testbed.Stream) uint64 {
	t.Helper()
	info, err := s.Stream.Info(t.Context(), jetstream.WithSubjectFilter("payments.commands"))
	require.NoError(t, err)
	return info.State.Subjects["payments.commands"]
}
