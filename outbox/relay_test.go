package outbox_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

func TestC24_PayloadsArriveByteIdentical(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	body := "{\"z\":1,\"a\":{\"y\":1e2},\"n\":\"\\u0000\"}"
	sign := func(b []byte) string {
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write(b)
		return hex.EncodeToString(mac.Sum(nil))
	}
	signed, binary := newMessage(body), newMessage("\x00\xff\xfe\r\n\x1f\x8b binary")
	signed.Metadata["X-Signature"] = sign(signed.Payload)
	write(t, db, o, s.Subject("a"), signed, binary)
	runOnce(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))
	msgs := stored(t, s)
	require.ElementsMatch(t, []string{body, string(binary.Payload)}, payloads(msgs))
	for _, m := range msgs {
		if signature := m.Header.Get("X-Signature"); signature != "" {
			require.Equal(t, sign(m.Data), signature)
		}
	}
}

// doomed is a relay with a connection of its own to the database, which kill
// cuts for good: nothing more is recorded, as when the process ends.
type doomed struct {
	proxy *testbed.PostgresProxy
	relay *outbox.Relay
	stop  func()
}

func newDoomed(t *testing.T, db *testbed.DB, cfg outbox.RelayConfig) *doomed {
	t.Helper()
	proxy := testbed.NewPostgresProxy(t, db.URL)
	pool, err := testbed.NewPool(t.Context(), proxy.URL(), nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	r, err := outbox.NewRelay(pool, cfg)
	require.NoError(t, err)
	return &doomed{proxy: proxy, relay: r}
}

func (d *doomed) kill() {
	d.proxy.Down()
	d.stop()
}

func TestC53_CrashAfterAckBeforeMark(t *testing.T) {
	for name, window := range map[string]time.Duration{"inside the window": time.Minute, "after the window": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			s := testbed.NewStream(t, func(c *jetstream.StreamConfig) { c.Duplicates = window })
			write(t, db, newOutbox(t, outbox.Config{}), s.Subject("a"), keyed("1", "k"))

			acked := make(chan struct{})
			sink := &spy{Sink: newSink(t, s.Conn, outbox.JetStreamConfig{})}
			sink.after = func(_ *outbox.Message, err error) bool {
				if err == nil {
					close(acked)
				}
				return false
			}
			cfg := relayConfig(sink)
			cfg.Lease, cfg.StopWait = 500*time.Millisecond, time.Millisecond
			d := newDoomed(t, db, cfg)
			d.stop = run(t, d.relay)
			<-acked
			d.kill()
			first := stored(t, s)
			require.Len(t, first, 1)
			waitForWindow(t, s, window)

			cfg.Sink = sink.Sink
			run(t, newRelay(t, db, cfg))
			drained(t, db)
			msgs := stored(t, s)
			if window == time.Minute {
				require.Len(t, msgs, 1)
				return
			}
			require.Len(t, msgs, 2)
			for _, name := range []string{outbox.HeaderID, outbox.HeaderBrokerID, outbox.HeaderTime} {
				require.Equal(t, first[0].Header[name], msgs[1].Header[name], name)
			}
		})
	}
}

// waitForWindow returns when the stream has forgotten ids published before, if
// its window is short.
func waitForWindow(t *testing.T, s *testbed.Stream, window time.Duration) {
	t.Helper()
	if window > time.Second {
		return
	}
	other := testbed.NewStream(t, func(c *jetstream.StreamConfig) { c.Duplicates = window })
	_, err := other.JS.Publish(t.Context(), other.Subject("probe"), nil, jetstream.WithMsgID("probe"))
	require.NoError(t, err)
	eventually(t, "the window is over", func() bool {
		ack, err := other.JS.Publish(t.Context(), other.Subject("probe"), nil, jetstream.WithMsgID("probe"))
		return err == nil && !ack.Duplicate
	})
}

