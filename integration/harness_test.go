package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/header"
	"github.com/oncemill/oncemill/outbox"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	// bound is how long a test waits for something that must happen.
	bound = 60 * time.Second
	// tick is how often it looks.
	tick = 20 * time.Millisecond
)

// stack is what one test works on: a migrated database with a table of
// effects that no constraint protects, and a stream that takes both events
// (subject "new") and commands (subject "commands").
type stack struct {
	testing.TB
	db     *testbed.DB
	stream *testbed.Stream
	// ledger is a file with a line per run of a handler, in any process.
	ledger string
	// schema is the one of the framework's tables, "" for the default one.
	schema string
	// purged says that inbox rows of effects may be gone.
	purged bool
	// group has the services that it kills group their deliveries.
	group bool
}

func newStack(t testing.TB) *stack {
	t.Helper()
	return newStackOn(t, testbed.NewDB(t), testbed.NewStream(t, nil))
}

func newStackOn(t testing.TB, db *testbed.DB, stream *testbed.Stream) *stack {
	t.Helper()
	return newStackIn(t, "", db, stream)
}

func newStackIn(t testing.TB, schema string, db *testbed.DB, stream *testbed.Stream) *stack {
	t.Helper()
	s := &stack{TB: t, db: db, stream: stream, schema: schema, ledger: filepath.Join(t.TempDir(), "runs")}
	require.NoError(t, oncemill.Migrate(t.Context(), db.Pool, oncemill.MigrateConfig{Schema: schema}))
	s.exec(`CREATE TABLE public.effects (operation text NOT NULL, key text NOT NULL, body bytea NOT NULL)`)
	t.Cleanup(func() { s.judge() })
	return s
}

// wiring is where this stack's servers are.
func (s *stack) wiring() wiring {
	return wiring{Database: s.db.URL, NATS: s.stream.Server.URL(), Prefix: s.stream.Prefix, Ledger: s.ledger}
}

// judge checks what must hold after every test, whatever happened in it. What
// the bed checks in addition: no session is idle in a transaction, and every
// connection was given back.
func (s *stack) judge() {
	if s.Failed() {
		return
	}
	require.Empty(s, s.texts(`SELECT operation || ' ' || key FROM public.effects GROUP BY operation, key HAVING count(*) > 1`), "effects that happened twice")
	require.Empty(s, s.texts(`SELECT logical_id FROM oncemill.outbox GROUP BY logical_id HAVING count(*) > 1`), "commands that were written twice")
	s.judgeRecords()
	s.judgeCopies()
}

// judgeRecords: no effect without a done row.
func (s *stack) judgeRecords() {
	if s.purged {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	rows, err := s.db.Pool.Query(ctx, `SELECT operation, key FROM public.effects`)
	require.NoError(s, err)
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var operation, id string
		require.NoError(s, rows.Scan(&operation, &id))
		key, err := dedup.NewKey(scope, operation, id)
		require.NoError(s, err)
		ids = append(ids, fmt.Sprintf("%x", key.InboxID()))
	}
	require.NoError(s, rows.Err())
	require.Equal(s, len(ids), s.count(`SELECT count(*) FROM oncemill.inbox WHERE state = 1 AND replace(id::text, '-', '') = ANY($1)`, ids), "effects with a done row")
}

// judgeCopies: copies of a command, in whatever number, are one message.
func (s *stack) judgeCopies() {
	bodies := map[string]string{}
	for _, m := range s.stored("commands") {
		id := m.Headers().Get(outbox.HeaderID)
		if first, copied := bodies[id]; copied && id != "" {
			require.Equal(s, first, string(m.Data()), "two commands share a logical id")
		}
		bodies[id] = string(m.Data())
	}
}

// publish stores a message in the stream and returns its sequence. headers
// are names and values in turn; without Nats-Msg-Id the server keeps every
// copy.
func (s *stack) publish(name, body string, headers ...string) uint64 {
	s.Helper()
	ack := s.tryPublish(name, body, headers...)
	require.False(s, ack.Duplicate, "the server took the message for one it has")
	return ack.Sequence
}

func (s *stack) tryPublish(name, body string, headers ...string) *jetstream.PubAck {
	s.Helper()
	m := nats.NewMsg(s.stream.Subject(name))
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header[headers[i]] = append(m.Header[headers[i]], headers[i+1])
	}
	ack, err := s.stream.JS.PublishMsg(s.Context(), m)
	require.NoError(s, err)
	return ack
}

// publishEvents stores n events with the ids k0, k1 … and their id as body.
func (s *stack) publishEvents(n int) {
	s.Helper()
	for i := range n {
		id := fmt.Sprintf("k%d", i)
		s.publish("new", id, "event_id", id)
	}
}

// windowPassed returns when the stream no longer knows the broker ids of what
// was stored before.
func (s *stack) windowPassed() {
	s.Helper()
	s.tryPublish("probe", "", "Nats-Msg-Id", "probe")
	s.eventually("the duplicate window is over", func() bool {
		return !s.tryPublish("probe", "", "Nats-Msg-Id", "probe").Duplicate
	})
}

// stored returns what the stream holds of a subject, in order.
func (s *stack) stored(name string) []jetstream.Msg {
	s.Helper()
	s.connected()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	subject := s.stream.Subject(name)
	info, err := s.stream.Stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	require.NoError(s, err)
	n := info.State.Subjects[subject]
	if n == 0 {
		return nil
	}
	cons, err := s.stream.Stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	require.NoError(s, err)
	messages, err := cons.Messages()
	require.NoError(s, err)
	defer messages.Stop()
	var msgs []jetstream.Msg
	for range n {
		m, err := messages.Next(jetstream.NextContext(ctx))
		require.NoError(s, err)
		msgs = append(msgs, m)
	}
	return msgs
}

