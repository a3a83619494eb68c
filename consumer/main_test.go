package consumer_test

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bench is a migrated database with a table of effects that no constraint
// protects.
type bench struct {
	*testbed.DB
	t *testing.T
}

func newBench(t *testing.T) bench {
	t.Helper()
	db := testbed.NewDB(t)
	require.NoError(t, oncemill.Migrate(t.Context(), db.Pool, oncemill.MigrateConfig{}))
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE public.effects (key text NOT NULL, body bytea NOT NULL)`)
	require.NoError(t, err)
	return bench{db, t}
}

func config() consumer.Config {
	return consumer.Config{
		Scope:    "acme",
		Key:      keys.Metadata("event_id"),
		NackWait: -1,
		Logger:   slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

func (b bench) consumer(pool *pgxpool.Pool, tune func(*consumer.Config)) *consumer.Consumer {
	b.t.Helper()
	cfg := config()
	if tune != nil {
		tune(&cfg)
	}
	c, err := consumer.New(pool, cfg)
	require.NoError(b.t, err)
	return c
}

func (b bench) sqlConsumer(tune func(*consumer.Config)) *consumer.Consumer {
	b.t.Helper()
	db, err := sql.Open("pgx", b.URL)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, db.Close()) })
	cfg := config()
	if tune != nil {
		tune(&cfg)
	}
	c, err := consumer.NewSQL(db, cfg)
	require.NoError(b.t, err)
	return c
}

// charge makes the effect.
func charge(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
	_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1, $2)`, msg.Metadata.Get("event_id"), []byte(msg.Payload))
	return nil, err
}

func (b bench) effects() int { return b.count(`SELECT count(*) FROM public.effects`) }

func (b bench) count(query string, args ...any) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), query, args...).Scan(&n))
	return n
}

func event(id, payload string) *message.Message {
	msg := message.NewMessage("uuid-"+id, []byte(payload))
	msg.Metadata.Set("event_id", id)
	return msg
}

// settled is how a delivery ended.
type settled struct {
	acked, nacked, terminated bool
	delay                     time.Duration
	err                       error
}

// deliver does with a message what Watermill's Router does, and says how it
// ended.
func deliver(t *testing.T, h message.HandlerFunc, msg *message.Message) settled {
	t.Helper()
	d, ok := consumer.DeliveryFrom(msg.Context())
	if !ok {
		d = &consumer.Delivery{}
		msg.SetContext(consumer.ContextWithDelivery(msg.Context(), d))
	}
	var s settled
	done := make(chan struct{})
	go func() { // as in the Router, so that Goexit ends no test
		defer close(done)
		var produced []*message.Message
		produced, s.err = h(msg)
		if s.err != nil {
			msg.Nack()
			return
		}
		require.Empty(t, produced)
		msg.Ack()
	}()
	<-done
	s.acked, s.nacked = closed(msg.Acked()), closed(msg.Nacked())
	s.delay, s.terminated = d.Disposition()
	require.True(t, s.acked || s.nacked, "every delivery is settled")
	return s
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
