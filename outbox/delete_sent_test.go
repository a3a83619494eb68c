package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

func TestDeleteSent(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	const messages = 1200 // more than a batch
	for i := range messages {
		write(t, db, o, s.Subject("a"), newMessage(fmt.Sprint(i)))
	}
	write(t, db, o, s.Subject("b"), newMessage("parked"))
	exec(t, db, `UPDATE oncemill.outbox_queue SET parked_at = clock_timestamp(), reason = 'test' WHERE id = (SELECT max(id) FROM oncemill.outbox)`)
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	cfg.DeleteSent = true
	runOnce(t, newRelay(t, db, cfg))
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, messages, info.State.Msgs)
	require.Equal(t, 1, kept(t, db), "the message that was not sent stays")
	require.Equal(t, s.Subject("b"), scalar[string](t, db, `SELECT topic FROM oncemill.outbox`))
	require.Equal(t, 1, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_queue`))
}

// A late mark of an earlier round neither takes a message out of the queue that
// was queued again, nor deletes it.
func TestDeleteSentLeavesWhatWasQueuedAgain(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	write(t, db, o, s.Subject("a"), newMessage("1"))
	sink := &republishing{Sink: newSink(t, s.Conn, outbox.JetStreamConfig{}), before: func() {
		_, err := o.Republish(t.Context(), db.Pool, outbox.RepublishConfig{Since: time.Now().Add(-time.Minute), Horizon: time.Hour})
		require.NoError(t, err)
	}}
	cfg := relayConfig(sink)
	cfg.DeleteSent = true
	runOnce(t, newRelay(t, db, cfg))
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, info.State.Msgs, "once for each round")
	require.Zero(t, kept(t, db))
	require.Zero(t, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_queue`))
}

// republishing does something before the first message is sent.
type republishing struct {
	outbox.Sink
	once   sync.Once
	before func()
}

func (s *republishing) Send(ctx context.Context, m *outbox.Message, done func(error)) {
	s.once.Do(s.before)
	s.Sink.Send(ctx, m, done)
}
