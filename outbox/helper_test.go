package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/outbox"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound is how long a test waits for something that must happen.
const bound = time.Minute

func newDB(t testing.TB) *testbed.DB {
	t.Helper()
	db := testbed.NewDB(t)
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{}))
	return db
}

func newOutbox(t testing.TB, cfg outbox.Config) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(cfg)
	require.NoError(t, err)
	return o
}

func newSink(t testing.TB, nc *nats.Conn, cfg outbox.JetStreamConfig) outbox.Sink {
	t.Helper()
	sink, err := outbox.JetStream(nc, cfg)
	require.NoError(t, err)
	return sink
}

// relayConfig has short times, so that what waits for them ends soon.
func relayConfig(sink outbox.Sink) outbox.RelayConfig {
	return outbox.RelayConfig{
		Sink: sink, Lease: 2 * time.Second, Poll: 50 * time.Millisecond,
		Backoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func newRelay(t testing.TB, db *testbed.DB, cfg outbox.RelayConfig) *outbox.Relay {
	t.Helper()
	r, err := outbox.NewRelay(db.Pool, cfg)
	require.NoError(t, err)
	return r
}

// run runs a relay until the test ends or stop is called; stop returns when
// it has ended.
func run(t testing.TB, r *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

func runOnce(t testing.TB, r *outbox.Relay) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	require.NoError(t, r.RunOnce(ctx))
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, bound, 5*time.Millisecond, what)
}

func newMessage(payload string) *message.Message { return message.NewMessage("", []byte(payload)) }

func keyed(payload, key string) *message.Message {
	msg := newMessage(payload)
	outbox.SetOrderingKey(msg, key)
	return msg
}

// write writes messages in a transaction of their own.
func write(t testing.TB, db *testbed.DB, o *outbox.Outbox, topic string, msgs ...*message.Message) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return o.Write(t.Context(), tx, topic, msgs...)
	}))
}

func exec(t testing.TB, db *testbed.DB, query string, args ...any) {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), query, args...)
	require.NoError(t, err)
}

func scalar[T any](t testing.TB, db *testbed.DB, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, db.Pool.QueryRow(t.Context(), query, args...).Scan(&v))
	return v
}

func queued(t testing.TB, db *testbed.DB) int {
	t.Helper()
	return scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_queue`)
}

func drained(t testing.TB, db *testbed.DB) {
	t.Helper()
	eventually(t, "queue is drained", func() bool { return queued(t, db) == 0 })
}

// stored reads all messages of a stream, in order.
func stored(t testing.TB, s *testbed.Stream) []*jetstream.RawStreamMsg {
	t.Helper()
	left := count(t, s)
	var msgs []*jetstream.RawStreamMsg
	consumer, err := s.Stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	for left > len(msgs) {
		batch, err := consumer.Fetch(min(left-len(msgs), 1000), jetstream.FetchMaxWait(bound))
		require.NoError(t, err)
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			require.NoError(t, err)
			msgs = append(msgs, &jetstream.RawStreamMsg{Subject: m.Subject(), Sequence: meta.Sequence.Stream, Header: m.Headers(), Data: m.Data()})
		}
		require.NoError(t, batch.Error())
	}
	return msgs
}

func payloads(msgs []*jetstream.RawStreamMsg) []string {
	list := make([]string, len(msgs))
	for i, m := range msgs {
		list[i] = string(m.Data)
	}
	return list
}

func count(t testing.TB, s *testbed.Stream) int {
	t.Helper()
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	return int(info.State.Msgs)
}

// history judges what a stream holds against what was committed: payloads
// "key/number" must first appear in the order of their numbers, and each that
// was committed must be there, and no other.
func checkHistory(t testing.TB, msgs []*jetstream.RawStreamMsg, committed map[string]int) {
	t.Helper()
	next := map[string]int{}
	ids := map[string]string{}
	for _, m := range msgs {
		var key string
		var n int
		_, err := fmt.Sscanf(string(m.Data), "%s %d", &key, &n)
		require.NoError(t, err, "payload of a test message")
		id := m.Header.Get(outbox.HeaderID)
		if first, again := ids[string(m.Data)]; again {
			require.Equal(t, first, id, "a copy keeps its logical id")
			continue
		}
		ids[string(m.Data)] = id
		require.Equal(t, next[key], n, "first appearances of key %s in order", key)
		next[key]++
	}
	require.Equal(t, committed, next, "each committed message is there, and no other")
}
