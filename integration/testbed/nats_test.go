package testbed_test

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestNewStream(t *testing.T) {
	a := testbed.NewStream(t, nil)
	b := testbed.NewStream(t, func(cfg *jetstream.StreamConfig) { cfg.Retention = jetstream.WorkQueuePolicy })
	require.NotEqual(t, a.Prefix, b.Prefix)
	ack, err := a.JS.Publish(t.Context(), a.Subject("new"), []byte("x"))
	require.NoError(t, err)
	require.Equal(t, a.Name, ack.Stream)
	require.EqualValues(t, 1, stored(t, a))
	require.Zero(t, stored(t, b))
	require.Equal(t, jetstream.WorkQueuePolicy, b.Stream.CachedInfo().Config.Retention)
}

func TestNATS_Restart(t *testing.T) {
	servers := map[string]*testbed.NATS{
		"in process": testbed.NewNATS(t, testbed.NATSConfig{}),
		"process":    testbed.NewNATSProcess(t, testbed.NATSConfig{}),
	}
	for name, n := range servers {
		t.Run(name, func(t *testing.T) {
			s := n.NewStream(t, nil)
			_, err := s.JS.Publish(t.Context(), s.Subject("new"), []byte("x"))
			require.NoError(t, err)
			url := n.URL()
			n.SetMaxPayload(64 << 10)
			require.NoError(t, n.Stop(t.Context()))
			require.NoError(t, n.Stop(t.Context()), "stopping again does nothing")
			require.NoError(t, n.Start(t.Context()))
			require.NoError(t, n.Start(t.Context()), "starting again does nothing")
			require.Equal(t, url, n.URL())
			require.Eventually(t, func() bool { return s.Conn.MaxPayload() == 64<<10 }, waitFor, tick)
			require.EqualValues(t, 1, stored(t, s), "the store is kept")
		})
	}
}

func TestNATSProcess_Kill(t *testing.T) {
	n := testbed.NewNATSProcess(t, testbed.NATSConfig{SyncAlways: true})
	s := n.NewStream(t, nil)
	_, err := s.JS.Publish(t.Context(), s.Subject("new"), []byte("x"))
	require.NoError(t, err)
	pid := n.PID()
	require.NoError(t, n.Kill(t.Context()))
	require.False(t, testbed.Alive(pid))
	require.Eventually(t, func() bool { return !s.Conn.IsConnected() }, waitFor, tick)
	_, err = s.JS.Publish(t.Context(), s.Subject("new"), []byte("x"))
	require.Error(t, err)
	require.NoError(t, n.Start(t.Context()))
	require.Eventually(t, s.Conn.IsConnected, waitFor, tick)
	require.EqualValues(t, 1, stored(t, s))
}

func TestNATS_InProcess(t *testing.T) {
	n := testbed.NewNATS(t, testbed.NATSConfig{
		MaxPayload: 32 << 10,
		Tune:       func(o *server.Options) { o.ServerName = "tuned" },
	})
	s := n.NewStream(t, nil)
	require.Equal(t, "tuned", s.Conn.ConnectedServerName())
	require.EqualValues(t, 32<<10, s.Conn.MaxPayload())
	require.ErrorIs(t, n.Kill(t.Context()), testbed.ErrInProcess)
	_, err := testbed.StartNATSProcess(t.Context(), testbed.NATSConfig{Tune: func(*server.Options) {}})
	require.ErrorContains(t, err, "NATSConfig.Tune")
}

func TestNATS_CloseLeavesNothing(t *testing.T) {
	n, err := testbed.StartNATSProcess(t.Context(), testbed.NATSConfig{})
	require.NoError(t, err)
	pid := n.PID()
	require.NoError(t, n.Close())
	require.False(t, testbed.Alive(pid))
	require.NoDirExists(t, n.Dir())
}

func TestNATS_GivenByTheEnvironment(t *testing.T) {
	shared, err := testbed.SharedNATS(t.Context())
	require.NoError(t, err)
	t.Setenv("ONCEMILL_NATS_URL", shared.URL())
	n := testbed.NewNATSProcess(t, testbed.NATSConfig{})
	require.Equal(t, shared.URL(), n.URL())
	require.ErrorIs(t, n.Stop(t.Context()), testbed.ErrNotOurs)
	require.ErrorIs(t, n.Kill(t.Context()), testbed.ErrNotOurs)
	require.ErrorIs(t, n.Start(t.Context()), testbed.ErrNotOurs)
}

// TestNATS_StreamsComeAndGo creates a stream while the server clears away after
// the last one; see keepStreamsDir.
func TestNATS_StreamsComeAndGo(t *testing.T) {
	n := testbed.NewNATS(t, testbed.NATSConfig{})
	for range 300 {
		s, err := n.OpenStream(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
	}
}
