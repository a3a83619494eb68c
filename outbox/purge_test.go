package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

const keep = 30 * time.Minute

// keepPassed lets all that is known to a Purger be longer ago than Keep.
func keepPassed(t *testing.T, db *testbed.DB) {
	t.Helper()
	exec(t, db, `UPDATE oncemill.outbox SET created_at = created_at - $1::interval`, keep+time.Minute)
	exec(t, db, `UPDATE oncemill.outbox_sent SET seen_at = seen_at - $1::interval`, keep+time.Minute)
}

// purge makes a pass with a Purger that remembers nothing: another process.
func purge(t *testing.T, db *testbed.DB, o *outbox.Outbox) int64 {
	t.Helper()
	p, err := o.NewPurger(db.Pool, outbox.PurgeConfig{Keep: keep, Batch: 4})
	require.NoError(t, err)
	n, err := p.RunOnce(t.Context())
	require.NoError(t, err)
	return n
}

func kept(t *testing.T, db *testbed.DB) int {
	t.Helper()
	return scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox`)
}

// NATS was away for longer than Keep. What was sent a moment ago may not be on
// the broker's disk, however long ago it was written.
func TestPurgeKeepsWhatWasSentLate(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	for i := range 10 {
		write(t, db, o, s.Subject("a"), newMessage(fmt.Sprint(i)))
	}
	require.Zero(t, purge(t, db, o))
	keepPassed(t, db)
	require.Zero(t, purge(t, db, o), "nothing was sent yet")
	relay := newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
	runOnce(t, relay)
	require.Zero(t, purge(t, db, o), "sent a moment ago")
	keepPassed(t, db)
	require.Zero(t, purge(t, db, o), "no pass saw it sent before this one")
	require.Equal(t, 10, kept(t, db))

	since := scalar[time.Time](t, db, `SELECT min(created_at) FROM oncemill.outbox`)
	n, err := o.Republish(t.Context(), db.Pool, outbox.RepublishConfig{Since: since, Horizon: 24 * time.Hour, Batch: 3})
	require.NoError(t, err)
	require.EqualValues(t, 10, n)
	runOnce(t, relay)
	require.Equal(t, 20, count(t, s))
	keepPassed(t, db)
	require.Zero(t, purge(t, db, o), "what passes saw before they were republished says nothing")
	keepPassed(t, db)
	require.EqualValues(t, 10, purge(t, db, o))
	require.Zero(t, kept(t, db))
}

func TestPurgeKeepsWhatIsQueuedOrYoung(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	_, err := o.NewPurger(db.Pool, outbox.PurgeConfig{})
	require.ErrorContains(t, err, "Keep")
	write(t, db, o, "nosuch"+s.Prefix, newMessage("parked"))
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	cfg.MaxAttempts = 1
	relay := newRelay(t, db, cfg)
	send := func(n int) {
		t.Helper()
		for i := range n {
			write(t, db, o, s.Subject("a"), newMessage(fmt.Sprint(i)))
		}
		runOnce(t, relay)
	}
	send(30)
	require.Zero(t, purge(t, db, o), "young")
	keepPassed(t, db)
	send(5)
	require.EqualValues(t, 30, purge(t, db, o))
	require.Zero(t, purge(t, db, o))
	require.Equal(t, 6, kept(t, db), "one is parked, five are young")

	_, err = o.Skip(t.Context(), db.Pool, 1)
	require.NoError(t, err)
	runOnce(t, relay)
	keepPassed(t, db)
	require.EqualValues(t, 5, purge(t, db, o))
	keepPassed(t, db)
	require.EqualValues(t, 1, purge(t, db, o), "what was skipped goes as well")
	require.Zero(t, kept(t, db))
	require.Equal(t, 1, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_sent`), "pages go, but the last")
}

func TestPurgeKeepsWhatIsQueuedByHand(t *testing.T) {
	db := newDB(t)
	o := newOutbox(t, outbox.Config{})
	write(t, db, o, "a", newMessage("1"))
	exec(t, db, `CREATE TABLE public.moved AS SELECT * FROM oncemill.outbox_queue; DELETE FROM oncemill.outbox_queue`)
	require.Zero(t, purge(t, db, o))
	keepPassed(t, db)
	exec(t, db, `INSERT INTO oncemill.outbox_queue SELECT * FROM public.moved`)
	require.Zero(t, purge(t, db, o))
}

// between runs a function before the statement that queues a batch.
type between struct {
	*pgxpool.Pool
	run func()
}

func (b between) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if strings.Contains(query, "INSERT INTO") {
		b.run()
	}
	return b.Pool.Query(ctx, query, args...)
}

// A pass between the start of a Republish and the batch that queues a message
// finds it sent, by the earlier sending.
func TestPurgeDuringARepublish(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	write(t, db, o, s.Subject("a"), newMessage("1"), newMessage("2"))
	relay := newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
	runOnce(t, relay)
	since := scalar[time.Time](t, db, `SELECT min(created_at) FROM oncemill.outbox`)
	n, err := o.Republish(t.Context(), between{db.Pool, func() { purge(t, db, o) }}, outbox.RepublishConfig{Since: since, Horizon: time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	require.Equal(t, 1, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_sent`), "the pass looked")
	runOnce(t, relay)
	keepPassed(t, db)
	require.Zero(t, purge(t, db, o))
	keepPassed(t, db)
	require.EqualValues(t, 2, purge(t, db, o))
}

// A transaction may stay open for longer than Keep after it wrote.
func TestPurgeFindsWhatWasCommittedLate(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	relay := newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // Committed below.
	for range 2 {
		require.NoError(t, o.Write(t.Context(), tx, s.Subject("a"), newMessage("late")))
		for range 3 {
			write(t, db, o, s.Subject("a"), newMessage("x"))
		}
	}
	runOnce(t, relay)
	for _, want := range []int64{0, 6, 0} {
		require.Equal(t, want, purge(t, db, o))
		keepPassed(t, db)
	}
	require.NoError(t, tx.Commit(t.Context()))
	runOnce(t, relay)
	for _, want := range []int64{0, 2} {
		require.Equal(t, want, purge(t, db, o))
		keepPassed(t, db)
	}
	require.Zero(t, kept(t, db))
}

// Over database/sql, and several at once.
func TestPurgersShareTheWork(t *testing.T) {
	db := newDB(t)
	o := newOutbox(t, outbox.Config{})
	exec(t, db, `INSERT INTO oncemill.outbox (topic, logical_id, header, payload) SELECT 'a', g::text, '', '' FROM generate_series(1, 200) g`)
	p, err := o.NewPurgerSQL(openSQL(t, db), outbox.PurgeConfig{Keep: keep, Batch: 4})
	require.NoError(t, err)
	pass := func() (total int64) {
		gone := make(chan int64)
		for range 4 {
			go func() {
				n, err := p.RunOnce(context.Background())
				assert.NoError(t, err)
				gone <- n
			}()
		}
		for range 4 {
			total += <-gone
		}
		return total
	}
	require.Zero(t, pass())
	keepPassed(t, db)
	require.EqualValues(t, 200, pass())
	require.Equal(t, 1, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_sent`))
}
