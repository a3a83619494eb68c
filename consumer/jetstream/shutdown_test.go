package jetstream_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

func closing(sub *jetstream.Subscriber) <-chan error {
	done := make(chan error, 1)
	go func() { done <- sub.Close() }()
	return done
}

func result(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(waitBound):
		require.FailNow(t, "it did not end")
		return nil
	}
}

// waitClosed reads a channel up to its end; what still comes is acked.
func waitClosed(t *testing.T, msgs <-chan *message.Message) {
	t.Helper()
	for {
		select {
		case msg, open := <-msgs:
			if !open {
				return
			}
			msg.Ack()
		case <-time.After(waitBound):
			require.FailNow(t, "the channel was not closed")
		}
	}
}

func TestCloseWaitsForMessagesInFlight(t *testing.T) {
	t.Parallel()
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: 2 * time.Second})
	msgs := subscribe(t, sub, s.Subject("new"))
	msg := next(t, msgs)
	done := closing(sub)
	waitClosed(t, msgs)
	extensions := sub.Stats().Extensions
	eventually(t, func() bool { return sub.Stats().Extensions > extensions+3 }, "signs of progress ended")
	require.NoError(t, msg.Context().Err(), "the handler is to finish")
	require.Empty(t, done)
	msg.Ack()
	require.NoError(t, result(t, done))
	require.Zero(t, info(t, s, "worker").NumAckPending, "the ack was not sent when Close returned")
	require.EqualValues(t, 1, info(t, s, "worker").Delivered.Consumer)
	require.False(t, s.Conn.IsClosed(), "the connection is not ours")
}

func TestCloseIsBounded(t *testing.T) {
	for _, bound := range []time.Duration{100 * time.Millisecond, -1} {
		s := testbed.NewStream(t, nil)
		publish(t, s, "new", "x")
		sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: time.Second, CloseTimeout: bound})
		msgs := subscribe(t, sub, s.Subject("new"))
		msg := next(t, msgs)
		require.ErrorContains(t, sub.Close(), "1 messages were not settled")
		waitClosed(t, msgs)
		require.Error(t, msg.Context().Err())
		msg.Nack() // too late to be heard

		again := next(t, subscribe(t, newSubscriber(t, s.Conn, jetstream.Config{}), s.Subject("new")))
		require.EqualValues(t, 2, delivery(t, again).Count)
		again.Ack()
		waitSettled(t, s, "worker")
		require.Zero(t, sub.Stats().Nacked)
	}
}

// With such an AckWait any message that is left behind would hang the test.
func TestShutdownUnderLoadLeavesNothingBehind(t *testing.T) {
	const total = 3000
	s := testbed.NewStream(t, nil)
	publishMany(t, s, "new", total)
	seen := map[uint64]bool{}
	for len(seen) < total {
		sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever, InFlight: 100})
		msgs := subscribe(t, sub, s.Subject("new"))
		handled := 0
		for handled < 300 && len(seen) < total {
			msg := next(t, msgs)
			seen[delivery(t, msg).Sequence] = true
			msg.Ack()
			handled++
		}
		done := closing(sub)
		for msg := range msgs {
			seen[delivery(t, msg).Sequence] = true
			msg.Ack()
		}
		require.NoError(t, result(t, done))
		stats := sub.Stats()
		require.Equal(t, stats.Fetched, stats.Acked+stats.Returned)
	}
	waitSettled(t, s, "worker")
}

func TestSubscribeContextEndsOneSubscription(t *testing.T) {
	type key struct{}
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever, InFlight: 1})
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	msgs, err := sub.Subscribe(ctx, s.Subject("new"))
	require.NoError(t, err)
	msg := next(t, msgs)
	require.Equal(t, "value", msg.Context().Value(key{}))

	other := subscribe(t, sub, s.Subject("new"))
	cancel()
	waitClosed(t, msgs)
	require.NoError(t, msg.Context().Err(), "the handler is to finish")
	msg.Nack()
	again := next(t, other)
	require.EqualValues(t, 2, delivery(t, again).Count)
	again.Ack()
	waitSettled(t, s, "worker")
	require.NoError(t, sub.Close())
}

func TestMessagesNobodyTookAreReturned(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publishMany(t, s, "new", 5)
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever})
	subscribe(t, sub, s.Subject("new"))
	eventually(t, func() bool { return sub.Stats().InFlight == 5 }, "not fetched")
	require.NoError(t, sub.Close())
	require.EqualValues(t, 5, sub.Stats().Returned)

	msgs := subscribe(t, newSubscriber(t, s.Conn, jetstream.Config{}), s.Subject("new"))
	for range 5 {
		next(t, msgs).Ack()
	}
	waitSettled(t, s, "worker")
}

func TestClosedConnectionEndsTheSubscription(t *testing.T) {
	s := testbed.NewStream(t, nil)
	conn, err := s.Server.Connect()
	require.NoError(t, err)
	sub := newSubscriber(t, conn, jetstream.Config{})
	msgs := subscribe(t, sub, s.Subject("new"))
	conn.Close()
	waitClosed(t, msgs)
	require.NoError(t, result(t, closing(sub)))
}

func TestRouterFinishesItsHandlers(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publishMany(t, s, "new", 200)
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever, InFlight: 20})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: waitBound}, watermill.NopLogger{})
	require.NoError(t, err)
	var mu sync.Mutex
	handled := map[uint64]int{}
	enough := make(chan struct{})
	router.AddConsumerHandler("h", s.Subject("new"), sub, func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		handled[delivery(t, msg).Sequence]++
		if len(handled) == 50 {
			close(enough)
		}
		return msg.Context().Err()
	})
	ran := make(chan error, 1)
	go func() { ran <- router.Run(t.Context()) }()
	<-enough
	require.NoError(t, router.Close())
	require.NoError(t, result(t, ran))
	require.NoError(t, sub.Close())
	require.Zero(t, sub.Stats().Nacked, "a handler's context ended under it")
	for seq, times := range handled {
		require.Equal(t, 1, times, seq)
	}
	ci := info(t, s, "worker")
	require.EqualValues(t, 200, int(ci.NumPending)+ci.NumAckPending+len(handled))
}
