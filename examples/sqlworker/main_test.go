package main

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound is how long the test waits for what must happen.
const bound = 30 * time.Second

func TestAnEventThatArrivesTwiceChargesOnce(t *testing.T) {
	db := testbed.NewDB(t)
	publishTwice(t, db.URL)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, db.URL) }()
	require.Eventually(t, func() bool {
		return has(t, db, "watermill_offsets_payments_requested", "offset_acked = 2") && has(t, db, "watermill_payments_commands", "true")
	}, bound, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)

	for _, table := range []string{"public.charges", "oncemill.outbox", "public.watermill_payments_commands"} {
		require.Equal(t, 1, count(t, db, table+" WHERE true"), table)
	}
}

func publishTwice(t *testing.T, url string) {
	t.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	pub, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{
		SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true}, watermill.NopLogger{})
	require.NoError(t, err)
	for range 2 {
		event := message.NewMessage(watermill.NewUUID(), []byte(`{"amount":5}`))
		event.Metadata.Set("event_id", "evt-1")
		require.NoError(t, pub.Publish("payments_requested", event))
	}
}

// has says whether a table that the worker makes is there, with such a row.
func has(t *testing.T, db *testbed.DB, table, condition string) bool {
	t.Helper()
	made := count(t, db, "pg_catalog.pg_tables WHERE schemaname = 'public' AND tablename = '"+table+"'") == 1
	return made && count(t, db, "public."+table+" WHERE "+condition) > 0
}

func count(t *testing.T, db *testbed.DB, from string) (rows int) {
	t.Helper()
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+from).Scan(&rows))
	return rows
}
