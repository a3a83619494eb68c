package consumer_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/header"
)

// heldRow is what a dead letter says.
type heldRow struct {
	Reason, Error, Operation, Topic string
	Scope, Key                      *string
	UUID, Metadata, Payload         []byte
	Seen                            int64
	Inbox                           bool
}

func (b bench) held() []heldRow {
	b.t.Helper()
	rows, err := b.Pool.Query(b.t.Context(), `SELECT reason, error, operation, topic, scope, key, message_uuid, metadata, payload, seen, inbox_id IS NOT NULL FROM oncemill.held ORDER BY first_at`)
	require.NoError(b.t, err)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[heldRow])
	require.NoError(b.t, err)
	return got
}

func never(*testing.T) consumer.HandlerFunc {
	return func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
		return nil, errors.New("the handler must not run")
	}
}

func TestC02_MessagesWithoutKeyAreHeldEachByItself(t *testing.T) {
	b := newBench(t)
	h := b.consumer(b.Pool, nil).Handler("charge", never(t))
	blank := event("", "3")
	for _, msg := range []*message.Message{message.NewMessage("a", []byte("1")), message.NewMessage("b", []byte("2")), blank, event(" \t", "4")} {
		require.True(t, deliver(t, h, msg).acked, "the dead letter is durable")
	}
	again := message.NewMessage("a", []byte("1"))
	require.True(t, deliver(t, h, again).acked)

	got := b.held()
	require.Len(t, got, 4)
	require.EqualValues(t, 2, got[0].Seen, "a redelivery is counted, not kept twice")
	for i, row := range got {
		require.Equal(t, string(consumer.ReasonNoKey), row.Reason)
		require.Equal(t, fmt.Sprint(i+1), string(row.Payload))
		require.Nil(t, row.Key)
		require.False(t, row.Inbox)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM oncemill.inbox`), "no shared record")
}

func TestMessagesWithoutKeyAreHeldUnderTheirBrokerPosition(t *testing.T) {
	b := newBench(t)
	h := b.consumer(b.Pool, nil).Handler("charge", never(t))
	for _, sequence := range []uint64{7, 8, 7} {
		msg := message.NewMessage("same", []byte("same"))
		msg.SetContext(consumer.ContextWithDelivery(msg.Context(), &consumer.Delivery{Stream: "ORD", Sequence: sequence, Count: 1, Published: time.Now()}))
		require.True(t, deliver(t, h, msg).acked)
	}
	require.Len(t, b.held(), 2)

	other := message.NewMessage("same", []byte("other"))
	other.SetContext(consumer.ContextWithDelivery(other.Context(), &consumer.Delivery{Stream: "ORD", Sequence: 7, Count: 1, Published: time.Now()}))
	require.True(t, deliver(t, h, other).acked)
	got := b.held()
	require.Len(t, got, 3, "the stream was made again, and counts from 1 again")
	require.Equal(t, "other", string(got[2].Payload))
}

// A role's synchronous_commit may be off: the broker's copy must not go before
// a crash cannot lose ours.
func TestDeadLettersAreCommittedDurably(t *testing.T) {
	b := newBench(t)
	for _, query := range []string{
		`CREATE TABLE public.commits (synchronous text)`,
		`CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN INSERT INTO public.commits VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER note AFTER INSERT ON oncemill.held DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note()`,
	} {
		_, err := b.Pool.Exec(t.Context(), query)
		require.NoError(t, err)
	}
	pool, err := testbed.NewPool(t.Context(), b.URL, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c := b.consumer(pool, nil)
	h := c.Handler("charge", charge)
	refused := c.Handler("refuse", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
		return nil, dedup.Permanent(errors.New("no"))
	})
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.True(t, deliver(t, h, event("k", "conflict")).acked)
	require.True(t, deliver(t, h, message.NewMessage("no key", nil)).acked)
	require.True(t, deliver(t, refused, event("k", "a")).acked)
	require.Equal(t, 3, b.count(`SELECT count(*) FROM public.commits`))
	require.Equal(t, 3, b.count(`SELECT count(*) FROM public.commits WHERE synchronous = 'on'`))
}

func TestUndecodableMessagesAreHeldWithTheirRawHeadersAndTerminated(t *testing.T) {
	b := newBench(t)
	h := b.consumer(b.Pool, nil).Handler("charge", never(t))
	raw := map[string][]string{"X": {"1", "2"}, "Nats-Msg-Id": {"evt-1"}}
	msg := message.NewMessage("ORD:7", []byte("\x00\xff"))
	msg.SetContext(consumer.ContextWithDelivery(msg.Context(), &consumer.Delivery{Stream: "ORD", Sequence: 7, Header: raw, DecodeErr: errors.New("header given twice")}))
	got := deliver(t, h, msg)
	require.True(t, got.acked)
	require.True(t, got.terminated)

	var reason string
	var encoded, payload []byte
	require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT reason, header, payload FROM oncemill.held`).Scan(&reason, &encoded, &payload))
	require.Equal(t, string(consumer.ReasonUndecodable), reason)
	require.Equal(t, []byte("\x00\xff"), payload)
	decoded, err := header.Decode(encoded)
	require.NoError(t, err)
	require.Equal(t, raw, decoded)
}

