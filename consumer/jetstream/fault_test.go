package jetstream_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

// proxied is a connection to the stream's server that can be cut.
func proxied(t *testing.T, s *testbed.Stream) (*testbed.Proxy, *nats.Conn) {
	t.Helper()
	proxy, err := testbed.StartProxy(s.Server.URL())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	conn, err := testbed.ConnectNATS(proxy.URL())
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return proxy, conn
}

// flushed waits until the client has written all it has to the connection.
func flushed(conn *nats.Conn) error {
	deadline := time.Now().Add(waitBound)
	for {
		n, err := conn.Buffered()
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d bytes are still buffered", n)
		}
	}
}

func TestC39_ServerRestartBetweenCommitAndAck(t *testing.T) {
	for _, confirm := range []bool{false, true} {
		t.Run(fmt.Sprintf("confirm=%t", confirm), func(t *testing.T) {
			t.Parallel()
			server := testbed.NewNATSProcess(t, testbed.NATSConfig{SyncAlways: true})
			s := server.NewStream(t, nil)
			publishMany(t, s, "new", 10)
			sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: 2 * time.Second, AckConfirm: confirm})
			msgs := subscribe(t, sub, s.Subject("new"))
			var held []*message.Message
			for range 10 {
				held = append(held, next(t, msgs))
			}
			require.NoError(t, server.Kill(t.Context()))
			for _, msg := range held {
				require.True(t, msg.Ack())
			}
			require.NoError(t, server.Start(t.Context()))
			ackAll(msgs)
			waitSettled(t, s, "worker")
			eventually(t, func() bool { return sub.Stats().InFlight == 0 }, "not settled")

			publishMany(t, s, "new", 1)
			waitSettled(t, s, "worker")
			require.EqualValues(t, 11, info(t, s, "worker").AckFloor.Stream)
		})
	}
}

// ackAll acks whatever comes until the subscription ends.
func ackAll(msgs <-chan *message.Message) {
	go func() {
		for msg := range msgs {
			msg.Ack()
		}
	}()
}

func TestFetchingGoesOnAfterReconnect(t *testing.T) {
	s := testbed.NewStream(t, nil)
	proxy, conn := proxied(t, s)
	// What the server wrote to the connection that is cut comes an AckWait later.
	sub := newSubscriber(t, conn, jetstream.Config{AckWait: time.Second, InFlight: 3})
	msgs := subscribe(t, sub, s.Subject("new"))
	for i := range 5 {
		proxy.Cut()
		publish(t, s, "new", fmt.Sprint(i))
		msg := next(t, msgs)
		require.Equal(t, fmt.Sprint(i), string(msg.Payload))
		eventually(t, conn.IsConnected, "not connected")
		msg.Ack()
		waitSettled(t, s, "worker")
	}
}

func TestDeletedDurable(t *testing.T) {
	recreate := func(t *testing.T, s *testbed.Stream) {
		_, err := s.JS.CreateConsumer(t.Context(), s.Name, natsjs.ConsumerConfig{
			Durable: "worker", FilterSubject: s.Subject("new"), AckPolicy: natsjs.AckExplicitPolicy,
		})
		require.NoError(t, err)
	}
	t.Run("is created again", func(t *testing.T) {
		s := testbed.NewStream(t, nil)
		msgs := subscribe(t, newSubscriber(t, s.Conn, jetstream.Config{}), s.Subject("new"))
		require.NoError(t, s.JS.DeleteConsumer(t.Context(), s.Name, "worker"))
		publish(t, s, "new", "x")
		next(t, msgs).Ack()
		waitSettled(t, s, "worker")
	})
	t.Run("is waited for when bound", func(t *testing.T) {
		s := testbed.NewStream(t, nil)
		recreate(t, s)
		log := newRecorder()
		msgs := subscribe(t, newSubscriber(t, s.Conn, jetstream.Config{Bind: true, Logger: log}), s.Subject("new"))
		require.NoError(t, s.JS.DeleteConsumer(t.Context(), s.Name, "worker"))
		publish(t, s, "new", "x")
		eventually(t, func() bool {
			return log.has(func(err error) bool { return errors.Is(err, natsjs.ErrConsumerNotFound) })
		}, "nothing was logged")
		recreate(t, s)
		next(t, msgs).Ack()
		waitSettled(t, s, "worker")
	})
	t.Run("is refused when unsafe", func(t *testing.T) {
		s := testbed.NewStream(t, nil)
		log := newRecorder()
		msgs := subscribe(t, newSubscriber(t, s.Conn, jetstream.Config{Logger: log}), s.Subject("new"))
		_, err := s.JS.UpdateConsumer(t.Context(), s.Name, natsjs.ConsumerConfig{
			Durable: "worker", FilterSubject: s.Subject("new"), AckPolicy: natsjs.AckExplicitPolicy, MaxDeliver: 3, MaxAckPending: 1000, AckWait: 30 * time.Second,
		})
		require.NoError(t, err)
		require.NoError(t, s.Conn.ForceReconnect())
		eventually(t, func() bool {
			return log.has(func(err error) bool { return errors.As(err, new(*jetstream.DurableError)) })
		}, "nothing was logged")
		select {
		case _, open := <-msgs:
			require.True(t, open, "the subscription ended")
			require.FailNow(t, "a message came")
		default:
		}
	})
}

// The server drops a request in silence when too many wait. Another process's
// request takes the only place here, until it expires.
func TestForgottenRequestIsMadeAgain(t *testing.T) {
	s := testbed.NewStream(t, nil)
	cons, err := s.JS.CreateConsumer(t.Context(), s.Name, natsjs.ConsumerConfig{
		Durable: "worker", FilterSubject: s.Subject("new"), AckPolicy: natsjs.AckExplicitPolicy,
		MaxWaiting: 1, MaxRequestExpires: time.Second, MaxRequestBatch: 3,
	})
	require.NoError(t, err)
	other, err := cons.Fetch(1, natsjs.FetchMaxWait(time.Second))
	require.NoError(t, err)
	log := newRecorder()
	sub := newSubscriber(t, s.Conn, jetstream.Config{Logger: log})
	msgs := subscribe(t, sub, s.Subject("new"))
	for range other.Messages() {
		require.FailNow(t, "a message was there")
	}
	eventually(t, func() bool { return log.has(func(error) bool { return true }) }, "the request was not missed")
	publishMany(t, s, "new", 10)
	for range 10 {
		next(t, msgs).Ack()
	}
	waitSettled(t, s, "worker")
}

func TestConfirmedAckOnAClosedConnection(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	conn, err := s.Server.Connect()
	require.NoError(t, err)
	sub := newSubscriber(t, conn, jetstream.Config{AckWait: forever, AckConfirm: true})
	msg := next(t, subscribe(t, sub, s.Subject("new")))
	conn.Close()
	msg.Ack()
	require.NoError(t, result(t, closing(sub)), "it waited for a connection that never comes")
	require.EqualValues(t, 1, sub.Stats().SettleFailures)
}
