package integration

import (
	"strings"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// C54: the broker's duplicate window is over when the relay sends again.
func TestC54_PubAckLostForLongerThanTheWindow(t *testing.T) {
	t.Parallel()
	const commands = 5
	s := newStackOn(t, testbed.NewDB(t), testbed.NewStream(t, func(cfg *natsjs.StreamConfig) { cfg.Duplicates = time.Second }))
	proxy := testbed.NewProxy(t, s.stream.Server.URL())
	w := s.wiring()
	w.NATS = proxy.URL()
	relay := s.open(w, options{})
	relay.runRelay()
	s.eventually("the relay is at work", func() bool { return relay.relay.Stats().Lanes > 0 })
	proxy.Drop(testbed.ToClient)
	s.writeCommands(commands)
	s.eventually("they are stored, and the relay does not know", func() bool { return len(s.stored("commands")) == commands })
	s.windowPassed()
	proxy.Restore(testbed.ToClient)
	s.drained()
	copies, distinct := s.commands()
	require.Equal(t, 2*commands, copies, "the window forgot them")
	require.Equal(t, commands, distinct)

	svc := s.open(s.wiring(), withKey(keys.LogicalID()))
	svc.add("fulfil", "fulfil", "commands", svc.consumer.Handler("fulfil", svc.quiet))
	s.start(svc)
	s.settled("fulfil")
	requireOutcomes(t, consumer.Stats{Done: commands, Duplicates: commands}, svc.consumer.Stats())
	require.Equal(t, commands, s.effects())
}

// C54: the check names the streams whose window is too short for how the relay
// is configured. The window that it asks for is enough, the one before is not,
// when answers of a broker at work are lost as often as the relay asks at once.
func TestC54_CheckOfTheWindow(t *testing.T) {
	const commands = 5
	for name, tc := range map[string]struct {
		window   time.Duration
		warnings []string // behind the stream's name
		copies   int
	}{
		"too short": {
			window:   time.Second,
			warnings: []string{": its duplicate window of 1s is shorter than the 8s after which a message may be sent again: copies then reach the consumers; set Duplicates to 8s or more"},
			copies:   2 * commands,
		},
		"as asked for": {window: 8 * time.Second, copies: commands},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStackOn(t, testbed.NewDB(t), testbed.NewStream(t, func(cfg *natsjs.StreamConfig) { cfg.Duplicates = tc.window }))
			cfg := outbox.RelayConfig{Lease: 2 * time.Second, Poll: 50 * time.Millisecond}
			sink := outbox.JetStreamConfig{AckTimeout: 300 * time.Millisecond}
			require.Equal(t, tc.warnings, s.checkWindow(cfg, sink))

			proxy := testbed.NewProxy(t, s.stream.Server.URL())
			w := s.wiring()
			w.NATS = proxy.URL()
			relay := s.open(w, options{sink: sink, relay: func(c *outbox.RelayConfig) { c.Lease, c.Poll = cfg.Lease, cfg.Poll }})
			relay.runRelay()
			s.eventually("the relay is at work", func() bool { return relay.relay.Stats().Lanes == 4 })
			proxy.Drop(testbed.ToClient)
			s.writeCommands(commands)
			s.eventually("they are put off", func() bool { return relay.relay.Stats().Failed == commands })
			proxy.Restore(testbed.ToClient)
			s.drained()
			copies, distinct := s.commands()
			require.Equal(t, commands, distinct)
			require.Equal(t, tc.copies, copies)
		})
	}
}

// checkWindow returns what the check says of this stack's stream, behind its
// name. Other tests have streams on the server as well.
func (s *stack) checkWindow(relay outbox.RelayConfig, sink outbox.JetStreamConfig) (warnings []string) {
	s.Helper()
	all, err := outbox.CheckJetStream(s.Context(), s.stream.JS, relay, sink)
	require.NoError(s, err)
	for _, warning := range all {
		if rest, ours := strings.CutPrefix(warning, "stream "+s.stream.Name); ours {
			warnings = append(warnings, rest)
		}
	}
	return warnings
}
