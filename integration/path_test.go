package integration

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// in lets a service use another schema than the default one.
func in(schema string) options {
	return options{
		outbox:   func(cfg *outbox.Config) { cfg.Schema = schema },
		consumer: func(cfg *consumer.Config) { cfg.Inbox.Schema = schema },
	}
}

// wholePath runs everything that a service does at run time, on the service's
// own connections: consume, recognise a duplicate, hold, relay, republish,
// purge. extra is run by the handler.
func (s *stack) wholePath(svc *service, extra consumer.HandlerFunc) {
	s.Helper()
	svc.handle("charge", "new", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "bad" {
			return refuse(ctx, tx, msg)
		}
		if _, err := extra(ctx, tx, msg); err != nil {
			return nil, err
		}
		return svc.effect(ctx, tx, msg)
	})
	s.start(svc)
	s.publish("new", "good", "event_id", "good")
	s.publish("new", "good", "event_id", "good")
	s.publish("new", "bad", "event_id", "bad")
	s.settled("charge")
	requireOutcomes(s, consumer.Stats{Done: 1, Duplicates: 1, Dead: 1}, svc.consumer.Stats())
	require.Equal(s, 1, s.effects())
	require.Equal(s, []string{"permanent"}, s.reasons())
	s.requireCommands(1)

	ctx := s.Context()
	again, err := svc.box.Republish(ctx, svc.pool, outbox.RepublishConfig{Since: time.Now().Add(-time.Hour), Horizon: 2 * time.Hour})
	require.NoError(s, err)
	require.EqualValues(s, 1, again)
	s.drained()
	copies, distinct := s.commands()
	require.Equal(s, []int{2, 1}, []int{copies, distinct})

	sent, err := svc.box.NewPurger(svc.pool, outbox.PurgeConfig{Keep: time.Nanosecond})
	require.NoError(s, err)
	for pass := range int64(2) { // the first one finds it sent
		gone, err := sent.RunOnce(ctx)
		require.NoError(s, err)
		require.Equal(s, pass, gone)
	}
	inbox, err := dedup.NewInbox(dedup.InboxConfig{Schema: s.schema, Retention: time.Microsecond})
	require.NoError(s, err)
	done, err := dedup.NewPurger(inbox, dedup.Pgx(svc.pool), dedup.PurgeConfig{Operations: []string{"charge"}})
	require.NoError(s, err)
	purged, err := done.RunOnce(ctx)
	require.NoError(s, err)
	require.Equal(s, dedup.PurgeStats{Seen: 2, Deleted: 1}, purged, "the held row stays")
	s.purged = true
}

// nothing is a handler that does nothing.
func nothing(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
	return nil, nil
}
