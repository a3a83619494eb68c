package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/outbox"
)

func requireRefused(t *testing.T, err error, field string) {
	t.Helper()
	var refused *outbox.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, field, refused.Field)
}

func TestC60_SubjectsAreCheckedWhenWritten(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	bad := []string{
		"ord.*", "ord.>", "*", ">", "ord new", "ord..x", "ord.x.", ".ord", "", "ord.\r\nPUB x 1", "ord\t.x", "ord.\x00", "ord.\u00a0x", "ord.\u0085",
		"$JS.API.STREAM.DELETE." + s.Name, "$SYS.x", "_INBOX.x", "_INBOX", "ord.\xff", strings.Repeat("x", 5<<10),
	}
	for _, topic := range bad {
		err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			return o.Write(t.Context(), tx, topic, newMessage("x"))
		})
		requireRefused(t, err, "topic")
		if len(topic) > 6 {
			require.NotContains(t, err.Error(), topic, "the error quotes no value")
		}
	}
	require.Zero(t, queued(t, db))

	for _, name := range []string{"new", "ü"} {
		write(t, db, o, s.Subject(name), newMessage(name))
	}
	runOnce(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))
	var subjects []string
	for _, m := range stored(t, s) {
		subjects = append(subjects, m.Subject)
	}
	require.ElementsMatch(t, []string{s.Subject("new"), s.Subject("ü")}, subjects)
}

func TestC61_HeadersArriveAsTheyAreOrAreRefused(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	refusedHeaders := []struct{ name, value string }{
		{"trace", "a\r\nNats-Msg-Id: evil"},
		{"trace", "a\nb"},
		{"trace", "a\rb"},
		{"bad key", "x"},
		{"a/b", "x"},
		{"a:b", "x"},
		{"ключ", "x"},
		{"", "x"},
		{"blank", " x "},
		{"blank", "x\t"},
		{"nul", "a\x00b"},
		{"Nats-Msg-Id", "x"},
		{"nats-rollup", "all"},
		{"ONCEMILL-ID", "x"},
		{"oncemill-anything", "x"},
		{"_watermill_message_uuid", "x"},
		{"_Watermill_Message_UUID", "x"},
	}
	for _, h := range refusedHeaders {
		msg := newMessage("x")
		msg.Metadata[h.name] = h.value
		_, err := o.Prepare("ord.new", msg, outbox.Stamp{})
		requireRefused(t, err, "header")
		require.Equal(t, h.name, err.(*outbox.RefusedError).Header) //nolint:errorlint // requireRefused found it there.
		require.NotContains(t, err.Error(), "evil")
	}
	status := message.NewMessage("", nil)
	status.Metadata["Status"] = "404"
	_, err := o.Prepare("ord.new", status, outbox.Stamp{})
	requireRefused(t, err, "header")

	msg := message.NewMessage("uuid-1", []byte("x"))
	msg.Metadata["trace"], msg.Metadata["Trace"], msg.Metadata["TRACE"] = "1", "2", "3"
	msg.Metadata["empty"] = ""
	msg.Metadata["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	msg.Metadata["Status"] = "kept, since there is a payload"
	for b := 1; b < 256; b++ {
		if b == '\r' || b == '\n' {
			continue
		}
		msg.Metadata[fmt.Sprintf("in-%d", b)] = "a" + string([]byte{byte(b)}) + "b"
		if b != ' ' && b != '\t' {
			msg.Metadata[fmt.Sprintf("out-%d", b)] = string([]byte{byte(b)}) + "a" + string([]byte{byte(b)})
		}
	}
	write(t, db, o, s.Subject("new"), msg)
	runOnce(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))

	got := stored(t, s)[0].Header
	require.Equal(t, []string{"uuid-1"}, got[outbox.HeaderUUID])
	for _, name := range []string{outbox.HeaderUUID, outbox.HeaderBrokerID, outbox.HeaderID, outbox.HeaderTime} {
		require.Len(t, got[name], 1, name)
		delete(got, name)
	}
	want := map[string][]string{}
	for name, value := range msg.Metadata {
		want[name] = []string{value}
	}
	require.Equal(t, want, map[string][]string(got))
}

