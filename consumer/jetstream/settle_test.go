package jetstream_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestNackComesBackAtOnce(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever})
	msgs := subscribe(t, sub, s.Subject("new"))
	first := next(t, msgs)
	first.Nack()
	<-first.Context().Done()
	second := next(t, msgs)
	require.EqualValues(t, 2, delivery(t, second).Count)
	require.Equal(t, delivery(t, first).Sequence, delivery(t, second).Sequence)
	second.Ack()
	waitSettled(t, s, "worker")
	require.EqualValues(t, 1, sub.Stats().Nacked)
}

// The delay is far from the AckWait on both sides: neither a sign of progress
// nor the AckWait may take its place.
func TestDelayedNack(t *testing.T) {
	for name, ackWait := range map[string]time.Duration{"shorter AckWait": 300 * time.Millisecond, "longer AckWait": forever} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const delay = 700 * time.Millisecond
			s := testbed.NewStream(t, nil)
			publish(t, s, "new", "x")
			sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: ackWait})
			msgs := subscribe(t, sub, s.Subject("new"))
			first := next(t, msgs)
			delivery(t, first).NackAfter(delay)
			nacked := time.Now()
			first.Nack()
			second := next(t, msgs)
			require.GreaterOrEqual(t, time.Since(nacked), delay)
			require.EqualValues(t, 2, delivery(t, second).Count)
			second.Ack()
			waitSettled(t, s, "worker")
		})
	}
}

func TestTerminate(t *testing.T) {
	for _, confirm := range []bool{false, true} {
		s := testbed.NewStream(t, nil)
		advisories, err := s.Conn.SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED." + s.Name + ".worker")
		require.NoError(t, err)
		publish(t, s, "new", "x")
		sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever, AckConfirm: confirm})
		msg := next(t, subscribe(t, sub, s.Subject("new")))
		delivery(t, msg).Terminate()
		msg.Ack()
		waitSettled(t, s, "worker")
		m, err := advisories.NextMsg(waitBound)
		require.NoError(t, err)
		var advisory struct {
			Seq uint64 `json:"stream_seq"`
		}
		require.NoError(t, json.Unmarshal(m.Data, &advisory))
		require.EqualValues(t, 1, advisory.Seq)
		eventually(t, func() bool { return sub.Stats().Terminated == 1 }, "not counted")
		require.Zero(t, sub.Stats().Acked)
	}
}

func TestC39_AckLostWithTheConnection(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	proxy, conn := proxied(t, s)
	sub := newSubscriber(t, conn, jetstream.Config{AckWait: time.Second})
	msgs := subscribe(t, sub, s.Subject("new"))
	first := next(t, msgs)

	// The ack is written and never arrives.
	proxy.Stall(testbed.ToServer)
	first.Ack()
	eventually(t, func() bool { return sub.Stats().Acked == 1 }, "not acked")
	require.NoError(t, flushed(conn))
	proxy.Cut()
	proxy.Resume(testbed.ToServer)

	second := next(t, msgs)
	require.EqualValues(t, 2, delivery(t, second).Count)
	second.Ack()
	waitSettled(t, s, "worker")
}

func TestC39_ConfirmedAckIsSentAgain(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	proxy, conn := proxied(t, s)
	sub := newSubscriber(t, conn, jetstream.Config{AckWait: 8 * time.Second, AckConfirm: true})
	first := next(t, subscribe(t, sub, s.Subject("new")))

	proxy.Stall(testbed.ToServer)
	first.Ack()
	<-first.Context().Done()
	require.Equal(t, 1, info(t, s, "worker").NumAckPending)
	proxy.Cut()
	require.Zero(t, sub.Stats().Acked, "counted before the server confirmed it")
	proxy.Resume(testbed.ToServer)

	eventually(t, func() bool { return sub.Stats().Acked == 1 }, "not confirmed")
	waitSettled(t, s, "worker")
	require.EqualValues(t, 1, info(t, s, "worker").Delivered.Consumer, "delivered again although acked")
	require.Zero(t, sub.Stats().SettleFailures)
}

// An answer to the ack that is lost must not be taken for a lost ack for ever.
func TestConfirmedAckWhoseAnswerIsLost(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	proxy, conn := proxied(t, s)
	sub := newSubscriber(t, conn, jetstream.Config{AckWait: 8 * time.Second, AckConfirm: true})
	first := next(t, subscribe(t, sub, s.Subject("new")))
	proxy.Drop(testbed.ToClient)
	first.Ack()
	waitSettled(t, s, "worker")
	require.Zero(t, sub.Stats().Acked)
	proxy.Restore(testbed.ToClient)
	eventually(t, func() bool { return sub.Stats().Acked == 1 }, "not confirmed")
	require.EqualValues(t, 1, info(t, s, "worker").Delivered.Consumer)
}

func TestSettleFailureIsLoggedAndCounted(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	proxy, conn := proxied(t, s)
	log := newRecorder()
	sub := newSubscriber(t, conn, jetstream.Config{AckWait: time.Second, Logger: log})
	msgs := subscribe(t, sub, s.Subject("new"))
	first := next(t, msgs)
	proxy.Down()
	eventually(t, func() bool { return !conn.IsConnected() }, "still connected")
	require.True(t, first.Ack(), "the handler sees no error")
	eventually(t, func() bool { return sub.Stats().SettleFailures == 1 }, "not counted")
	require.True(t, log.has(func(error) bool { return true }))
	proxy.Up()
	second := next(t, msgs)
	require.EqualValues(t, 2, delivery(t, second).Count)
	second.Ack()
	waitSettled(t, s, "worker")
}
