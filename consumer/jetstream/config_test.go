package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestNewNamesTheField(t *testing.T) {
	nc := new(nats.Conn)
	for field, cfg := range map[string]jetstream.Config{
		"Config.Durable: is missing": {Durable: " "},
		"Config.Durable: a consumer": {Durable: "a.b"},
		"Config.InFlight: -1":        {Durable: "d", InFlight: -1},
		"Config.InFlight: 100000":    {Durable: "d", InFlight: 100_000},
		"Config.MaxAckPending: -1":   {Durable: "d", MaxAckPending: -1},
		"Config.AckWait: -1s":        {Durable: "d", AckWait: -time.Second},
	} {
		_, err := jetstream.New(nc, cfg)
		require.ErrorContains(t, err, field)
	}
	_, err := jetstream.New(nil, jetstream.Config{Durable: "d"})
	require.ErrorContains(t, err, "nc: is missing")
}

func TestDurableIsCreated(t *testing.T) {
	s := testbed.NewStream(t, nil)
	sub := newSubscriber(t, s.Conn, jetstream.Config{Durable: "svc-{topic}", InFlight: 2000})
	topic := s.Subject("new.*")
	require.NoError(t, sub.SubscribeInitialize(topic))
	name := "svc-" + "om_" + s.Prefix[3:] + "_new__"
	cfg := info(t, s, name).Config
	require.Equal(t, topic, cfg.FilterSubject)
	require.Equal(t, natsjs.AckExplicitPolicy, cfg.AckPolicy)
	require.Equal(t, natsjs.DeliverAllPolicy, cfg.DeliverPolicy)
	require.Equal(t, -1, cfg.MaxDeliver)
	require.Equal(t, 2000, cfg.MaxAckPending)
	require.Equal(t, 30*time.Second, cfg.AckWait)
}

func TestConfigureChangesWhatIsCreated(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "new", "old")
	sub := newSubscriber(t, s.Conn, jetstream.Config{Stream: s.Name, Configure: func(c *natsjs.ConsumerConfig) {
		c.DeliverPolicy = natsjs.DeliverNewPolicy
	}})
	require.NoError(t, sub.SubscribeInitialize(s.Subject("new")))
	publish(t, s, "new", "new")
	msg := next(t, subscribe(t, sub, s.Subject("new")))
	require.Equal(t, "new", string(msg.Payload))
	msg.Ack()
}

func TestN7_UnsafeDurablesAreRefused(t *testing.T) {
	s := testbed.NewStream(t, nil)
	topic := s.Subject("new")
	for field, cfg := range map[string]natsjs.ConsumerConfig{
		"MaxDeliver":     {FilterSubject: topic, AckPolicy: natsjs.AckExplicitPolicy, MaxDeliver: 3},
		"AckPolicy":      {FilterSubject: topic, AckPolicy: natsjs.AckAllPolicy},
		"HeadersOnly":    {FilterSubject: topic, AckPolicy: natsjs.AckExplicitPolicy, HeadersOnly: true},
		"PriorityGroups": {FilterSubject: topic, AckPolicy: natsjs.AckExplicitPolicy, PriorityGroups: []string{"g"}, PriorityPolicy: natsjs.PriorityPolicyOverflow},
		"FilterSubject":  {FilterSubject: s.Subject("other"), AckPolicy: natsjs.AckExplicitPolicy},
	} {
		t.Run(field, func(t *testing.T) {
			cfg.Durable = field
			_, err := s.JS.CreateConsumer(t.Context(), s.Name, cfg)
			require.NoError(t, err)
			before := info(t, s, field).Config

			_, err = newSubscriber(t, s.Conn, jetstream.Config{Durable: field}).Subscribe(t.Context(), topic)
			var refused *jetstream.DurableError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, field, refused.Field)
			require.Equal(t, before, info(t, s, field).Config, "it was changed")
		})
	}
	t.Run("push", func(t *testing.T) {
		_, err := s.JS.CreatePushConsumer(t.Context(), s.Name, natsjs.ConsumerConfig{
			Durable: "push", FilterSubject: topic, DeliverSubject: "push.to", AckPolicy: natsjs.AckExplicitPolicy,
		})
		require.NoError(t, err)
		_, err = newSubscriber(t, s.Conn, jetstream.Config{Durable: "push"}).Subscribe(t.Context(), topic)
		var refused *jetstream.DurableError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, "DeliverSubject", refused.Field)
	})
}

