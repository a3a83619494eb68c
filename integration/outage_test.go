package integration

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// C39: NATS goes away while messages are between commit and ack.
func TestC39_ServerKilledBetweenCommitAndAck(t *testing.T) {
	for name, confirm := range map[string]bool{"acks are sent": false, "acks are confirmed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const events = 10
			server := testbed.NewNATSProcess(t, testbed.NATSConfig{SyncAlways: true})
			s := newStackOn(t, testbed.NewDB(t), server.NewStream(t, nil))
			svc := s.open(s.wiring(), options{
				consumer:  func(cfg *consumer.Config) { cfg.Concurrency = events },
				jetstream: func(cfg *jetstream.Config) { cfg.AckWait, cfg.AckConfirm = time.Second, confirm },
			})
			var committed atomic.Int64
			restarted := make(chan struct{})
			svc.router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					msgs, err := h(msg)
					committed.Add(1)
					<-restarted
					return msgs, err
				}
			})
			svc.handle("charge", "new", svc.effect)
			s.start(svc)
			s.publishEvents(events)
			s.eventually("all are committed, none is acked", func() bool { return committed.Load() == events })
			require.NoError(t, server.Kill(t.Context()))
			close(restarted)
			require.NoError(t, server.Start(t.Context()))
			s.settled("charge")
			s.requireCommands(events)
			require.Equal(t, events, s.effects())
			require.Equal(t, events, s.runs())
			requireOutcomes(t, consumer.Stats{Done: events}, svc.consumer.Stats()) // a lost ack is nobody's failure
		})
	}
}

// C40: PostgreSQL is away while messages flow.
func TestC40_DatabaseAway(t *testing.T) {
	t.Parallel()
	const events = 100
	server := testbed.NewPostgres(t, testbed.PostgresConfig{})
	s := newStackOn(t, server.NewDB(t), testbed.NewStream(t, nil))
	svc := s.open(s.wiring(), options{})
	var seen deliveries
	svc.router.AddMiddleware(seen.around)
	svc.handle("charge", "new", svc.effect)
	s.start(svc)
	s.publishEvents(events / 2)
	s.eventually("messages flow", func() bool { return svc.consumer.Stats().Done > 10 })
	require.NoError(t, server.Stop(t.Context(), testbed.Immediate))
	var away []uint64
	for i := events / 2; i < events; i++ {
		id := fmt.Sprintf("k%d", i)
		away = append(away, s.publish("new", id, "event_id", id))
	}
	s.eventually("each message came again and again", func() bool { return seen.least(away) >= 4 })
	acked := func() int64 { return int64(svc.subs["charge"].Stats().Acked) }
	s.eventually("what was committed is acked, and no more", func() bool { return acked() == svc.consumer.Stats().Done })
	require.LessOrEqual(t, acked(), int64(events/2), "no ack during the outage")
	seen.requireDelays(t)
	require.NoError(t, server.Start(t.Context()))
	s.db.Pool.Reset() // its connections died with the server
	s.settled("charge")
	s.requireCommands(events)
	require.Equal(t, events, s.effects())
	require.Empty(t, s.held())
	require.Zero(t, svc.consumer.Stats().Failed)
	after := svc.subs["charge"].Stats()
	require.Equal(t, after.Fetched, after.Acked+after.Nacked+after.Lapsed, "every delivery was settled")
}

