package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// load is many writers that each write messages "key number": numbers of a
// key count up with its commits, kept apart by a row lock.
type load struct {
	writers, rows, keys int
	rollbacks           float64
}

var errRolledBack = errors.New("rolled back")

// run returns, per key, how many messages were committed.
func (l load) run(t *testing.T, db *testbed.DB, o *outbox.Outbox, topic string) map[string]int {
	t.Helper()
	exec(t, db, `CREATE SCHEMA IF NOT EXISTS app`)
	exec(t, db, `CREATE TABLE IF NOT EXISTS app.counter (key text PRIMARY KEY, n int NOT NULL)`)
	for k := range l.keys {
		exec(t, db, `INSERT INTO app.counter VALUES ($1, 0) ON CONFLICT DO NOTHING`, fmt.Sprint("k", k))
	}
	pool, err := testbed.NewPool(context.Background(), db.URL, func(c *pgxpool.Config) { c.MaxConns = 24 })
	require.NoError(t, err)
	defer pool.Close()
	var wg sync.WaitGroup
	for range l.writers {
		wg.Go(func() {
			for range l.rows / l.writers {
				err := l.write(context.Background(), pool, o, topic)
				if err != nil && !errors.Is(err, errRolledBack) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	committed := map[string]int{}
	rows, err := db.Pool.Query(t.Context(), `SELECT key, n FROM app.counter WHERE n > 0`)
	require.NoError(t, err)
	var key string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error { committed[key] = n; return nil })
	require.NoError(t, err)
	return committed
}

func (l load) write(ctx context.Context, pool *pgxpool.Pool, o *outbox.Outbox, topic string) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		key := fmt.Sprint("k", rand.IntN(l.keys))
		var n int
		err := tx.QueryRow(ctx, `UPDATE app.counter SET n = n + 1 WHERE key = $1 RETURNING n - 1`, key).Scan(&n)
		if err != nil {
			return err
		}
		if err := o.Write(ctx, tx, topic, keyed(fmt.Sprint(key, " ", n), key)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_sleep(random() * 0.003)`); err != nil {
			return err
		}
		if rand.Float64() < l.rollbacks {
			return errRolledBack
		}
		return nil
	})
	o.Notify()
	return err
}

// openWriter starts an unrelated transaction that has written, and keeps it.
func openWriter(t *testing.T, db *testbed.DB) {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT pg_current_xact_id()`)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
}

func TestC51_LateCommitsAreNotSkipped(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	openWriter(t, db)
	run(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))

	for round := range 5 {
		tx, err := db.Pool.Begin(t.Context())
		require.NoError(t, err)
		for i := range 8 { // in every lane
			require.NoError(t, o.Write(t.Context(), tx, s.Subject("a"), newMessage(fmt.Sprint("late", i))))
		}
		gap, err := db.Pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, o.Write(t.Context(), gap, s.Subject("a"), newMessage("never")))
		require.NoError(t, gap.Rollback(t.Context()))

		write(t, db, o, s.Subject("a"), newMessage("1"), newMessage("2"), newMessage("3"), newMessage("4"))
		eventually(t, "later rows are sent while the earlier are uncommitted", func() bool { return count(t, s) == round*12+4 })
		require.NoError(t, tx.Commit(t.Context()))
		eventually(t, "earlier rows are sent once they are committed", func() bool { return count(t, s) == round*12+12 })
	}
	require.NotContains(t, payloads(stored(t, s)), "never")
	drained(t, db)
}

func TestC51_ManyWritersWithRollbacks(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	openWriter(t, db)
	sink := &spy{Sink: newSink(t, s.Conn, outbox.JetStreamConfig{})}
	cfg := relayConfig(sink)
	cfg.Outbox, cfg.Batch = o, 7 // many pages, many generations
	run(t, newRelay(t, db, cfg))
	committed := load{writers: 50, rows: 5000, keys: 40, rollbacks: 0.1}.run(t, db, o, s.Subject("a"))
	drained(t, db)
	checkHistory(t, stored(t, s), committed)
	require.Equal(t, 1, sink.mostUnacked(), "one unacknowledged row per key")
}

// A refused row must not be overtaken by the next one of its key.
func TestOneUnacknowledgedRowPerKey(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 10, jetstream.DiscardNew })
	o := newOutbox(t, outbox.Config{})
	for i := range 30 {
		write(t, db, o, s.Subject("a"), keyed(fmt.Sprint("k ", i), "k"))
	}
	sink := &spy{Sink: newSink(t, s.Conn, outbox.JetStreamConfig{})}
	run(t, newRelay(t, db, relayConfig(sink)))
	eventually(t, "stream is full", func() bool {
		return scalar[int](t, db, `SELECT coalesce(max(attempts), 0) FROM oncemill.outbox_queue`) > 1
	})
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	cfg := info.Config
	cfg.MaxMsgs = -1
	_, err = s.JS.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	drained(t, db)
	checkHistory(t, stored(t, s), map[string]int{"k": 30})
	require.Equal(t, 1, sink.mostUnacked())
}