func TestC53_CrashBeforePublishAndAfterMark(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	write(t, db, o, s.Subject("a"), keyed("1", "k"), keyed("2", "k"))
	real := newSink(t, s.Conn, outbox.JetStreamConfig{})

	reached := make(chan struct{})
	cfg := relayConfig(&spy{Sink: real, before: func(*outbox.Message) bool { close(reached); return false }})
	cfg.Lease, cfg.StopWait = 500*time.Millisecond, time.Millisecond
	before := newDoomed(t, db, cfg)
	before.stop = run(t, before.relay)
	<-reached
	before.kill()
	require.Zero(t, count(t, s))

	cfg.Sink = real
	after := newDoomed(t, db, cfg)
	after.stop = run(t, after.relay)
	drained(t, db)
	after.kill()

	last := newRelay(t, db, cfg)
	run(t, last)
	eventually(t, "the lanes are taken over", func() bool { return last.Stats().Lanes == 4 })
	write(t, db, o, s.Subject("a"), keyed("3", "k"))
	drained(t, db)
	require.Equal(t, []string{"1", "2", "3"}, payloads(stored(t, s)))
}

func TestC54_LostAckIsRetriedWithTheSameIDs(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, func(c *jetstream.StreamConfig) { c.Duplicates = 200 * time.Millisecond })
	proxy := testbed.NewProxy(t, s.Server.URL())
	nc, err := testbed.ConnectNATS(proxy.URL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	write(t, db, newOutbox(t, outbox.Config{}), s.Subject("a"), keyed("1", "k"), keyed("2", "k"))

	proxy.Drop(testbed.ToClient)
	cfg := relayConfig(newSink(t, nc, outbox.JetStreamConfig{AckTimeout: 300 * time.Millisecond}))
	relay := newRelay(t, db, cfg)
	run(t, relay)
	eventually(t, "the answer is lost", func() bool { return relay.Stats().InDoubt > 0 })
	proxy.Restore(testbed.ToClient)
	drained(t, db)
	msgs := stored(t, s)
	require.Greater(t, len(msgs), 2, "the window was over: a copy")
	first := map[string]nats.Header{}
	var order []string
	for _, m := range msgs {
		h, again := first[string(m.Data)]
		if !again {
			first[string(m.Data)] = m.Header
			order = append(order, string(m.Data))
			continue
		}
		require.Equal(t, h, m.Header)
	}
	require.Equal(t, []string{"1", "2"}, order)
}

func TestC54_CheckComparesWindowWithRetryInterval(t *testing.T) {
	for _, tc := range []struct {
		relay  outbox.RelayConfig
		enough time.Duration
	}{
		{outbox.RelayConfig{}, 23 * time.Second}, // three answers of 5 s are awaited, then 6 s and a poll
		{outbox.RelayConfig{Poll: 100 * time.Second}, 122 * time.Second},
		{outbox.RelayConfig{Lease: time.Minute}, 61 * time.Second}, // it died, and another one looks once a second
	} {
		require.Empty(t, windowWarnings(t, tc.enough, tc.relay))
		require.Empty(t, windowWarnings(t, tc.enough+time.Minute, tc.relay))
		for _, window := range []time.Duration{time.Second, tc.enough - time.Second} {
			require.Equal(t, []string{fmt.Sprintf(": its duplicate window of %s is shorter than the %s after which a message may be sent again: copies then reach the consumers; set Duplicates to %s or more",
				window, tc.enough, tc.enough)}, windowWarnings(t, window, tc.relay))
		}
	}
}

// windowWarnings is what the check says of a stream, behind its name.
func windowWarnings(t *testing.T, window time.Duration, relay outbox.RelayConfig) (warnings []string) {
	t.Helper()
	s := testbed.NewStream(t, func(c *jetstream.StreamConfig) { c.Duplicates = window })
	all, err := outbox.CheckJetStream(t.Context(), s.JS, relay, outbox.JetStreamConfig{})
	require.NoError(t, err)
	for _, warning := range all { // the server has streams of other tests
		if rest, ours := strings.CutPrefix(warning, "stream "+s.Name); ours {
			warnings = append(warnings, rest)
		}
	}
	return warnings
}

func TestC56_NoStream(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	missing := "nosuch" + s.Prefix + ".x"
	write(t, db, o, missing, newMessage("waits"))
	for i := range 100 {
		write(t, db, o, s.Subject("new"), newMessage(fmt.Sprint(i)))
	}
	relay := newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
	run(t, relay)
	eventually(t, "the others are out", func() bool { return count(t, s) == 100 && queued(t, db) == 1 })
	eventually(t, "the one is retried", func() bool { return relay.Stats().Failed > 2 })
	list, err := o.Failing(t.Context(), db.Pool, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "no stream takes the subject", list[0].Reason)
	require.Nil(t, list[0].ParkedAt)
	require.NotNil(t, list[0].DueAt)

	_, err = s.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: s.Name + "B", Subjects: []string{missing}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.JS.DeleteStream(context.Background(), s.Name+"B") })
	drained(t, db)
}