// commands returns the number of commands in the stream, and of different ones.
func (s *stack) commands() (copies, distinct int) {
	s.Helper()
	ids := map[string]bool{}
	msgs := s.stored("commands")
	for _, m := range msgs {
		ids[m.Headers().Get(outbox.HeaderID)] = true
	}
	return len(msgs), len(ids)
}

// requireCommands waits for the relay and checks what it stored.
func (s *stack) requireCommands(n int) {
	s.Helper()
	s.drained()
	copies, distinct := s.commands()
	require.Equal(s, n, distinct, "different commands in the stream")
	require.Equal(s, n, copies, "commands in the stream")
}

// connected waits for the test's own connection, which has no buffer for what
// is asked while a server that was restarted is not yet found again.
func (s *stack) connected() {
	s.Helper()
	s.eventually("NATS is connected", s.stream.Conn.IsConnected)
}

// info is what the server knows of a durable.
func (s *stack) info(durable string) *jetstream.ConsumerInfo {
	s.Helper()
	s.connected()
	cons, err := s.stream.JS.Consumer(s.Context(), s.stream.Name, durable)
	require.NoError(s, err)
	return cons.CachedInfo()
}

// settled returns when everything that is stored was delivered, and nothing
// is left to settle. The numbers of a durable alone don't tell: they follow
// what is stored after a moment.
func (s *stack) settled(durables ...string) {
	s.Helper()
	for _, durable := range durables {
		last, err := s.stream.Stream.GetLastMsgForSubject(s.Context(), s.info(durable).Config.FilterSubject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		require.NoError(s, err)
		s.eventually("everything is settled: "+durable, func() bool {
			info := s.info(durable)
			return info.Delivered.Stream >= last.Sequence && info.NumPending == 0 && info.NumAckPending == 0
		})
	}
}

// drained returns when the relays have nothing left to send.
func (s *stack) drained() {
	s.Helper()
	s.eventually("the outbox is drained", func() bool { return s.count(`SELECT count(*) FROM oncemill.outbox_queue`) == 0 })
}

func (s *stack) eventually(what string, cond func() bool) {
	s.Helper()
	require.Eventually(s, cond, bound, tick, what)
}

func (s *stack) exec(query string, args ...any) {
	s.Helper()
	_, err := s.db.Pool.Exec(s.Context(), s.sql(query), args...)
	require.NoError(s, err)
}

// sql puts the schema into a query that is written for the default one.
func (s *stack) sql(query string) string {
	return strings.ReplaceAll(query, "oncemill.", pgx.Identifier{cmp.Or(s.schema, "oncemill")}.Sanitize()+".")
}

func (s *stack) count(query string, args ...any) int {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	var n int
	require.NoError(s, s.db.Pool.QueryRow(ctx, s.sql(query), args...).Scan(&n))
	return n
}

func (s *stack) texts(query string, args ...any) []string {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	var list []string
	require.NoError(s, s.db.Pool.QueryRow(ctx, `SELECT coalesce(array_agg(t.t), '{}') FROM (`+s.sql(query)+`) AS t(t)`, args...).Scan(&list))
	return list
}

func (s *stack) effects() int {
	s.Helper()
	return s.count(`SELECT count(*) FROM public.effects`)
}

// runs is how often handlers ran, in all processes, committed or not.
func (s *stack) runs() int {
	s.Helper()
	raw, err := os.ReadFile(s.ledger)
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(s, err)
	return strings.Count(string(raw), "\n")
}

// held is a held message as it is stored.
type held struct {
	Operation, Reason string
	Payload           []byte
	Metadata          map[string]string
	Header            map[string][]string
	Seen              int
}

// held returns the held messages, oldest first.
func (s *stack) held() []held {
	s.Helper()
	rows, err := s.db.Pool.Query(s.Context(), s.sql(`SELECT operation, reason, payload, metadata, coalesce(header, ''), seen FROM oncemill.held ORDER BY first_at, sequence`))
	require.NoError(s, err)
	defer rows.Close()
	var list []held
	for rows.Next() {
		var h held
		var metadata, raw []byte
		require.NoError(s, rows.Scan(&h.Operation, &h.Reason, &h.Payload, &metadata, &raw, &h.Seen))
		h.Metadata, err = header.DecodeMap(metadata)
		require.NoError(s, err)
		if len(raw) > 0 {
			h.Header, err = header.Decode(raw)
			require.NoError(s, err)
		}
		list = append(list, h)
	}
	require.NoError(s, rows.Err())
	return list
}

// reasons are the reasons of the held messages, oldest first.
func (s *stack) reasons() []string {
	s.Helper()
	reasons := []string{}
	for _, h := range s.held() {
		reasons = append(reasons, h.Reason)
	}
	return reasons
}

// requireOutcomes compares what a Consumer counted. Two counts depend on how
// fast the machine is, and harm nobody: a delivery that found a rival, and one
// more than expected that came too late to be the first.
func requireOutcomes(t testing.TB, want, got consumer.Stats) {
	t.Helper()
	require.GreaterOrEqual(t, got.Duplicates, want.Duplicates)
	want.Duplicates, got.Duplicates, got.Busy = 0, 0, 0
	require.Equal(t, want, got)
}