func TestExistingDurableIsKept(t *testing.T) {
	s := testbed.NewStream(t, nil)
	topic := s.Subject("new")
	_, err := s.JS.CreateConsumer(t.Context(), s.Name, natsjs.ConsumerConfig{
		Durable: "worker", FilterSubject: topic, AckPolicy: natsjs.AckExplicitPolicy, AckWait: forever, MaxAckPending: 7,
	})
	require.NoError(t, err)
	publish(t, s, "new", "1")
	publish(t, s, "new", "2")

	first := newSubscriber(t, s.Conn, jetstream.Config{InFlight: 1})
	next(t, subscribe(t, first, topic)).Ack()
	require.NoError(t, first.Close())

	msg := next(t, subscribe(t, newSubscriber(t, s.Conn, jetstream.Config{}), topic))
	require.Equal(t, "2", string(msg.Payload))
	msg.Ack()
	require.Equal(t, forever, info(t, s, "worker").Config.AckWait)
	require.Equal(t, 7, info(t, s, "worker").Config.MaxAckPending)
}

func TestBindTakesWhatIsThere(t *testing.T) {
	s := testbed.NewStream(t, nil)
	sub := newSubscriber(t, s.Conn, jetstream.Config{Bind: true})
	_, err := sub.Subscribe(t.Context(), s.Subject("new"))
	require.ErrorIs(t, err, natsjs.ErrConsumerNotFound)

	_, err = s.JS.CreateConsumer(t.Context(), s.Name, natsjs.ConsumerConfig{Durable: "worker", AckPolicy: natsjs.AckExplicitPolicy})
	require.NoError(t, err)
	publish(t, s, "other", "x")
	next(t, subscribe(t, sub, s.Subject("new"))).Ack()
}

func TestOneDurablePerTopic(t *testing.T) {
	s := testbed.NewStream(t, nil)
	publish(t, s, "a", "a")
	publish(t, s, "b", "b")

	one := newSubscriber(t, s.Conn, jetstream.Config{})
	subscribe(t, one, s.Subject("a"))
	_, err := one.Subscribe(t.Context(), s.Subject("b"))
	require.ErrorContains(t, err, "{topic}")

	each := newSubscriber(t, s.Conn, jetstream.Config{Durable: "each-{topic}"})
	for _, topic := range []string{"a", "b"} {
		msg := next(t, subscribe(t, each, s.Subject(topic)))
		require.Equal(t, topic, string(msg.Payload))
		msg.Ack()
	}
}

func TestSubscribeErrors(t *testing.T) {
	s := testbed.NewStream(t, nil)
	sub := newSubscriber(t, s.Conn, jetstream.Config{})
	_, err := sub.Subscribe(t.Context(), "")
	require.ErrorContains(t, err, "is empty")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sub.Subscribe(ended, s.Subject("new"))
	require.ErrorIs(t, err, context.Canceled)

	_, err = newSubscriber(t, s.Conn, jetstream.Config{}).Subscribe(t.Context(), "no.such.stream")
	require.ErrorIs(t, err, natsjs.ErrStreamNotFound)

	require.NoError(t, sub.Close())
	require.NoError(t, sub.Close())
	_, err = sub.Subscribe(t.Context(), s.Subject("new"))
	require.ErrorIs(t, err, jetstream.ErrClosed)
}
