package consumer_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// Two messages with one logical id, or one provider key, would be one to their
// receivers.
func TestMessagesSentAtTheSameTimeHaveIDsOfTheirOwn(t *testing.T) {
	b := newBench(t)
	secret, err := dedup.NewProviderKeys([]byte("0123456789abcdef"), "test")
	require.NoError(t, err)
	c := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.ProviderKeys = secret })
	const senders, each = 8, 250
	h := c.Handler("charge", func(ctx context.Context, _ consumer.Tx, _ *message.Message) ([]*message.Message, error) {
		errs := make([]error, senders)
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				for range each {
					msg := message.NewMessage("", []byte("same"))
					msg.SetContext(ctx)
					errs[i] = errors.Join(errs[i], c.Publisher().Publish("payments.commands", msg))
				}
			})
		}
		wg.Wait()
		return nil, errors.Join(errs...)
	})
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.Equal(t, senders*each, b.count(`SELECT count(DISTINCT logical_id) FROM oncemill.outbox`))
	require.Equal(t, senders*each, b.count(`SELECT count(DISTINCT header) FROM oncemill.outbox`), "provider keys")
}

// The size is checked by the database, as late as the commit.
func TestAMessageThatIsTooLargeIsTheHandlersFailure(t *testing.T) {
	b := newBench(t)
	pgxConsumer, sqlConsumer := b.consumer(b.Pool, nil), b.sqlConsumer(nil)
	for driver, c := range map[string]*consumer.Consumer{"pgx": pgxConsumer, "sql": sqlConsumer} {
		h := c.Middleware("send")(func(msg *message.Message) ([]*message.Message, error) {
			own := message.NewMessage("large", make([]byte, 2<<20))
			own.SetContext(msg.Context())
			return nil, c.Publisher().Publish("payments.commands", own)
		})
		got := deliver(t, h, event(driver, "a"))
		require.True(t, got.nacked, driver)
		var refused *outbox.RefusedError
		require.ErrorAs(t, got.err, &refused, driver)
		require.Equal(t, consumer.Stats{Failed: 1}, c.Stats(), driver)
	}
}