func TestAPermanentErrorIsHeldWithTheExactBytes(t *testing.T) {
	b := newBench(t)
	payload := make([]byte, 64<<10)
	_, _ = rand.Read(payload)
	ran := 0
	h := b.consumer(b.Pool, nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		ran++
		clear(msg.Payload) // the handler's own copy
		msg.Metadata.Set("event_id", "changed")
		if _, err := charge(ctx, tx, msg); err != nil {
			return nil, err
		}
		return nil, dedup.Permanent(errors.New("the account is closed"))
	})
	msg := event("k", string(payload))
	msg.Metadata["nul\x00"] = "\xff\r\n"
	for range 2 {
		redelivered := msg.Copy()
		require.True(t, deliver(t, h, redelivered).acked)
	}
	require.Equal(t, 1, ran, "held: the database owns it")
	require.Zero(t, b.effects())
	got := b.held()
	require.Len(t, got, 1)
	require.Equal(t, string(consumer.ReasonPermanent), got[0].Reason)
	require.Equal(t, "the account is closed", got[0].Error)
	require.Equal(t, payload, got[0].Payload)
	require.Equal(t, "acme", *got[0].Scope)
	require.Equal(t, "k", *got[0].Key)
	require.Equal(t, "uuid-k", string(got[0].UUID))
	require.True(t, got[0].Inbox)
	metadata, err := header.DecodeMap(got[0].Metadata)
	require.NoError(t, err)
	require.Equal(t, map[string]string(msg.Metadata), metadata)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM oncemill.inbox WHERE state = 3`))
}

func TestAConflictIsHeldOncePerPayload(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	h := c.Handler("charge", charge)
	for _, payload := range []string{"a", "b", "c", "b", "a"} {
		require.True(t, deliver(t, h, event("k", payload)).acked)
	}
	got := b.held()
	require.Len(t, got, 2)
	for i, row := range got {
		require.Equal(t, string(consumer.ReasonConflict), row.Reason)
		require.False(t, row.Inbox, "the inbox row belongs to the first payload")
		require.Equal(t, []string{"b", "c"}[i], string(row.Payload))
	}
	require.EqualValues(t, 2, got[0].Seen)
	require.Equal(t, consumer.Stats{Done: 1, Duplicates: 1, Dead: 3}, c.Stats())
	require.Equal(t, 1, b.effects())
}

func TestC27_AConflictIsFoundAlsoWhileTheFirstIsAtWork(t *testing.T) {
	b := newBench(t)
	amount, err := dedup.JSONFingerprint(dedup.IncludePaths("/amount"))
	require.NoError(t, err)
	started, goOn := make(chan struct{}, 1), make(chan struct{})
	h := b.consumer(b.Pool, func(cfg *consumer.Config) {
		cfg.Inbox.LockWait = time.Minute
		cfg.Fingerprint = amount
	}).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		started <- struct{}{}
		<-goOn
		return charge(ctx, tx, msg)
	})
	first, second := make(chan settled, 1), make(chan settled, 1)
	go func() { first <- deliver(t, h, event("r1", `{"amount":10,"note":"a"}`)) }()
	<-started
	go func() { second <- deliver(t, h, event("r1", `{"amount":11,"note":"a"}`)) }()
	b.WaitForLockWaiters(t, 1)
	close(goOn)
	require.True(t, (<-first).acked)
	require.True(t, (<-second).acked)
	require.True(t, deliver(t, h, event("r1", `{"amount":10,"note":"b"}`)).acked)
	got := b.held()
	require.Len(t, got, 1)
	require.Equal(t, `{"amount":11,"note":"a"}`, string(got[0].Payload))
	require.Equal(t, 1, b.effects())
}

func TestBeyondTheHorizonIsHeldNotRun(t *testing.T) {
	b := newBench(t)
	h := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.Inbox.Retention = time.Hour }).Handler("charge", charge)
	old := event("k", "a")
	old.Metadata.Set("Oncemill-Time", time.Now().Add(-2*time.Hour).Format(time.RFC3339Nano))
	require.True(t, deliver(t, h, old).acked)
	anew := event("0190b5b0-0000-7000-8000-000000000000", "a") // 2024, sent again by an outbox
	anew.Metadata.Set("Oncemill-Time", time.Now().Format(time.RFC3339Nano))
	require.True(t, deliver(t, h, anew).acked)
	require.Zero(t, b.effects())
	malformed := event("m", "a")
	malformed.Metadata.Set("Oncemill-Time", "yesterday")
	require.True(t, deliver(t, h, malformed).acked)
	zero := event("z", "a")
	zero.Metadata.Set("Oncemill-Time", time.Time{}.Format(time.RFC3339Nano))
	require.True(t, deliver(t, h, zero).acked)
	got := b.held()
	require.Len(t, got, 4)
	for i, want := range []consumer.Reason{consumer.ReasonBeyondHorizon, consumer.ReasonBeyondHorizon, consumer.ReasonNoKey, consumer.ReasonNoKey} {
		require.Equal(t, string(want), got[i].Reason)
	}
	require.True(t, got[0].Inbox)
	require.Zero(t, b.effects())
}

// An event time that cannot be read is not read the next time either.
func TestAnUnreadableEventTimeIsHeld(t *testing.T) {
	b := newBench(t)
	h := b.consumer(b.Pool, func(cfg *consumer.Config) {
		cfg.EventTime = func(*message.Message) (time.Time, error) { return time.Time{}, errors.New("no such field") }
	}).Handler("charge", charge)
	require.True(t, deliver(t, h, event("k", "a")).acked)
	got := b.held()
	require.Len(t, got, 1)
	require.Equal(t, string(consumer.ReasonNoKey), got[0].Reason)
	require.Zero(t, b.effects())
}

func TestAMessageAckedEarlyIsHeldNotLost(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	outside := event("outside", "a")
	h := c.Handler("outside", charge)
	require.True(t, deliver(t, func(msg *message.Message) ([]*message.Message, error) {
		msg.Ack() // as middleware.InstantAck does
		return h(msg)
	}, outside).acked)

	var original *message.Message
	inside := c.Middleware("inside")(func(msg *message.Message) ([]*message.Message, error) {
		original.Ack()
		return charge(msg.Context(), consumer.TxFrom(msg.Context()), msg)
	})
	original = event("inside", "a")
	require.True(t, deliver(t, inside, original).acked)

	own := c.Handler("own", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		msg.Ack()
		return charge(ctx, tx, msg)
	})
	got := deliver(t, own, event("own", "a"))
	require.True(t, got.nacked, "the handler's copy reaches no broker")
	require.ErrorContains(t, got.err, "acked or nacked the message")

	require.Zero(t, b.effects())
	require.Len(t, b.held(), 2)
	for _, row := range b.held() {
		require.Equal(t, string(consumer.ReasonAckedEarly), row.Reason)
	}
}

func TestErrorTextsAreBoundedAndWithoutValues(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	const canary = "canary-4711"
	sqlError := c.Handler("sql", func(ctx context.Context, tx consumer.Tx, _ *message.Message) ([]*message.Message, error) {
		_, err := tx.Exec(ctx, `SELECT $1::text::integer`, canary)
		return nil, dedup.Permanent(err)
	})
	long := c.Handler("long", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
		return nil, dedup.Permanent(errors.New(strings.Repeat("long\x00\n\xff", 1000)))
	})
	require.True(t, deliver(t, sqlError, event("a", canary)).acked)
	require.True(t, deliver(t, long, event("b", canary)).acked)
	for _, row := range b.held() {
		require.NotContains(t, row.Error, canary)
		require.Less(t, len(row.Error), 600)
		require.NotContains(t, row.Error, "\n")
	}
	require.Contains(t, b.held()[0].Error, "22P02")
}