// C45: a COMMIT whose reply is lost, and one that never arrives.
func TestC45_CommitInDoubt(t *testing.T) {
	for name, tc := range map[string]struct {
		arm  func(*testbed.PostgresProxy) *testbed.Fault
		runs int
		then consumer.Stats
	}{
		"executed":   {func(p *testbed.PostgresProxy) *testbed.Fault { return p.CutAfterCommit(1) }, 1, consumer.Stats{InDoubt: 1, Duplicates: 1}},
		"never sent": {func(p *testbed.PostgresProxy) *testbed.Fault { return p.CutBeforeCommit(1) }, 2, consumer.Stats{InDoubt: 1, Done: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			proxy := testbed.NewPostgresProxy(t, s.db.URL)
			w := s.wiring()
			w.Database = proxy.URL()
			svc := s.open(w, options{})
			svc.handle("charge", "new", svc.effect)
			s.start(svc)
			cut := tc.arm(proxy)
			s.publishEvents(1)
			cut.Await(t)
			s.settled("charge")
			s.requireCommands(1)
			requireOutcomes(t, tc.then, svc.consumer.Stats())
			require.Equal(t, tc.runs, s.runs())
			require.Equal(t, 1, s.effects())
			require.Empty(t, s.held(), "nothing is concluded from a guess")
		})
	}
}

// C59: an outage of NATS parks nothing and charges nobody.
func TestC59_BrokerAway(t *testing.T) {
	t.Parallel()
	const rows, perKey = 1000, 50
	server := testbed.NewNATSProcess(t, testbed.NATSConfig{SyncAlways: true})
	s := newStackOn(t, testbed.NewDB(t), server.NewStream(t, nil))
	svc := s.open(s.wiring(), options{relay: func(cfg *outbox.RelayConfig) { cfg.Batch, cfg.Window = 50, 50 }})
	svc.runRelay()
	s.eventually("the relay is at work", func() bool { return svc.relay.Stats().Lanes > 0 })
	require.NoError(t, server.Kill(t.Context()))
	s.writeNumbered(rows, perKey)
	backlog, err := svc.box.Backlog(t.Context(), svc.pool)
	require.NoError(t, err)
	require.EqualValues(t, rows, backlog.Queued, "the lag is visible")
	require.NoError(t, server.Start(t.Context()))
	s.eventually("it drains", func() bool { return svc.relay.Stats().Sent > rows/10 })
	require.NoError(t, server.Kill(t.Context()))
	require.NoError(t, server.Start(t.Context()))
	s.drained()
	require.Zero(t, s.count(`SELECT count(*) FROM oncemill.outbox_queue WHERE parked_at IS NOT NULL`))
	require.Zero(t, svc.relay.Stats().Failed)
	s.requireOrder(rows, perKey)
}

// writeNumbered writes commands "key number" in order, perKey of each key, in
// transactions that each have one of every key.
func (s *stack) writeNumbered(rows, perKey int) {
	s.Helper()
	for n := range perKey {
		s.writeOfEachKey(rows/perKey, n)
	}
}

// writeOfEachKey writes the n-th command of each key in one transaction.
func (s *stack) writeOfEachKey(keys, n int) {
	s.Helper()
	var msgs []*message.Message
	for key := range keys {
		msg := message.NewMessage("", fmt.Appendf(nil, "%d %d", key, n))
		outbox.SetOrderingKey(msg, fmt.Sprintf("key %d", key))
		msgs = append(msgs, msg)
	}
	require.NoError(s, pgx.BeginFunc(s.Context(), s.db.Pool, func(tx pgx.Tx) error {
		return outbox.Write(s.Context(), tx, s.stream.Subject("commands"), msgs...)
	}))
}

// requireOrder checks the first appearances of what writeNumbered wrote.
func (s *stack) requireOrder(rows, perKey int) {
	s.Helper()
	next, broker := map[int]int{}, map[string]string{}
	for _, m := range s.stored("commands") {
		var key, n int
		_, err := fmt.Sscanf(string(m.Data()), "%d %d", &key, &n)
		require.NoError(s, err)
		id := m.Headers().Get(outbox.HeaderBrokerID)
		if first, copied := broker[string(m.Data())]; copied {
			require.Equal(s, first, id, "a copy has its row's broker id")
			continue
		}
		broker[string(m.Data())] = id
		require.Equal(s, next[key], n, "first appearances of key %d", key)
		next[key]++
	}
	require.Len(s, broker, rows)
	for key, n := range next {
		require.Equal(s, perKey, n, "commands of key %d", key)
	}
}
