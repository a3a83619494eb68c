package testbed_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	waitFor = 60 * time.Second // bounds waiting for what must come
	tick    = 5 * time.Millisecond
)

// throughProxy is a stream's JetStream handle over a proxy.
func throughProxy(t *testing.T, s *testbed.Stream) (*testbed.Proxy, *nats.Conn, jetstream.JetStream) {
	t.Helper()
	proxy := testbed.NewProxy(t, s.Server.URL())
	conn, err := testbed.ConnectNATS(proxy.URL())
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	return proxy, conn, js
}

func stored(t *testing.T, s *testbed.Stream) uint64 {
	t.Helper()
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	return info.State.Msgs
}

func TestProxy_LostPubAck(t *testing.T) {
	s := testbed.NewStream(t, nil)
	proxy, conn, js := throughProxy(t, s)
	proxy.Drop(testbed.ToClient)
	published := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := js.Publish(ctx, s.Subject("new"), []byte("x"))
		published <- err
	}()
	require.Eventually(t, func() bool { return stored(t, s) == 1 }, waitFor, tick)
	cancel()
	require.ErrorIs(t, <-published, context.Canceled, "stored, and the client does not know")

	proxy.Restore(testbed.ToClient)
	require.Eventually(t, func() bool { return conn.Stats().Reconnects == 1 && conn.IsConnected() }, waitFor, tick)
	_, err := js.Publish(t.Context(), s.Subject("new"), []byte("y"))
	require.NoError(t, err)
}

func TestProxy_StallAndResume(t *testing.T) {
	s := testbed.NewStream(t, nil)
	proxy, _, js := throughProxy(t, s)
	proxy.Stall(testbed.ToServer)
	ack, err := js.PublishAsync(s.Subject("new"), []byte("x"))
	require.NoError(t, err)
	require.Zero(t, stored(t, s))
	proxy.Resume(testbed.ToServer)
	select {
	case <-ack.Ok():
	case err := <-ack.Err():
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, stored(t, s))
}

func TestProxy_CutDownUp(t *testing.T) {
	s := testbed.NewStream(t, nil)
	proxy, conn, js := throughProxy(t, s)
	require.Equal(t, 1, proxy.Links())
	proxy.Down()
	require.Zero(t, proxy.Links())
	require.Eventually(t, func() bool { return !conn.IsConnected() }, waitFor, tick)
	_, err := js.Publish(t.Context(), s.Subject("new"), []byte("x"))
	require.Error(t, err)
	proxy.Up()
	require.Eventually(t, conn.IsConnected, waitFor, tick)
	_, err = js.Publish(t.Context(), s.Subject("new"), []byte("y"))
	require.NoError(t, err)
	require.EqualValues(t, 1, stored(t, s), "there is no reconnect buffer")
}

func TestProxy_Delay(t *testing.T) {
	s := testbed.NewStream(t, nil)
	proxy, conn, _ := throughProxy(t, s)
	const latency = 20 * time.Millisecond
	proxy.Delay(testbed.ToServer, latency)
	proxy.Delay(testbed.ToClient, latency)
	rtt, err := conn.RTT()
	require.NoError(t, err)
	require.GreaterOrEqual(t, rtt, 2*latency)
}

func TestProxy_URLFor(t *testing.T) {
	db := testbed.NewDB(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	through, err := proxy.URLFor(db.NewRole(t).URL)
	require.NoError(t, err)
	require.NoError(t, connect(t, through).Ping(t.Context()))
	_, err = proxy.URLFor("postgres://127.0.0.1:1/x")
	require.Error(t, err, "another server")
}
