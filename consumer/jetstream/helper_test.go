package jetstream_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
)

const (
	// waitBound bounds every wait for what must come.
	waitBound = 30 * time.Second
	// forever is an AckWait within which no test ends: whatever is delivered
	// again was given back.
	forever = 10 * time.Minute
)

// recorder is a logger that keeps what went wrong.
type recorder struct {
	watermill.NopLogger
	mu   *sync.Mutex
	errs *[]error
}

func newRecorder() recorder { return recorder{mu: new(sync.Mutex), errs: new([]error)} }

func (r recorder) With(watermill.LogFields) watermill.LoggerAdapter { return r }

func (r recorder) Error(_ string, err error, _ watermill.LogFields) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.errs = append(*r.errs, err)
}

func (r recorder) has(match func(error) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range *r.errs {
		if match(err) {
			return true
		}
	}
	return false
}

func newSubscriber(t *testing.T, nc *nats.Conn, cfg jetstream.Config) *jetstream.Subscriber {
	t.Helper()
	if cfg.Durable == "" {
		cfg.Durable = "worker"
	}
	sub, err := jetstream.New(nc, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

func subscribe(t *testing.T, sub message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	msgs, err := sub.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return msgs
}

func publish(t *testing.T, s *testbed.Stream, name, body string, header ...string) {
	t.Helper()
	m := nats.NewMsg(s.Subject(name))
	m.Data = []byte(body)
	for i := 0; i < len(header); i += 2 {
		m.Header.Add(header[i], header[i+1])
	}
	_, err := s.JS.PublishMsg(t.Context(), m)
	require.NoError(t, err)
}

func publishMany(t *testing.T, s *testbed.Stream, name string, n int) {
	t.Helper()
	for range n {
		_, err := s.JS.PublishAsync(s.Subject(name), nil)
		require.NoError(t, err)
	}
	select {
	case <-s.JS.PublishAsyncComplete():
	case <-time.After(waitBound):
		require.FailNow(t, "messages were not published")
	}
}

func next(t *testing.T, msgs <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, open := <-msgs:
		require.True(t, open, "the subscription ended")
		return msg
	case <-time.After(waitBound):
		require.FailNow(t, "no message came")
		return nil
	}
}

func delivery(t *testing.T, msg *message.Message) *consumer.Delivery {
	t.Helper()
	d, ok := consumer.DeliveryFrom(msg.Context())
	require.True(t, ok)
	return d
}

func eventually(t *testing.T, cond func() bool, what string) {
	t.Helper()
	require.Eventually(t, cond, waitBound, 5*time.Millisecond, what)
}

func info(t *testing.T, s *testbed.Stream, durable string) *natsjs.ConsumerInfo {
	t.Helper()
	cons, err := s.JS.Consumer(t.Context(), s.Name, durable)
	require.NoError(t, err)
	return cons.CachedInfo()
}

// waitSettled waits until the server has nothing more to deliver.
func waitSettled(t *testing.T, s *testbed.Stream, durable string) {
	t.Helper()
	eventually(t, func() bool {
		cons, err := s.JS.Consumer(t.Context(), s.Name, durable)
		if err != nil {
			return false
		}
		ci := cons.CachedInfo()
		return ci.NumPending == 0 && ci.NumAckPending == 0
	}, "the durable has unsettled messages")
}