func TestC56_APlainSubscriberIsNotAStream(t *testing.T) {
	for name, answer := range map[string]string{"empty": "", "text": "ok", "json": "{}", "half an ack": `{"stream":"X"}`, "silent": "-"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			s := testbed.NewStream(t, nil)
			o := newOutbox(t, outbox.Config{})
			subject := "plain" + s.Prefix
			var got atomic.Int64
			_, err := s.Conn.Subscribe(subject, func(m *nats.Msg) {
				got.Add(1)
				if answer != "-" {
					_ = m.Respond([]byte(answer))
				}
			})
			require.NoError(t, err)
			write(t, db, o, subject, newMessage("x"))
			run(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{AckTimeout: 100 * time.Millisecond}))))
			eventually(t, "the reason is recorded", func() bool {
				list, err := o.Failing(t.Context(), db.Pool, 10)
				return err == nil && len(list) == 1
			})
			require.Positive(t, got.Load())
			require.Equal(t, 1, queued(t, db))
			if answer == "-" {
				require.Zero(t, scalar[int](t, db, `SELECT attempts FROM oncemill.outbox_queue`), "an attempt in doubt is not charged")
			}
		})
	}
}

func TestC57_WhatTheServerDoesNotTakeIsParked(t *testing.T) {
	db := newDB(t)
	n := testbed.NewNATSProcess(t, testbed.NATSConfig{})
	s := n.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	for i := range 10 {
		write(t, db, o, s.Subject("a"), newMessage(strings.Repeat("b", 100<<10)), newMessage(fmt.Sprint("small", i)+strings.Repeat("s", 1<<10)))
	}
	exec(t, db, `WITH m AS (INSERT INTO oncemill.outbox (topic, logical_id, header, payload)
		VALUES ($1, 'big header', $2, 'x') RETURNING id)
		INSERT INTO oncemill.outbox_queue (lane, id, xid) SELECT 0, id, pg_current_xact_id() FROM m`,
		s.Subject("a"), encodeHeader("big", strings.Repeat("h", 70<<10)))

	restart := func(limit int32) {
		require.NoError(t, n.Stop(t.Context()))
		n.SetMaxPayload(limit)
		require.NoError(t, n.Start(t.Context()))
		eventually(t, "connected", func() bool { return s.Conn.IsConnected() && s.Conn.MaxPayload() == int64(limit) })
	}
	restart(64 << 10)
	reconnects := s.Conn.Stats().Reconnects
	stop := run(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))
	eventually(t, "small rows are out, big ones parked", func() bool {
		parked, err := o.Parked(t.Context(), db.Pool, 100)
		return err == nil && len(parked) == 11 && count(t, s) == 10
	})
	require.Equal(t, reconnects, s.Conn.Stats().Reconnects, "the connection was kept")
	parked, err := o.Parked(t.Context(), db.Pool, 100)
	require.NoError(t, err)
	var ids []int64
	for _, f := range parked {
		ids = append(ids, f.ID)
		if f.LogicalID == "big header" {
			require.Regexp(t, `the headers take 7\d{4} bytes, JetStream stores 65535`, f.Reason)
			continue
		}
		require.Regexp(t, `payload and headers are 102\d{3} bytes, the server takes 65536`, f.Reason)
	}
	stop()

	restart(1 << 20)
	run(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))
	redriven, err := o.Redrive(t.Context(), db.Pool, ids...)
	require.NoError(t, err)
	require.EqualValues(t, 11, redriven)
	eventually(t, "redriven rows are out", func() bool { return count(t, s) == 20 && queued(t, db) == 1 })
}

