package main

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound is how long the test waits for what must happen.
const bound = 30 * time.Second

func TestACommandThatArrivesTwiceIsHandledOnce(t *testing.T) {
	db := testbed.NewDB(t)
	s := testbed.NewStream(t, func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{"charges", "receipts"} })
	for range 2 {
		cmd := &nats.Msg{Subject: "charges", Header: nats.Header{"name": {"ChargeCard"}}, Data: []byte(`{"PaymentID":"p-1"}`)}
		_, err := s.JS.PublishMsg(t.Context(), cmd)
		require.NoError(t, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, db.URL, s.Server.URL()) }()
	require.Eventually(t, func() bool { return acked(t, s, "cqrs") >= 2 }, bound, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)

	relay(t, db, s)
	receipt, err := s.Stream.GetLastMsgForSubject(t.Context(), "receipts")
	require.NoError(t, err)
	require.JSONEq(t, `{"PaymentID":"p-1"}`, string(receipt.Data))
	require.Equal(t, "SendReceipt", receipt.Header.Get("name"))
	require.EqualValues(t, 3, receipt.Sequence, "two copies of the command, one receipt")
	var rows int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM public.charges`).Scan(&rows))
	require.Equal(t, 1, rows)
}

// relay stands for the relay process.
func relay(t *testing.T, db *testbed.DB, s *testbed.Stream) {
	t.Helper()
	sink, err := outbox.JetStream(s.Conn, outbox.JetStreamConfig{})
	require.NoError(t, err)
	r, err := outbox.NewRelay(db.Pool, outbox.RelayConfig{Sink: sink})
	require.NoError(t, err)
	require.NoError(t, r.RunOnce(t.Context()))
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