func TestC25_SizeIsCheckedWithRealHeadersInTheTransaction(t *testing.T) {
	db := newDB(t)
	const limit = 1 << 20
	n := testbed.NewNATS(t, testbed.NATSConfig{MaxPayload: limit})
	s := n.NewStream(t, nil)
	withMetadata := func(size int) *message.Message {
		msg := message.NewMessage("5f0ee4f0-2c62-4a3b-8a57-2ad2a2a5a1c1", make([]byte, size))
		msg.Metadata["trace"], msg.Metadata["tenant"], msg.Metadata["kind"] = strings.Repeat("t", 55), "acme", "charge"
		return msg
	}
	relay := newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
	for _, o := range []*outbox.Outbox{newOutbox(t, outbox.Config{}), newOutbox(t, outbox.Config{MaxBytes: limit})} {
		for _, c := range []struct {
			size    int
			refused bool
		}{{limit - 4096, false}, {limit - 10, true}, {limit, true}, {limit + 1, true}} {
			err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				return o.Write(t.Context(), tx, s.Subject("x"), withMetadata(c.size))
			})
			if c.refused {
				requireRefused(t, err, "size")
			} else {
				require.NoError(t, err)
			}
		}
		largest := largestFit(t, o, db, s.Subject("x"), withMetadata, limit)
		write(t, db, o, s.Subject("x"), withMetadata(largest))
	}
	runOnce(t, relay)
	require.Zero(t, queued(t, db), "what was written can be sent")
	require.Equal(t, 4, count(t, s))

	huge := newMessage("x")
	huge.Metadata["big"] = strings.Repeat("x", 65<<10)
	_, err := newOutbox(t, outbox.Config{}).Prepare("ord.x", huge, outbox.Stamp{})
	requireRefused(t, err, "size")
}

// largestFit finds the largest payload that is taken, by halving.
func largestFit(t *testing.T, o *outbox.Outbox, db *testbed.DB, topic string, msg func(int) *message.Message, limit int) int {
	t.Helper()
	low, high := 0, limit
	rolledBack := errors.New("rolled back")
	for low+1 < high {
		mid := (low + high) / 2
		err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			if err := o.Write(t.Context(), tx, topic, msg(mid)); err != nil {
				return err
			}
			return rolledBack
		})
		if errors.Is(err, rolledBack) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

func TestC25_TheRelayTellsWritersWhatTheServerTakes(t *testing.T) {
	db := newDB(t)
	n := testbed.NewNATS(t, testbed.NATSConfig{MaxPayload: 4 << 20})
	s := n.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	big := newMessage(strings.Repeat("x", 2<<20))
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return o.Write(t.Context(), tx, s.Subject("x"), big) })
	requireRefused(t, err, "size")

	run(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))
	eventually(t, "limit is stored", func() bool {
		return scalar[int](t, db, `SELECT coalesce(max_payload, 0) FROM oncemill.outbox_settings`) == 4<<20
	})
	write(t, db, o, s.Subject("x"), big)
	drained(t, db)
	require.Equal(t, []string{string(big.Payload)}, payloads(stored(t, s)))
}

func TestWriteBelongsToTheCallersTransaction(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, o.Write(t.Context(), tx, s.Subject("a"), newMessage("rolled back")))
	require.NoError(t, tx.Rollback(t.Context()))

	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		inner, err := tx.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, o.Write(t.Context(), inner, s.Subject("a"), newMessage("rolled back to savepoint")))
		require.NoError(t, inner.Rollback(t.Context()))
		inner, err = tx.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, o.Write(t.Context(), inner, s.Subject("a"), newMessage("savepoint")))
		require.NoError(t, inner.Commit(t.Context()))
		return o.Write(t.Context(), tx, s.Subject("a"), newMessage("committed"))
	})
	require.NoError(t, err)
	runOnce(t, newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))))
	require.ElementsMatch(t, []string{"savepoint", "committed"}, payloads(stored(t, s)))
}

