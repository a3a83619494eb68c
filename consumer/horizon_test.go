package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
)

// uuid7 returns a UUID of version 7 that carries t.
func uuid7(t time.Time) string {
	ms := t.UnixMilli()
	return fmt.Sprintf("%08x-%04x-7000-8000-000000000000", ms>>16, ms&0xffff)
}

func cloudEvent(id, at string) *message.Message {
	msg := message.NewMessage("u", []byte("a"))
	msg.Metadata = message.Metadata{"ce-source": "/orders", "ce-id": id, "event_id": id}
	if at != "" {
		msg.Metadata["ce-time"] = at
	}
	return msg
}

// The id of a CloudEvent or of a composite key hides the times of its parts.
func TestC67_TheTimesWithinAKeyCount(t *testing.T) {
	b := newBench(t)
	fresh, old := time.Now(), time.Now().Add(-2*time.Hour)
	text := func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
	structured := message.NewMessage("u", fmt.Appendf(nil, `{"specversion":"1.0","source":"/orders","id":"s","time":%q}`, text(old)))
	structured.Metadata["event_id"] = "s"
	relayed := cloudEvent("relayed", text(old))
	relayed.Metadata.Set("Oncemill-Time", text(fresh)) // an outbox sends it anew
	pair := keys.Composite(keys.Metadata("ce-source"), keys.CloudEvents())
	for name, tc := range map[string]struct {
		key  keys.Func
		msg  *message.Message
		want consumer.Reason
	}{
		"old":                      {keys.CloudEvents(), cloudEvent("1", text(old)), consumer.ReasonBeyondHorizon},
		"old, structured":          {keys.CloudEvents(), structured, consumer.ReasonBeyondHorizon},
		"old, relayed anew":        {keys.CloudEvents(), relayed, consumer.ReasonBeyondHorizon},
		"old by its id":            {keys.CloudEvents(), cloudEvent(uuid7(old), text(fresh)), consumer.ReasonBeyondHorizon},
		"old by its id alone":      {keys.CloudEvents(), cloudEvent(uuid7(old), ""), consumer.ReasonBeyondHorizon},
		"old part of a composite":  {keys.Composite(keys.Metadata("ce-source"), keys.Metadata("ce-id")), cloudEvent(uuid7(old), ""), consumer.ReasonBeyondHorizon},
		"old event of a composite": {pair, cloudEvent("2", text(old)), consumer.ReasonBeyondHorizon},
		"malformed":                {keys.CloudEvents(), cloudEvent("3", "yesterday"), consumer.ReasonNoKey},
		"malformed in a composite": {pair, cloudEvent("4", "yesterday"), consumer.ReasonNoKey},
		"zero":                     {keys.CloudEvents(), cloudEvent("5", text(time.Time{})), consumer.ReasonNoKey},
		"young":                    {keys.CloudEvents(), cloudEvent("6", text(fresh)), ""},
		"none":                     {pair, cloudEvent("7", ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.Pool.Exec(t.Context(), `TRUNCATE public.effects, oncemill.inbox, oncemill.held`)
			require.NoError(t, err)
			tune := func(cfg *consumer.Config) { cfg.Key, cfg.Inbox.Retention = tc.key, time.Hour }
			require.True(t, deliver(t, b.consumer(b.Pool, tune).Handler("charge", charge), tc.msg.Copy()).acked)
			if tc.want == "" {
				require.Empty(t, b.held())
				require.Equal(t, 1, b.effects())
				return
			}
			require.Len(t, b.held(), 1)
			require.Equal(t, string(tc.want), b.held()[0].Reason)
			require.Zero(t, b.effects())

			declared := b.consumer(b.Pool, func(cfg *consumer.Config) {
				tune(cfg)
				cfg.EventTime = func(*message.Message) (time.Time, error) { return fresh, nil }
			})
			require.True(t, deliver(t, declared.Handler("declared", charge), tc.msg.Copy()).acked)
			require.Equal(t, 1, b.effects(), "Config.EventTime overrides")
		})
	}
}

// What Config.EventTime does not know the key may tell.
func TestAZeroEventTimeLeavesThatOfTheKey(t *testing.T) {
	b := newBench(t)
	tune := func(key keys.Func) func(*consumer.Config) {
		return func(cfg *consumer.Config) {
			cfg.Key, cfg.Inbox.Retention = key, time.Hour
			cfg.EventTime = func(*message.Message) (time.Time, error) { return time.Time{}, nil }
		}
	}
	old := time.Now().Add(-2 * time.Hour)
	header := cloudEvent("header", "")
	header.Metadata.Set("Oncemill-Time", old.UTC().Format(time.RFC3339Nano))
	plain := b.consumer(b.Pool, tune(keys.Metadata("event_id"))).Handler("plain", charge)
	require.True(t, deliver(t, plain, cloudEvent(uuid7(old), "")).acked)
	require.True(t, deliver(t, b.consumer(b.Pool, tune(keys.CloudEvents())).Handler("event", charge), cloudEvent(uuid7(old), "")).acked)
	require.Len(t, b.held(), 2)
	for _, row := range b.held() {
		require.Equal(t, string(consumer.ReasonBeyondHorizon), row.Reason)
	}
	require.Zero(t, b.effects())
	require.True(t, deliver(t, plain, header).acked)
	require.Equal(t, 1, b.effects(), "the header is what EventTime overrides")
}

// A purge may make room for the claim of an event that it is about to be too
// old for.
func TestC67_AHorizonThatMovesMeanwhileIsTheVerdict(t *testing.T) {
	b := newBench(t)
	short, err := dedup.NewInbox(dedup.InboxConfig{Retention: time.Hour})
	require.NoError(t, err)
	for driver, c := range map[string]*consumer.Consumer{"pgx": b.consumer(b.Pool, nil), "sql": b.sqlConsumer(nil)} {
		handler := func(ctx context.Context, insert func(ctx context.Context, query string) error) error {
			purger, err := dedup.NewPurger(short, dedup.Pgx(b.Pool), dedup.PurgeConfig{Operations: []string{driver}})
			if err == nil {
				_, err = purger.RunOnce(ctx)
			}
			return errors.Join(err, insert(ctx, `INSERT INTO public.effects VALUES ('k', 'a')`))
		}
		h := c.Middleware(driver)(func(msg *message.Message) ([]*message.Message, error) {
			return nil, handler(msg.Context(), func(ctx context.Context, query string) (err error) {
				if driver == "sql" {
					_, err = consumer.SQLTx(ctx).ExecContext(ctx, query)
				} else {
					_, err = consumer.TxFrom(ctx).Exec(ctx, query)
				}
				return err
			})
		})
		msg := event("k", "a")
		msg.Metadata.Set("Oncemill-Time", time.Now().Add(-2*time.Hour).UTC().Format(time.RFC3339Nano))
		got := deliver(t, h, msg)
		require.NoError(t, got.err, driver)
		require.True(t, got.acked, driver)
		require.Equal(t, consumer.Stats{Dead: 1}, c.Stats(), driver)
	}
	require.Zero(t, b.effects())
	require.Len(t, b.held(), 2)
	for _, row := range b.held() {
		require.Equal(t, string(consumer.ReasonBeyondHorizon), row.Reason)
		require.Contains(t, row.Error, "beyond horizon: event time")
		require.True(t, row.Inbox)
	}
}
