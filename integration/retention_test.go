package integration

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// C67: the stream delivers again what the inbox has forgotten.
func TestC67_RedeliveryAfterPurge(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.purged = true
	inbox := dedup.InboxConfig{Retention: time.Hour}
	opts := options{consumer: func(cfg *consumer.Config) { cfg.Inbox = inbox }}
	svc := s.serve(opts)
	m := nats.NewMsg(s.stream.Subject("new"))
	m.Header.Set("event_id", "k1")
	m.Header.Set(outbox.HeaderTime, time.Now().UTC().Add(-50*time.Minute).Format(time.RFC3339Nano))
	_, err := s.stream.JS.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	s.settled("charge")
	s.requireCommands(1)
	require.NoError(t, svc.close())

	// An operator shortens the retention, and the row comes of age.
	s.exec(`UPDATE oncemill.inbox SET at = at - interval '40 minutes'`)
	inbox.Retention = 30 * time.Minute
	in, err := dedup.NewInbox(inbox)
	require.NoError(t, err)
	purger, err := dedup.NewPurger(in, dedup.Pgx(s.db.Pool), dedup.PurgeConfig{Operations: []string{"charge"}})
	require.NoError(t, err)
	purged, err := purger.RunOnce(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, purged.Deleted)

	again := s.open(s.wiring(), opts)
	again.add("charge", "charge-again", "new", again.consumer.Handler("charge", again.effect))
	s.start(again)
	s.settled("charge-again")
	requireOutcomes(t, consumer.Stats{Dead: 1}, again.consumer.Stats())
	require.Equal(t, []string{"beyond horizon"}, s.reasons())
	require.Equal(t, 1, s.effects())
	s.requireCommands(1)
}