// writes are the ways to write; each must give the same rows in each mode.
var writes = map[string]func(ctx context.Context, pool *pgxpool.Pool, o *outbox.Outbox, topic string, msgs []*message.Message) error{
	"Write": func(ctx context.Context, pool *pgxpool.Pool, o *outbox.Outbox, topic string, msgs []*message.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return o.Write(ctx, tx, topic, msgs...) })
	},
	"QueueWrite": func(ctx context.Context, pool *pgxpool.Pool, o *outbox.Outbox, topic string, msgs []*message.Message) error {
		var rows []outbox.Row
		for _, msg := range msgs {
			row, err := o.Prepare(topic, msg, outbox.Stamp{LogicalID: "logical", ProviderKey: "provider"})
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var b pgx.Batch
			var lanes outbox.Lanes
			o.QueueWrite(&b, nil, &lanes)
			o.QueueWrite(&b, rows, &lanes)
			if b.Len() != 1 {
				return errors.New("want one statement")
			}
			err := outbox.AsRefused(tx.SendBatch(ctx, &b).Close())
			if err == nil && lanes == 0 {
				err = errors.New("want lanes")
			}
			return err
		})
	},
	"WriteSQL": func(ctx context.Context, pool *pgxpool.Pool, o *outbox.Outbox, topic string, msgs []*message.Message) error {
		db := stdlib.OpenDB(*pool.Config().ConnConfig)
		defer db.Close() //nolint:errcheck // A test's handle.
		tx, err := db.BeginTx(ctx, &sql.TxOptions{})
		if err != nil {
			return err
		}
		if err := o.WriteSQL(ctx, tx, topic, msgs...); err != nil {
			_ = tx.Rollback()
			return err
		}
		return tx.Commit()
	},
}

