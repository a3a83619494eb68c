package jetstream_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestC01_TheBrokerIDArrives(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", `{"n":1}`, "Nats-Msg-Id", "evt-1", "trace", "x:1", "Trace", "x:2")
	sub := newSubscriber(t, s.Conn, jetstream.Config{})
	msg := next(t, subscribe(t, sub, s.Subject("new")))
	require.Equal(t, `{"n":1}`, string(msg.Payload))
	require.Equal(t, "evt-1", msg.UUID)
	require.Equal(t, message.Metadata{"Nats-Msg-Id": "evt-1", "trace": "x:1", "Trace": "x:2"}, msg.Metadata)

	stored, err := s.Stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	d := delivery(t, msg)
	require.Equal(t, "evt-1", d.BrokerID)
	require.Equal(t, s.Name, d.Stream)
	require.EqualValues(t, 1, d.Sequence)
	require.EqualValues(t, 1, d.Count)
	require.True(t, stored.Time.Equal(d.Published))
	require.Equal(t, map[string][]string{"Nats-Msg-Id": {"evt-1"}, "trace": {"x:1"}, "Trace": {"x:2"}}, d.Header)
	require.NoError(t, d.DecodeErr)
	msg.Ack()
}

func TestUUIDComesFromTheBestHeader(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "", "_watermill_message_uuid", "w", "Oncemill-Id", "l", "Nats-Msg-Id", "b1")
	publish(t, s, "new", "", "Oncemill-Id", "l", "Nats-Msg-Id", "b2")
	publish(t, s, "new", "", "Nats-Msg-Id", "b3")
	publish(t, s, "new", "")
	sub := newSubscriber(t, s.Conn, jetstream.Config{})
	msgs := subscribe(t, sub, s.Subject("new"))
	for _, want := range []string{"w", "l", "b3", s.Name + ":4"} {
		msg := next(t, msgs)
		require.Equal(t, want, msg.UUID)
		require.NotContains(t, msg.Metadata, "_watermill_message_uuid")
		msg.Ack()
	}
}

func TestC14_RepeatedHeaderHurtsNobodyElse(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "bad", "X", "1", "X", "2", "Y", "3")
	publish(t, s, "new", "good", "X", "1")
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever})
	msgs := subscribe(t, sub, s.Subject("new"))

	bad := next(t, msgs)
	d := delivery(t, bad)
	var repeated *jetstream.RepeatedHeaderError
	require.ErrorAs(t, d.DecodeErr, &repeated)
	require.Equal(t, 1, repeated.Count)
	require.Equal(t, "bad", string(bad.Payload))
	require.Equal(t, s.Name+":1", bad.UUID)
	require.Empty(t, bad.Metadata)
	require.Equal(t, map[string][]string{"X": {"1", "2"}, "Y": {"3"}}, d.Header)
	d.Terminate()
	bad.Ack()

	good := next(t, msgs)
	require.Equal(t, "1", good.Metadata["X"])
	good.Ack()
	waitSettled(t, s, "worker")
	eventually(t, func() bool { return sub.Stats().InFlight == 0 }, "not settled")
	stats := sub.Stats()
	require.EqualValues(t, 1, stats.Terminated)
	require.EqualValues(t, 1, stats.Acked)
	require.EqualValues(t, 1, stats.Undecoded)
}

func TestC79_GarbageIsDeliveredAndTheRestGoesOn(t *testing.T) {
	for name, fail := range map[string]func() (*message.Message, error){
		"error": func() (*message.Message, error) { return nil, errors.New("garbage") },
		"panic": func() (*message.Message, error) { panic("s3cret-value") },
		"nil":   func() (*message.Message, error) { return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := testbed.NewStream(t, nil)
			publish(t, s, "new", "garbage", "k", "v")
			publishMany(t, s, "new", 10)
			sub := newSubscriber(t, s.Conn, jetstream.Config{
				AckWait: forever, MaxAckPending: 1,
				Decode: func(nm *nats.Msg) (*message.Message, error) {
					if string(nm.Data) == "garbage" {
						return fail()
					}
					return jetstream.Decode(nm)
				},
			})
			msgs := subscribe(t, sub, s.Subject("new"))
			bad := next(t, msgs)
			d := delivery(t, bad)
			require.Error(t, d.DecodeErr)
			require.NotContains(t, d.DecodeErr.Error(), "s3cret-value")
			require.Equal(t, "garbage", string(bad.Payload))
			require.Equal(t, map[string][]string{"k": {"v"}}, d.Header)
			d.Terminate()
			bad.Ack()
			for range 10 {
				next(t, msgs).Ack()
			}
			waitSettled(t, s, "worker")
		})
	}
}

func TestDecodeCannotSettle(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "x")
	var settled error
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever, Decode: func(nm *nats.Msg) (*message.Message, error) {
		settled = nm.Ack()
		return jetstream.Decode(nm)
	}})
	msg := next(t, subscribe(t, sub, s.Subject("new")))
	require.Error(t, settled)
	require.Equal(t, 1, info(t, s, "worker").NumAckPending)
	msg.Ack()
}

// A message without a body and with a Status header is what nats.go takes for
// a status of the server.
func TestStatusHeaderOfAPublisherIsNoStatus(t *testing.T) {
	s := testbed.NewStream(t, nil)
	for _, status := range []string{"100", "404", "408", "409"} {
		publish(t, s, "new", "", "Status", status, "Description", "Consumer Deleted")
	}
	publish(t, s, "new", "last")
	log := newRecorder()
	sub := newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever, Logger: log})
	msgs := subscribe(t, sub, s.Subject("new"))
	for _, status := range []string{"100", "404", "408", "409"} {
		msg := next(t, msgs)
		require.Equal(t, status, msg.Metadata["Status"])
		msg.Ack()
	}
	next(t, msgs).Ack()
	waitSettled(t, s, "worker")
	require.EqualValues(t, 5, sub.Stats().Fetched)
	require.False(t, log.has(func(error) bool { return true }))
}

func TestMalformedHeaderBlockIsUndecodable(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publishRaw(t, s, "new", "NATS/1.0\r\nno colon\r\n\r\n", "body")
	publish(t, s, "new", "good")
	msgs := subscribe(t, newSubscriber(t, s.Conn, jetstream.Config{AckWait: forever}), s.Subject("new"))
	bad := next(t, msgs)
	require.Error(t, delivery(t, bad).DecodeErr)
	require.Equal(t, "body", string(bad.Payload))
	bad.Ack()
	good := next(t, msgs)
	require.NoError(t, delivery(t, good).DecodeErr)
	good.Ack()
}

// publishRaw speaks the protocol itself, since clients write no such headers.
func publishRaw(t *testing.T, s *testbed.Stream, name, header, body string) {
	t.Helper()
	u, err := url.Parse(s.Server.URL())
	require.NoError(t, err)
	conn, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitBound)))
	_, err = fmt.Fprintf(conn, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB %s %d %d\r\n%s%s\r\nPING\r\n",
		s.Subject(name), len(header), len(header)+len(body), header, body)
	require.NoError(t, err)
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		if strings.HasPrefix(line, "PONG") {
			return
		}
	}
}
