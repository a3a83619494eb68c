package integration

import (
	"testing"

	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

func withKey(k keys.Func) options {
	return options{consumer: func(cfg *consumer.Config) { cfg.Key = k }}
}

// C01: messages of a foreign producer have a broker id and nothing else.
func TestC01_ForeignProducer(t *testing.T) {
	for name, tc := range map[string]struct {
		key     keys.Func
		effects []string
		reasons []string
		then    consumer.Stats
	}{
		"without a source of keys each is refused for itself": {
			key:     keys.Metadata("event_id"),
			effects: []string{}, reasons: []string{"no key", "no key", "no key"}, then: consumer.Stats{Dead: 3},
		},
		"the broker id as key": {
			key:     keys.BrokerID(),
			effects: []string{"evt-1", "evt-2"}, reasons: []string{}, then: consumer.Stats{Done: 2, Duplicates: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStackOn(t, testbed.NewDB(t), testbed.NewStream(t, func(cfg *natsjs.StreamConfig) { cfg.Duplicates = minDuplicateWindow }))
			svc := s.serve(withKey(tc.key))
			s.publish("new", `{"n":1}`, "Nats-Msg-Id", "evt-1")
			s.publish("new", `{"n":2}`, "Nats-Msg-Id", "evt-2")
			s.windowPassed()
			s.publish("new", `{"n":1}`, "Nats-Msg-Id", "evt-1")
			s.settled("charge")
			require.Equal(t, tc.effects, s.texts(`SELECT key FROM public.effects ORDER BY key`))
			require.Equal(t, tc.reasons, s.reasons())
			requireOutcomes(t, tc.then, svc.consumer.Stats())
		})
	}
}

// C04: an event id is unique within its source only.
func TestC04_SourceAndID(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	svc := s.serve(options{consumer: func(cfg *consumer.Config) {
		cfg.Key, cfg.Fingerprint = keys.CloudEvents(), dedup.RawFingerprint().WithMetadata("ce-type")
	}})
	for _, e := range [][4]string{{"/a", "1", "made", "x"}, {"/b", "1", "made", "y"}, {"/a", "1", "made", "x"}, {"/a", "1", "paid", "x"}} {
		s.publish("new", e[3], "ce-specversion", "1.0", "ce-source", e[0], "ce-id", e[1], "ce-type", e[2])
	}
	s.settled("charge")
	require.Equal(t, []string{"x", "y"}, s.texts(`SELECT convert_from(body, 'UTF8') FROM public.effects ORDER BY body`))
	require.Equal(t, []string{"conflict"}, s.reasons())
	requireOutcomes(t, consumer.Stats{Done: 2, Duplicates: 1, Dead: 1}, svc.consumer.Stats())
}

// C05: one event for two handlers of one service.
func TestC05_OneEventForTwoOperations(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	svc := s.open(s.wiring(), options{})
	svc.handle("invoice", "new", svc.effect)
	svc.handle("email", "new", svc.effect)
	s.start(svc)
	s.publishEvents(1)
	s.settled("invoice", "email")
	require.Equal(t, []string{"email", "invoice"}, s.texts(`SELECT operation FROM public.effects ORDER BY operation`))
	s.requireCommands(2)

	// A second durable of one of them delivers it to that one again.
	again := s.open(s.wiring(), options{})
	again.add("email", "email-again", "new", again.consumer.Handler("email", again.effect))
	s.start(again)
	s.settled("email-again")
	requireOutcomes(t, consumer.Stats{Duplicates: 1}, again.consumer.Stats())
	requireOutcomes(t, consumer.Stats{Done: 2}, svc.consumer.Stats())
	s.requireCommands(2)
}

// C07: what layers in between do to outer blanks does not make another key.
func TestC07_OuterBlanks(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.serve(options{consumer: func(cfg *consumer.Config) { cfg.Concurrency = 1 }})
	for _, e := range [][2]string{{"Y", "1"}, {" Y ", "2"}, {"Y\t", "3"}, {" \t ", "4"}} {
		s.publish("new", e[1], "event_id", e[0])
	}
	s.settled("charge")
	require.Equal(t, []string{"Y"}, s.texts(`SELECT key FROM public.effects`))
	require.ElementsMatch(t, []string{"conflict", "conflict", "no key"}, s.reasons())
}

// C11: a business id names the event, a message UUID the publish.
func TestC11_BusinessIDAndMessageUUID(t *testing.T) {
	for name, tc := range map[string]struct {
		key     keys.Func
		effects int
	}{
		"business id":  {keys.JSONPointer("/order"), 1},
		"message UUID": {keys.MessageUUID(), 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			svc := s.serve(withKey(tc.key))
			for _, ids := range [][2]string{{"u1", "d1"}, {"u2", "d1"}, {"u3", "d2"}} {
				s.publish("new", `{"order":"o-1"}`, "_watermill_message_uuid", ids[0], "delivery_id", ids[1])
			}
			s.settled("charge")
			require.Equal(t, tc.effects, s.effects())
			s.requireCommands(tc.effects)
			require.Equal(t, tc.key.String(), svc.consumer.KeySource("charge"), "people can see which source it is")
		})
	}
}