func TestWriteWorksInEveryExecMode(t *testing.T) {
	modes := []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	}
	db := newDB(t)
	o := newOutbox(t, outbox.Config{})
	for _, mode := range modes {
		pool, err := testbed.NewPool(t.Context(), db.URL, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		require.NoError(t, err)
		for name, write := range writes {
			t.Run(fmt.Sprintf("%s/%s", mode, name), func(t *testing.T) {
				s := testbed.NewStream(t, nil)
				exotic := keyed("{\"a\\\":[\"NULL\",\x00\xff'\\", `k"{},NULL\`)
				exotic.Metadata["quoted"] = `"{a,b}\x' NULL`
				empty := message.NewMessage("", nil)
				require.NoError(t, write(t.Context(), pool, o, s.Subject("a"), []*message.Message{exotic, keyed("2", "k"), keyed("3", "k"), empty}))

				// The relay's own statements go through the same mode.
				relay, err := outbox.NewRelay(pool, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
				require.NoError(t, err)
				runOnce(t, relay)
				got := map[string]map[string][]string{}
				for _, m := range stored(t, s) {
					got[string(m.Data)] = m.Header
				}
				require.Len(t, got, 4)
				require.Equal(t, exotic.Metadata["quoted"], got[string(exotic.Payload)]["quoted"][0])
				require.Equal(t, `k"{},NULL\`, got[string(exotic.Payload)][outbox.HeaderOrderingKey][0])
				require.NotContains(t, got[""], outbox.HeaderOrderingKey)
				if name == "QueueWrite" {
					require.Equal(t, "logical", got["2"][outbox.HeaderID][0])
					require.Equal(t, "provider", got["2"][outbox.HeaderProviderKey][0])
				}

				err = write(t.Context(), pool, o, s.Subject("a"), []*message.Message{newMessage("small"), newMessage(strings.Repeat("x", 1<<20))})
				requireRefused(t, err, "size")
				require.Zero(t, queued(t, db))
			})
		}
		pool.Close()
	}
}

func TestOrderingKeys(t *testing.T) {
	db := newDB(t)
	o := newOutbox(t, outbox.Config{OrderingKey: func(topic string, msg *message.Message) string { return topic + "/" + msg.Metadata["account"] }})
	byRule, own, none := newMessage("rule"), keyed("own", "mine"), keyed("none", "")
	byRule.Metadata["account"] = "a1"
	write(t, db, o, "ord.x", byRule, own, none)
	keys, err := db.Pool.Query(t.Context(), `SELECT coalesce(ordering_key, '-') FROM oncemill.outbox ORDER BY id`)
	require.NoError(t, err)
	list, err := pgx.CollectRows(keys, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"ord.x/a1", "mine", "-"}, list)
	require.Equal(t, 1, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_queue WHERE key_hash IS NULL`))

	for _, key := range []string{strings.Repeat("k", 256), "a\r\nb", " a", "a\x00", "\xff"} {
		_, err := o.Prepare("ord.x", keyed("x", key), outbox.Stamp{})
		requireRefused(t, err, "ordering key")
	}
	_, err = o.Prepare("ord.x", keyed("x", ""), outbox.Stamp{LogicalID: strings.Repeat("x", 1025)})
	requireRefused(t, err, "logical id")
	_, err = o.Prepare("ord.x", message.NewMessage("a\nb", nil), outbox.Stamp{})
	requireRefused(t, err, "uuid")
}

func TestWithoutSettingsNothingIsWrittenSilently(t *testing.T) {
	db := newDB(t)
	exec(t, db, `DELETE FROM oncemill.outbox_settings`)
	o := newOutbox(t, outbox.Config{})
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return o.Write(t.Context(), tx, "ord.x", newMessage("x")) })
	require.Error(t, err)
}

func TestSetLanes(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	setLanes := func(n int) error {
		return pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return o.SetLanes(t.Context(), tx, n) })
	}
	require.Error(t, setLanes(0))
	require.Error(t, setLanes(65))
	write(t, db, o, s.Subject("a"), newMessage("1"))
	require.ErrorIs(t, setLanes(8), outbox.ErrNotDrained)
	relay := newRelay(t, db, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
	runOnce(t, relay)
	for _, n := range []int{8, 1, 3} {
		require.NoError(t, setLanes(n))
		for i := range 20 {
			write(t, db, o, s.Subject("a"), keyed(fmt.Sprint(n, i), fmt.Sprint("k", i)))
		}
		require.LessOrEqual(t, scalar[int](t, db, `SELECT max(lane) FROM oncemill.outbox_queue`), n-1)
		runOnce(t, relay)
		require.Zero(t, queued(t, db))
	}
}

func TestSetLanesKeepsWritersOut(t *testing.T) {
	db := newDB(t)
	o := newOutbox(t, outbox.Config{})
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, o.SetLanes(t.Context(), tx, 1))
	written := make(chan error, 1)
	go func() {
		written <- pgx.BeginFunc(context.Background(), db.Pool, func(tx pgx.Tx) error {
			for i := range 10 {
				if err := o.Write(context.Background(), tx, "ord.x", keyed("x", fmt.Sprint("k", i))); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	db.WaitForLockWaiters(t, 1)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-written)
	require.Zero(t, scalar[int](t, db, `SELECT max(lane) FROM oncemill.outbox_queue`), "the writer saw the new number")
}

func TestNewValidates(t *testing.T) {
	_, err := outbox.New(outbox.Config{Schema: strings.Repeat("x", 64)})
	require.ErrorContains(t, err, "Schema")
	_, err = outbox.New(outbox.Config{MaxBytes: -1})
	require.ErrorContains(t, err, "MaxBytes")
	_, err = outbox.NewRelay(nil, outbox.RelayConfig{})
	require.ErrorContains(t, err, "Sink")
	_, err = outbox.NewRelay(nil, outbox.RelayConfig{Sink: struct{ outbox.Sink }{}, Lease: 1})
	require.ErrorContains(t, err, "Lease")
	_, err = outbox.NewRelay(nil, outbox.RelayConfig{Sink: struct{ outbox.Sink }{}, Window: -1})
	require.ErrorContains(t, err, "Window")
}

func TestOtherSchemaAndLeastRights(t *testing.T) {
	db := testbed.NewDB(t)
	const name = `we"ird Ünï`
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{Schema: name}))
	role := db.NewRole(t)
	parsed, err := schema.ParseName(name)
	require.NoError(t, err)
	for _, grant := range schema.Grants(parsed, role.Name) {
		exec(t, db, grant)
	}
	pool, err := testbed.NewPool(t.Context(), role.URL, nil)
	require.NoError(t, err)
	defer pool.Close()

	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{Schema: name})
	require.NoError(t, o.Write(t.Context(), pool, s.Subject("a"), newMessage("x")))
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	cfg.Outbox = o
	relay, err := outbox.NewRelay(pool, cfg)
	require.NoError(t, err)
	run(t, relay)
	eventually(t, "sent", func() bool { return count(t, s) == 1 })
	_, err = o.Backlog(t.Context(), pool)
	require.NoError(t, err)
}
