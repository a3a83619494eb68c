package integration

import (
	"encoding/json"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
)

// C14: one message with a repeated header kills nobody.
func TestC14_RepeatedHeader(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	worker := s.child("service", childSpec{wiring: s.wiring()})
	s.publish("new", "bad\x00bytes", "event_id", "bad", "X", "1", "X", "2")
	s.publish("new", "good", "event_id", "good")
	s.settled("charge")
	s.requireCommands(1)

	held := s.held()
	require.Len(t, held, 1)
	require.Equal(t, "undecodable", held[0].Reason)
	require.Equal(t, "bad\x00bytes", string(held[0].Payload))
	require.Equal(t, map[string][]string{"event_id": {"bad"}, "X": {"1", "2"}}, held[0].Header)
	require.Equal(t, []string{"good"}, s.texts(`SELECT key FROM public.effects`))
	select {
	case <-worker.Done():
		require.FailNow(t, "the process ended", worker.Stderr())
	default:
	}
	stats := finish(t, worker)
	require.EqualValues(t, 1, stats.Subscriber.Terminated)
	require.EqualValues(t, 1, stats.Subscriber.Acked)
	require.EqualValues(t, 2, stats.Subscriber.Fetched, "nothing came again")
}

// C79: garbage at the head of a queue that lets one message pass at a time.
func TestC79_GarbageThenGood(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.publish("new", "\x80garbage", "event_id", "bad")
	for _, id := range []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		s.publish("new", `{"id":"`+id+`"}`)
	}
	svc := s.serve(options{jetstream: func(cfg *jetstream.Config) { cfg.MaxAckPending, cfg.InFlight, cfg.Decode = 1, 1, decodeEnvelope }})
	s.settled("charge")
	require.Equal(t, 10, s.effects())
	s.requireCommands(10)
	held := s.held()
	require.Len(t, held, 1)
	require.Equal(t, "undecodable", held[0].Reason)
	require.Equal(t, "\x80garbage", string(held[0].Payload))
	require.Equal(t, map[string][]string{"event_id": {"bad"}}, held[0].Header)
	require.EqualValues(t, 1, svc.subs["charge"].Stats().Terminated)
}

// decodeEnvelope decodes messages that carry their id in JSON.
func decodeEnvelope(nm *nats.Msg) (*message.Message, error) {
	var envelope struct{ ID string }
	if err := json.Unmarshal(nm.Data, &envelope); err != nil {
		return nil, err
	}
	msg := message.NewMessage(envelope.ID, nm.Data)
	msg.Metadata.Set("event_id", envelope.ID)
	return msg, nil
}
