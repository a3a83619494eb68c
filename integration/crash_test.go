package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

func isCommit(sql string) bool { return strings.EqualFold(sql, "commit") }
func isClaim(sql string) bool  { return strings.Contains(sql, `INSERT INTO "oncemill".inbox`) }
func isRead(sql string) bool   { return strings.Contains(sql, "pg_visible_in_snapshot") }
func isMark(sql string) bool   { return strings.Contains(sql, `DELETE FROM "oncemill".outbox_queue`) }

// minDuplicateWindow is the shortest that nats-server takes.
const minDuplicateWindow = 100 * time.Millisecond

// TestC35_WorkerKilled kills a service at a named point, with every delivery
// it has in flight at that point, and lets another one take over.
func TestC35_WorkerKilled(t *testing.T) {
	const events = 25
	for name, tc := range map[string]struct {
		crash string // the service kills itself
		// or it is killed while the proxy holds its statements
		hold  hold
		acked int // events that the broker need not deliver again, when it is dead
		runs  int // of the handler, in both services together
		then  consumer.Stats
	}{
		"before the claim": {
			hold: holdBefore(isClaim),
			runs: events, then: consumer.Stats{Done: events},
		},
		"after the claim": {
			crash: crashClaimed, runs: events, then: consumer.Stats{Done: events},
		},
		"after the effect": {
			crash: crashEffect, runs: events + inFlight, then: consumer.Stats{Done: events},
		},
		"before the commit reaches the server": {
			hold: holdBefore(isCommit),
			runs: events + inFlight, then: consumer.Stats{Done: events},
		},
		"after the commit, before its reply": {
			hold: holdAfter(isCommit),
			runs: events, then: consumer.Stats{Done: events - inFlight, Duplicates: inFlight},
		},
		"after the commit, before the ack": {
			crash: crashCommitted, runs: events, then: consumer.Stats{Done: events - inFlight, Duplicates: inFlight},
		},
		"after the ack": {
			crash: crashAcked, acked: 2 * inFlight, runs: events, then: consumer.Stats{Done: events - 2*inFlight},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			s.publishEvents(events)
			if tc.crash != "" {
				awaitDeath(t, s.child("service", childSpec{wiring: s.wiring(), Crash: tc.crash}))
			} else {
				s.killAtStatement("service", tc.hold, inFlight, func() bool { return true })
			}
			s.eventually("the broker has the acks", func() bool { return s.acked("charge") == tc.acked })
			second := s.child("service", childSpec{wiring: s.wiring()})
			s.settled("charge")
			s.requireCommands(events)
			require.Equal(t, events, s.effects())
			require.Equal(t, tc.runs, s.runs())
			requireOutcomes(t, tc.then, finish(t, second).Consumer)
			require.Empty(t, s.held())
		})
	}
}

// acked is how many of the events that were delivered need not come again.
// Commands must be behind them in the stream.
func (s *stack) acked(durable string) int {
	s.Helper()
	info := s.info(durable)
	return int(info.Delivered.Stream) - info.NumAckPending
}

// hold arms a proxy to hold the next n statements of a kind.
type hold func(p *testbed.PostgresProxy, n int) *testbed.Fault

func holdBefore(match func(string) bool) hold {
	return func(p *testbed.PostgresProxy, n int) *testbed.Fault { return p.HoldBefore(n, match) }
}

func holdAfter(match func(string) bool) hold {
	return func(p *testbed.PostgresProxy, n int) *testbed.Fault { return p.HoldAfter(n, match) }
}

// killAtStatement kills a child when the proxy in front of its database holds
// n of its statements, one on each of its connections, and cond is true.
func (s *stack) killAtStatement(role string, arm hold, n int, cond func() bool) {
	s.Helper()
	proxy := testbed.NewPostgresProxy(s, s.db.URL)
	held := arm(proxy, n)
	arm(proxy, 1000) // those with which it tries again when its patience ends
	w := wiring{Database: proxy.URL(), NATS: s.stream.Server.URL(), Prefix: s.stream.Prefix, Ledger: s.ledger}
	child := s.child(role, childSpec{wiring: w, Group: s.group})
	held.Await(s)
	s.eventually("the moment has come", cond)
	require.NoError(s, child.Kill())
	proxy.Cut() // what was held is never executed, or never answered
}

// writeCommands writes n commands in one transaction.
func (s *stack) writeCommands(n int) {
	s.Helper()
	var msgs []*message.Message
	for range n {
		msgs = append(msgs, message.NewMessage("", []byte("command")))
	}
	require.NoError(s, pgx.BeginFunc(s.Context(), s.db.Pool, func(tx pgx.Tx) error {
		return outbox.Write(s.Context(), tx, s.stream.Subject("commands"), msgs...)
	}))
}

// TestC53_RelayKilled kills a relay at a named point and lets another one take
// over; then all commands are consumed.
func TestC53_RelayKilled(t *testing.T) {
	const commands = 25
	for name, tc := range map[string]struct {
		hold   hold
		stored int  // commands in the stream when the relay is killed
		marked bool // commands are off the queue then
		late   bool // the second relay starts after the duplicate window
		copies int  // in the stream at the end
	}{
		"before it publishes": {
			hold:   holdAfter(isRead),
			copies: commands,
		},
		"after the PubAck, before the mark": {
			hold:   holdBefore(isMark),
			stored: commands, copies: commands,
		},
		"after the PubAck, before the mark, back after the duplicate window": {
			hold:   holdBefore(isMark),
			stored: commands, late: true, copies: 2 * commands,
		},
		"after the mark": {
			hold:   holdAfter(isMark),
			stored: commands, marked: true, copies: commands,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStackOn(t, testbed.NewDB(t), testbed.NewStream(t, func(cfg *natsjs.StreamConfig) {
				if tc.late {
					cfg.Duplicates = minDuplicateWindow
				}
			}))
			s.writeCommands(commands)
			lanes := s.count(`SELECT lanes FROM oncemill.outbox_settings`)
			s.killAtStatement("relay", tc.hold, lanes, func() bool { return len(s.stored("commands")) == tc.stored })
			require.Equal(t, tc.marked, s.count(`SELECT count(*) FROM oncemill.outbox_queue`) < commands, "commands are off the queue")
			require.Zero(t, s.count(`SELECT coalesce(sum(attempts), 0) FROM oncemill.outbox_queue`), "a crash charges nobody")
			if tc.late {
				s.windowPassed()
			}
			svc := s.open(s.wiring(), options{consumer: func(cfg *consumer.Config) { cfg.Key = keys.LogicalID() }})
			svc.add("fulfil", "fulfil", "commands", svc.consumer.Handler("fulfil", svc.quiet))
			s.start(svc)
			s.drained()
			s.settled("fulfil")
			copies, distinct := s.commands()
			require.Equal(t, tc.copies, copies)
			require.Equal(t, commands, distinct)
			require.Equal(t, commands, s.effects())
			require.EqualValues(t, tc.copies-commands, svc.consumer.Stats().Duplicates)
		})
	}
}
