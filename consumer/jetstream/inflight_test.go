package jetstream_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestInFlightIsBounded(t *testing.T) {
	const bound, total = 5, 200
	s := testbed.NewStream(t, nil)
	publishMany(t, s, "new", total)
	sub := newSubscriber(t, s.Conn, jetstream.Config{InFlight: bound, AckWait: forever})
	msgs := subscribe(t, sub, s.Subject("new"))

	// Nobody takes a message: what the server has handed out is all we hold.
	eventually(t, func() bool { return sub.Stats().InFlight == bound }, "the room was not used")
	require.Equal(t, bound, info(t, s, "worker").NumAckPending)

	// Taken and not settled, they still use the room.
	taken := make(chan func(), total)
	for range bound {
		taken <- func() { next(t, msgs).Ack() }
	}
	close(taken)
	for settle := range taken {
		settle()
	}
	for i := bound; i < total; i++ {
		msg := next(t, msgs)
		require.LessOrEqual(t, sub.Stats().InFlight, bound)
		msg.Ack()
	}
	waitSettled(t, s, "worker")
	require.EqualValues(t, total, sub.Stats().Fetched)
}

// A message that is in flight does not keep others from being fetched.
func TestSlowMessageKeepsOneSlot(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publishMany(t, s, "new", 50)
	msgs := subscribe(t, newSubscriber(t, s.Conn, jetstream.Config{InFlight: 2, AckWait: forever}), s.Subject("new"))
	slow := next(t, msgs)
	for range 49 {
		next(t, msgs).Ack()
	}
	slow.Ack()
	waitSettled(t, s, "worker")
}

func TestC33_NoAckWaitRunsOutBeforeTheHandler(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			t.Parallel()
			s := testbed.NewStream(t, nil)
			publishMany(t, s, "new", 20)
			sub := newSubscriber(t, s.Conn, jetstream.Config{InFlight: 100, AckWait: 2 * time.Second})
			msgs := subscribe(t, sub, s.Subject("new"))
			var all sync.WaitGroup
			var handled atomic.Int32
			for range workers {
				all.Go(func() {
					for handled.Add(1) <= 20 {
						msg := next(t, msgs)
						<-time.After(250 * time.Millisecond) // the handler's work
						msg.Ack()
					}
				})
			}
			all.Wait()
			waitSettled(t, s, "worker")
			require.EqualValues(t, 20, info(t, s, "worker").Delivered.Consumer, "some were delivered again")
		})
	}
}

func TestHandlerLongerThanAckWait(t *testing.T) {
	t.Parallel()
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: 2 * time.Second})
	msg := next(t, subscribe(t, sub, s.Subject("new")))
	// Six signs are two AckWaits.
	eventually(t, func() bool { return sub.Stats().Extensions >= 6 }, "no signs of progress")
	msg.Ack()
	waitSettled(t, s, "worker")
	require.EqualValues(t, 1, info(t, s, "worker").Delivered.Consumer)
}

func TestHangingHandlerLosesTheMessage(t *testing.T) {
	t.Parallel()
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	cfg := jetstream.Config{AckWait: 300 * time.Millisecond, MaxExtend: 600 * time.Millisecond, InFlight: 1}
	hanging := newSubscriber(t, s.Conn, cfg)
	hung := next(t, subscribe(t, hanging, s.Subject("new")))

	other := newSubscriber(t, s.Conn, jetstream.Config{})
	msg := next(t, subscribe(t, other, s.Subject("new")))
	require.EqualValues(t, 2, delivery(t, msg).Count)
	require.GreaterOrEqual(t, hanging.Stats().Extensions, uint64(1))
	require.NoError(t, hung.Context().Err())

	// The late nack must not take the message away from the other one.
	hung.Nack()
	eventually(t, func() bool { return hanging.Stats().Lapsed == 1 }, "the late nack was sent")
	msg.Ack()
	waitSettled(t, s, "worker")
	require.EqualValues(t, 2, info(t, s, "worker").Delivered.Consumer)
	require.Zero(t, hanging.Stats().Nacked)
}

func TestNoExtensionWhenOff(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: 300 * time.Millisecond, MaxExtend: -1})
	msgs := subscribe(t, sub, s.Subject("new"))
	first, second := next(t, msgs), next(t, msgs)
	require.EqualValues(t, 2, delivery(t, second).Count)
	require.Zero(t, sub.Stats().Extensions)
	first.Ack()
	second.Ack()
	waitSettled(t, s, "worker")
}