func TestC64_SeveralRelaysKeepTheOrder(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	var relays []*outbox.Relay
	var proxies []*testbed.PostgresProxy
	var stops []func()
	for range 4 {
		proxy := testbed.NewPostgresProxy(t, db.URL)
		pool, err := testbed.NewPool(t.Context(), proxy.URL(), nil)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		nc, err := s.Server.Connect()
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		cfg := relayConfig(newSink(t, nc, outbox.JetStreamConfig{}))
		cfg.Outbox, cfg.Lease, cfg.Batch = o, time.Second, 20
		r, err := outbox.NewRelay(pool, cfg)
		require.NoError(t, err)
		relays, proxies = append(relays, r), append(proxies, proxy)
		stops = append(stops, run(t, r))
	}
	eventually(t, "each has its share", func() bool {
		for _, r := range relays {
			if r.Stats().Lanes != 1 {
				return false
			}
		}
		return true
	})
	written := make(chan map[string]int, 1)
	go func() {
		written <- load{writers: 20, rows: 5000, keys: 20, rollbacks: 0.05}.run(t, db, o, s.Subject("a"))
	}()
	eventually(t, "under way", func() bool { return count(t, s) > 500 })

	// One stalls in the middle, its lane goes to another, it comes back.
	owner := scalar[int64](t, db, `SELECT sum(fence) FROM oncemill.outbox_lane`)
	proxies[0].Stall(testbed.ToServer)
	eventually(t, "the stalled relay's lane is taken over", func() bool {
		return scalar[int64](t, db, `SELECT sum(fence) FROM oncemill.outbox_lane`) > owner
	})
	proxies[0].Resume(testbed.ToServer)
	// One is killed.
	proxies[1].Down()
	stops[1]()

	committed := <-written
	drained(t, db)
	msgs := stored(t, s)
	checkHistory(t, msgs, committed)
	broker := map[string]string{}
	for _, m := range msgs {
		id := m.Header.Get(outbox.HeaderBrokerID)
		if first, ok := broker[string(m.Data)]; ok {
			require.Equal(t, first, id, "a copy has the same broker id")
		}
		broker[string(m.Data)] = id
	}
}

func TestLanesAreSharedAndGivenBackAtOnce(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	newOne := func() (*outbox.Relay, func()) {
		cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
		cfg.Lease = time.Hour // nothing here waits for a lease to end
		r := newRelay(t, db, cfg)
		return r, run(t, r)
	}
	lanes := func(r *outbox.Relay, n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " lanes"), func() bool { return r.Stats().Lanes == n })
	}
	a, stopA := newOne()
	lanes(a, 4)
	b, stopB := newOne()
	lanes(a, 2)
	lanes(b, 2)
	c, stopC := newOne()
	eventually(t, "all lanes are held", func() bool {
		return a.Stats().Lanes+b.Stats().Lanes+c.Stats().Lanes == 4 && a.Stats().Lanes <= 2 && b.Stats().Lanes <= 2
	})
	stopA()
	lanes(b, 2)
	lanes(c, 2)
	stopB()
	lanes(c, 4)
	stopC()
	require.Equal(t, 4, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_lane WHERE owner = '' AND expires_at = '-infinity'`))
	require.Zero(t, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_relay`))
}

// A relay whose lease is over sends nothing, and what it still learns does not
// touch rows that another relay holds.
func TestLeaseAndFence(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	write(t, db, o, s.Subject("a"), keyed("k 0", "k"), keyed("k 1", "k"))

	proxy := testbed.NewPostgresProxy(t, db.URL)
	pool, err := testbed.NewPool(t.Context(), proxy.URL(), nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for name, outcome := range map[string]error{"rejected": &outbox.SendError{Outcome: outbox.Rejected, Reason: "full"}, "sent": nil} {
		t.Run(name, func(t *testing.T) { staleRelay(t, db, proxy, pool, s, outcome) })
	}
}

func staleRelay(t *testing.T, db *testbed.DB, proxy *testbed.PostgresProxy, pool *pgxpool.Pool, s *testbed.Stream, outcome error) {
	sending := make(chan func(error), 1)
	stale := &hand{Sink: newSink(t, s.Conn, outbox.JetStreamConfig{}), sends: sending}
	cfg := relayConfig(stale)
	cfg.Lease = 500 * time.Millisecond
	a, err := outbox.NewRelay(pool, cfg)
	require.NoError(t, err)
	stopA := run(t, a)
	done := <-sending // a has sent the first row

	proxy.Stall(testbed.ToServer)
	holder := &hand{Sink: stale.Sink, sends: make(chan func(error), 2)}
	cfg.Sink, cfg.StopWait = holder, bound // b keeps the lane until its sending is answered
	stopB := run(t, newRelay(t, db, cfg))
	answer := <-holder.sends // b has taken the lane and sent it too

	done(outcome)
	eventually(t, "a has the answer", func() bool { return a.Stats().Sent+a.Stats().Failed == 1 })
	proxy.Resume(testbed.ToServer)
	eventually(t, "a is back", func() bool {
		return scalar[bool](t, db, `SELECT count(*) = 2 FROM oncemill.outbox_relay WHERE expires_at > clock_timestamp()`)
	})
	stopA()
	require.EqualValues(t, 1, stale.count.Load(), "nothing is sent after the lease")
	require.Zero(t, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_queue WHERE attempts > 0 OR due_at IS NOT NULL`))

	ended := make(chan struct{})
	go func() { defer close(ended); stopB() }()
	for {
		answer(errors.New("in doubt"))
		select {
		case answer = <-holder.sends:
		case <-ended:
			return
		}
	}
}