func TestC58_OneUnsendableRowHoldsUpItsKeyOnly(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	write(t, db, o, s.Subject("a"), keyed("bad 0", "bad"))
	exec(t, db, `UPDATE oncemill.outbox SET header = $1`, encodeHeader("bad key", "x"))
	for i := range 1000 {
		key := fmt.Sprint("k", i%7)
		if i%10 == 0 {
			key = "bad"
		}
		write(t, db, o, s.Subject("a"), keyed(fmt.Sprint(key, " ", i), key))
	}
	lines := &lineCounter{}
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	cfg.Logger = slog.New(slog.NewTextHandler(lines, nil))
	run(t, newRelay(t, db, cfg))
	eventually(t, "rows of other keys are out", func() bool { return count(t, s) == 900 && queued(t, db) == 101 })

	parked, err := o.Parked(t.Context(), db.Pool, 10)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, "bad", parked[0].OrderingKey)
	require.Contains(t, parked[0].Reason, `"bad key"`)
	require.LessOrEqual(t, lines.n.Load(), int64(2), "logged at a bounded rate")

	// An operator repairs it: its key goes on, in order.
	exec(t, db, `UPDATE oncemill.outbox SET header = '' WHERE id = $1`, parked[0].ID)
	_, err = o.Redrive(t.Context(), db.Pool, parked[0].ID)
	require.NoError(t, err)
	drained(t, db)
	last := -1
	for _, m := range stored(t, s) {
		var n int
		if _, err := fmt.Sscanf(string(m.Data), "bad %d", &n); err == nil {
			require.GreaterOrEqual(t, n, last)
			last = n
		}
	}
	require.Equal(t, 990, last)
}

type lineCounter struct{ n atomic.Int64 }

func (w *lineCounter) Write(p []byte) (int, error) {
	w.n.Add(int64(strings.Count(string(p), "\n")))
	return len(p), nil
}

func TestSkipLetsTheKeyGoOn(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	write(t, db, o, "nosuch"+s.Prefix, keyed("lost", "k"))
	write(t, db, o, s.Subject("a"), keyed("1", "k"), keyed("2", "k"))
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	cfg.MaxAttempts = 3
	run(t, newRelay(t, db, cfg))
	var parked []outbox.Failure
	eventually(t, "parked after three attempts", func() (ok bool) {
		var err error
		parked, err = o.Parked(t.Context(), db.Pool, 10)
		return err == nil && len(parked) == 1
	})
	require.Equal(t, 3, parked[0].Attempts)
	require.Zero(t, count(t, s))
	backlog, err := o.Backlog(t.Context(), db.Pool)
	require.NoError(t, err)
	require.EqualValues(t, 3, backlog.Queued)
	require.EqualValues(t, 1, backlog.Parked)
	require.Positive(t, backlog.Lag)

	_, err = o.Skip(t.Context(), db.Pool, parked[0].ID)
	require.NoError(t, err)
	drained(t, db)
	require.Equal(t, []string{"1", "2"}, payloads(stored(t, s)))
}

