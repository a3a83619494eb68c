package jetstream_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

// publisher is just enough to run Watermill's conformance suite.
type publisher struct{ js natsjs.JetStream }

func (p publisher) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		nm := nats.NewMsg(topic)
		nm.Data = msg.Payload
		nm.Header.Set("_watermill_message_uuid", msg.UUID)
		for key, value := range msg.Metadata {
			nm.Header.Set(key, value)
		}
		if _, err := p.js.PublishMsg(msg.Context(), nm); err != nil {
			return err
		}
	}
	return nil
}

func (publisher) Close() error { return nil }

// subscriber leaves out what Close says of messages that the suite abandons.
type subscriber struct{ *jetstream.Subscriber }

func (s subscriber) Close() error {
	_ = s.Subscriber.Close()
	return nil
}

// TestWatermillConformance runs the parts of Watermill's suite that are about a
// Subscriber; order is kept with one message in flight.
func TestWatermillConformance(t *testing.T) {
	s := testbed.NewStream(t, nil)
	features := tests.Features{
		ConsumerGroups:    true,
		Persistent:        true,
		GenerateTopicFunc: func(ctx tests.TestContext) string { return s.Subject(string(ctx.TestID)) },
	}
	group := func(inFlight int) tests.ConsumerGroupPubSubConstructor {
		return func(t *testing.T, name string) (message.Publisher, message.Subscriber) {
			sub, err := jetstream.New(s.Conn, jetstream.Config{
				Stream: s.Name, Durable: name + "-{topic}", InFlight: inFlight, CloseTimeout: time.Second,
			})
			require.NoError(t, err)
			return publisher{s.JS}, subscriber{sub}
		}
	}
	one := func(inFlight int) tests.PubSubConstructor {
		return func(t *testing.T) (message.Publisher, message.Subscriber) { return group(inFlight)(t, "all") }
	}
	for name, run := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"PublishSubscribe":                  tests.TestPublishSubscribe,
		"ConcurrentSubscribe":               tests.TestConcurrentSubscribe,
		"ConcurrentSubscribeMultipleTopics": tests.TestConcurrentSubscribeMultipleTopics,
		"ResendOnError":                     tests.TestResendOnError,
		"ContinueAfterSubscribeClose":       tests.TestContinueAfterSubscribeClose,
		"ConcurrentClose":                   tests.TestConcurrentClose,
		"ContinueAfterErrors":               tests.TestContinueAfterErrors,
		"Topic":                             tests.TestTopic,
		"MessageCtx":                        tests.TestMessageCtx,
		"SubscribeCtx":                      tests.TestSubscribeCtx,
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, one(0))
		})
	}
	t.Run("ConsumerGroups", func(t *testing.T) {
		tests.TestConsumerGroups(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, group(0))
	})
	ordered := features
	ordered.GuaranteedOrder = true
	ordered.GuaranteedOrderWithSingleSubscriber = true
	t.Run("PublishSubscribeInOrder", func(t *testing.T) {
		tests.TestPublishSubscribeInOrder(t, tests.TestContext{TestID: tests.NewTestID(), Features: ordered}, one(1))
	})
	t.Run("NoAck", func(t *testing.T) {
		tests.TestNoAck(t, tests.TestContext{TestID: tests.NewTestID(), Features: ordered}, one(1))
	})
}
