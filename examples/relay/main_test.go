package main

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound is how long the test waits for what must happen.
const bound = 30 * time.Second

func TestAnotherProcessWritesAndTheRelaySendsOnce(t *testing.T) {
	db := testbed.NewDB(t)
	require.NoError(t, oncemill.Migrate(t.Context(), db.Pool, oncemill.MigrateConfig{}))
	s := testbed.NewStream(t, func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{"payments.commands"} })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, db.URL, s.Server.URL()) }()

	handle := service(t, db, s)
	for range 2 {
		event := message.NewMessage("", nil)
		event.Metadata.Set("event_id", "evt-1")
		_, err := handle(event)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return queued(t, db) == 0 }, bound, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, info.State.Msgs)
}

// service is a handler of another process, as far as the relay can tell.
func service(t *testing.T, db *testbed.DB, s *testbed.Stream) message.HandlerFunc {
	t.Helper()
	box, err := outbox.New(outbox.Config{Wake: s.Conn})
	require.NoError(t, err)
	c, err := consumer.New(db.Pool, consumer.Config{Scope: "acme", Key: keys.Metadata("event_id"), Outbox: box})
	require.NoError(t, err)
	return c.Handler("charge-card", func(ctx context.Context, tx consumer.Tx, _ *message.Message) ([]*message.Message, error) {
		return nil, box.Write(ctx, tx, "payments.commands", message.NewMessage("", []byte("charge")))
	})
}

func queued(t *testing.T, db *testbed.DB) (rows int) {
	t.Helper()
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM oncemill.outbox_queue`).Scan(&rows))
	return rows
}