func TestC59_AnOutageChargesNobody(t *testing.T) {
	db := newDB(t)
	n := testbed.NewNATSProcess(t, testbed.NATSConfig{})
	s := n.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	sink := newSink(t, s.Conn, outbox.JetStreamConfig{AckTimeout: time.Second})
	cfg := relayConfig(sink)
	cfg.Outbox, cfg.Lease, cfg.MaxAttempts = o, 500*time.Millisecond, 2
	relay := newRelay(t, db, cfg)
	run(t, relay)
	eventually(t, "lanes are held", func() bool { return relay.Stats().Lanes == 4 })

	require.NoError(t, n.Stop(t.Context()))
	const keys, perKey = 100, 100
	committed := map[string]int{}
	for k := range keys {
		key := fmt.Sprint("k", k)
		committed[key] = perKey
		for i := 0; i < perKey; i += 10 {
			write(t, db, o, s.Subject("a"),
				keyed(fmt.Sprint(key, " ", i), key), keyed(fmt.Sprint(key, " ", i+1), key), keyed(fmt.Sprint(key, " ", i+2), key),
				keyed(fmt.Sprint(key, " ", i+3), key), keyed(fmt.Sprint(key, " ", i+4), key), keyed(fmt.Sprint(key, " ", i+5), key),
				keyed(fmt.Sprint(key, " ", i+6), key), keyed(fmt.Sprint(key, " ", i+7), key), keyed(fmt.Sprint(key, " ", i+8), key),
				keyed(fmt.Sprint(key, " ", i+9), key))
		}
	}
	eventually(t, "lanes are let go", func() bool {
		return scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_lane WHERE owner <> ''`) == 0
	})
	backlog, err := o.Backlog(t.Context(), db.Pool)
	require.NoError(t, err)
	require.EqualValues(t, keys*perKey, backlog.Queued, "lag is visible")

	require.NoError(t, n.Start(t.Context()))
	eventually(t, "draining", func() bool { return queued(t, db) < keys*perKey-500 })
	require.NoError(t, n.Kill(t.Context()))
	require.NoError(t, n.Start(t.Context()))
	drained(t, db)
	eventually(t, "connected", s.Conn.IsConnected)
	checkHistory(t, stored(t, s), committed)
	require.Zero(t, relay.Stats().Failed, "no attempt was charged, none parked")
}

func TestRowsOfAnotherClusterAreAdopted(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	write(t, db, newOutbox(t, outbox.Config{}), s.Subject("a"), newMessage("1"), keyed("2", "k"))
	exec(t, db, `UPDATE oncemill.outbox_queue SET xid = '9000000000000'`) // as a restored dump would
	run(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))
	drained(t, db)
	require.Equal(t, 2, count(t, s))
}

func TestWakeUps(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	cfg.Outbox, cfg.Poll, cfg.Lease = o, time.Hour, time.Hour
	relay := newRelay(t, db, cfg)
	run(t, relay)
	eventually(t, "lanes are held", func() bool { return relay.Stats().Lanes == 4 })
	elsewhere := newOutbox(t, outbox.Config{Wake: s.Conn})
	require.Equal(t, o.WakeSubject(), elsewhere.WakeSubject())
	for i, notify := range []func(){o.Notify, relay.Notify, elsewhere.Notify, elsewhere.Notify} {
		write(t, db, o, s.Subject("a"), newMessage("x"))
		notify()
		eventually(t, fmt.Sprint("woken ", i), func() bool { return count(t, s) == i+1 })
	}
}

func TestJetStreamRefusesAReconnectBuffer(t *testing.T) {
	s := testbed.NewStream(t, nil)
	nc, err := s.Server.Connect(nats.ReconnectBufSize(0))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	_, err = outbox.JetStream(nc, outbox.JetStreamConfig{})
	require.ErrorContains(t, err, "nats.ReconnectBufSize(-1)")
}

func TestLanesShareAFewConnections(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	load{writers: 4, rows: 1000, keys: 10}.run(t, db, o, s.Subject("a"))
	proxy := testbed.NewPostgresProxy(t, db.URL)
	pool, err := testbed.NewPool(t.Context(), proxy.URL(), func(c *pgxpool.Config) { c.MaxConns = 10 })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	cfg.Outbox, cfg.Batch = o, 20
	relay, err := outbox.NewRelay(pool, cfg)
	require.NoError(t, err)
	runOnce(t, relay)
	drained(t, db)
	links := map[int]bool{}
	for _, statement := range proxy.Statements() {
		links[statement.Link] = true
	}
	require.LessOrEqual(t, len(links), 2+1)
}

func TestDatabaseOutageLosesNothing(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	proxy := testbed.NewPostgresProxy(t, db.URL)
	pool, err := testbed.NewPool(t.Context(), proxy.URL(), func(c *pgxpool.Config) { c.MaxConns = 10 })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	cfg.Outbox, cfg.Lease = o, 500*time.Millisecond
	relay, err := outbox.NewRelay(pool, cfg)
	require.NoError(t, err)
	run(t, relay)
	written := make(chan map[string]int, 1)
	go func() { written <- load{writers: 10, rows: 1000, keys: 10}.run(t, db, o, s.Subject("a")) }()
	for cut := range 3 {
		eventually(t, "under way", func() bool { return count(t, s) > 100*(cut+1) })
		proxy.Down()
		eventually(t, "the lease is over", func() bool {
			return scalar[bool](t, db, `SELECT bool_and(expires_at < clock_timestamp()) FROM oncemill.outbox_lane`)
		})
		proxy.Up()
	}
	committed := <-written
	drained(t, db)
	checkHistory(t, stored(t, s), committed)
}
