package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/integration/testbed"
)

func TestADeferredRollbackOfASavepointLeavesWhatIsQueuedAfterIt(t *testing.T) {
	b := newBench(t)
	ends := map[string]func(context.Context, pgx.Tx) error{
		"committed":   func(ctx context.Context, sp pgx.Tx) error { return sp.Commit(ctx) },
		"rolled back": func(ctx context.Context, sp pgx.Tx) error { return sp.Rollback(ctx) },
	}
	h := b.consumer(b.Pool, nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		sp, err := tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { require.ErrorIs(t, sp.Rollback(ctx), pgx.ErrTxClosed) }()
		tx.Queue(`INSERT INTO public.effects VALUES ('inside', '')`)
		if err := ends[msg.Metadata.Get("event_id")](ctx, sp); err != nil {
			return nil, err
		}
		tx.Queue(`INSERT INTO public.effects VALUES ('after', '')`)
		return nil, nil
	})
	for end := range ends {
		require.True(t, deliver(t, h, event(end, "a")).acked)
	}
	require.Equal(t, 1, b.count(`SELECT count(*) FROM public.effects WHERE key = 'inside'`))
	require.Equal(t, 2, b.count(`SELECT count(*) FROM public.effects WHERE key = 'after'`))
}

// A goroutine that outlives its handler must not reach into the transaction
// that uses the connection next: savepoints have the same names there.
func TestASavepointIsDeadAfterTheHandler(t *testing.T) {
	b := newBench(t)
	pool, err := testbed.NewPool(t.Context(), b.URL, func(c *pgxpool.Config) { c.MaxConns = 1 })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	var left pgx.Tx
	h := b.consumer(pool, nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		sp, err := tx.Begin(ctx)
		if left == nil || err != nil {
			left = sp
			return nil, err
		}
		_, err = charge(ctx, tx, msg)
		tx.Queue(`INSERT INTO public.effects VALUES ('queued', '')`)
		require.ErrorIs(t, left.Rollback(ctx), pgx.ErrTxClosed)
		require.ErrorIs(t, left.Commit(ctx), pgx.ErrTxClosed)
		return nil, errors.Join(err, sp.Commit(ctx))
	})
	require.True(t, deliver(t, h, event("first", "a")).acked)
	require.True(t, deliver(t, h, event("second", "a")).acked)
	require.Equal(t, 2, b.effects())
}
