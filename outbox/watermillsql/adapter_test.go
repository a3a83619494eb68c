package watermillsql_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/watermillsql"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func TestPublisherWritesToTheOutbox(t *testing.T) {
	db := testbed.NewDB(t)
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{}))
	std := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { _ = std.Close() })
	s := testbed.NewStream(t, nil)
	o, err := outbox.New(outbox.Config{})
	require.NoError(t, err)
	adapter := watermillsql.NewSchemaAdapter(o)

	publish := func(commit bool, msgs ...*message.Message) error {
		tx, err := std.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer tx.Rollback() // does nothing after the commit
		pub, err := sql.NewPublisher(tx, sql.PublisherConfig{SchemaAdapter: adapter}, watermill.NopLogger{})
		require.NoError(t, err)
		err = pub.Publish(s.Subject("a"), msgs...)
		if err == nil && commit {
			require.NoError(t, tx.Commit())
		}
		return err
	}
	first, second := message.NewMessage("u1", []byte("\x00one")), message.NewMessage("u2", []byte("two"))
	first.Metadata["a"] = "b"
	outbox.SetOrderingKey(first, "k")
	outbox.SetOrderingKey(second, "k")
	require.NoError(t, publish(true, first, second))
	require.NoError(t, publish(false, message.NewMessage("u3", []byte("rolled back"))))

	bad := message.NewMessage("u4", nil)
	bad.Metadata["bad key"] = "x"
	var refused *outbox.RefusedError
	require.ErrorAs(t, publish(true, bad), &refused)
	require.ErrorAs(t, outbox.AsRefused(publish(true, message.NewMessage("u5", make([]byte, 1<<20)))), &refused)
	require.Equal(t, "size", refused.Field)

	sink, err := outbox.JetStream(s.Conn, outbox.JetStreamConfig{})
	require.NoError(t, err)
	relay, err := outbox.NewRelay(db.Pool, outbox.RelayConfig{Sink: sink, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, relay.RunOnce(ctx))
	for i, want := range []*message.Message{first, second} {
		got, err := s.Stream.GetMsg(t.Context(), uint64(i+1))
		require.NoError(t, err)
		require.Equal(t, []byte(want.Payload), got.Data)
		require.Equal(t, want.UUID, got.Header.Get(outbox.HeaderUUID))
		require.Equal(t, want.Metadata["a"], got.Header.Get("a"))
	}
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, info.State.Msgs)
}

func TestSubscriberFailsWithAClearError(t *testing.T) {
	adapter := watermillsql.NewSchemaAdapter(nil)
	_, err := adapter.UnmarshalMessage(nil)
	require.ErrorIs(t, err, watermillsql.ErrNoSubscriber)
	require.Empty(t, adapter.SchemaInitializingQueries("a"))
	require.Equal(t, "SELECT 1", adapter.SelectQuery("a", "g", nil).Query)
}
