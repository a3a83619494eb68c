package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
)

// querier is what a Tx and a savepoint share.
type querier interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

// calls are ways to add one effect that is called key.
var calls = map[string]func(ctx context.Context, tx querier, key string) error{
	"Query": func(ctx context.Context, tx querier, key string) error {
		rows, err := tx.Query(ctx, `INSERT INTO public.effects VALUES ($1, '') RETURNING key`, key)
		if err != nil {
			rows.Close() // as with pgx, they can be used after an error
			return errors.Join(err, rows.Err())
		}
		got, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
		if err == nil && got != key {
			err = errors.New("another row")
		}
		return err
	},
	"SendBatch": func(ctx context.Context, tx querier, key string) error {
		b := &pgx.Batch{}
		b.Queue(`INSERT INTO public.effects VALUES ($1, '')`, key)
		var n int
		b.Queue(`SELECT count(*) FROM public.effects WHERE key = $1`, key).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if n != 1 {
			return errors.New("not one effect")
		}
		return nil
	},
	"CopyFrom": func(ctx context.Context, tx querier, key string) error {
		n, err := tx.CopyFrom(ctx, pgx.Identifier{"public", "effects"}, []string{"key", "body"}, pgx.CopyFromRows([][]any{{key, []byte("")}}))
		if err == nil && n != 1 {
			err = errors.New("not one row")
		}
		return err
	},
	"Prepare": func(ctx context.Context, tx querier, key string) error {
		sp, ok := tx.(pgx.Tx)
		if !ok { // of the facade's own methods none prepares
			var err error
			if sp, err = tx.(consumer.Tx).Begin(ctx); err != nil {
				return err
			}
		}
		if _, err := sp.Prepare(ctx, "add", `INSERT INTO public.effects VALUES ($1, '')`); err != nil {
			return err
		}
		_, err := sp.Exec(ctx, "add", key)
		return err
	},
}

func TestEachCallBelongsToTheDelivery(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			var kept consumer.Tx
			var savepoint pgx.Tx
			fail := errors.New("not this time")
			h := b.consumer(newPool(t, b.URL, 2), nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, _ *message.Message) ([]*message.Message, error) {
				kept = tx
				tx.Queue(`INSERT INTO public.effects VALUES ('queued', '')`)
				if err := call(ctx, tx, "own"); err != nil {
					return nil, err
				}
				var queued int
				require.NoError(t, tx.QueryRow(ctx, `SELECT count(*) FROM public.effects WHERE key = 'queued'`).Scan(&queued))
				require.Equal(t, 1, queued, "what was queued goes first")
				var err error
				if savepoint, err = tx.Begin(ctx); err != nil {
					return nil, err
				}
				if err := errors.Join(call(ctx, savepoint, "undone"), savepoint.Rollback(ctx)); err != nil {
					return nil, err
				}
				if savepoint, err = tx.Begin(ctx); err != nil {
					return nil, err
				}
				return nil, errors.Join(call(ctx, savepoint, "nested"), savepoint.Commit(ctx), fail)
			})
			require.True(t, deliver(t, h, event("k", "a")).nacked)
			require.Zero(t, b.effects(), "it ends with the transaction")
			fail = nil
			require.True(t, deliver(t, h, event("k", "a")).acked)
			require.Equal(t, 3, b.effects())
			require.Zero(t, b.count(`SELECT count(*) FROM public.effects WHERE key = 'undone'`))

			require.ErrorIs(t, call(t.Context(), kept, "late"), pgx.ErrTxClosed)
			require.ErrorIs(t, call(t.Context(), savepoint, "late"), pgx.ErrTxClosed)
			require.Equal(t, 3, b.effects())
		})
	}
}

func TestEachCallLooksAtItsStatements(t *testing.T) {
	b := newBench(t)
	batch := &pgx.Batch{}
	batch.Queue(`SELECT 1`)
	batch.Queue(`COMMIT`)
	h := b.consumer(b.Pool, nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		sp, err := tx.Begin(ctx)
		require.NoError(t, err)
		for _, on := range []querier{tx, sp} {
			var refused *consumer.StatementError
			rows, err := on.Query(ctx, `DECLARE c CURSOR WITH HOLD FOR SELECT 1`)
			rows.Close()
			require.ErrorAs(t, err, &refused)
			require.ErrorAs(t, rows.Err(), &refused)
			require.ErrorAs(t, on.SendBatch(ctx, batch).Close(), &refused)
			_, err = sp.Prepare(ctx, "add", `LISTEN c`)
			require.ErrorAs(t, err, &refused)
		}
		require.NoError(t, sp.Commit(ctx), "nothing was sent that could fail")
		return charge(ctx, tx, msg)
	})
	require.True(t, deliver(t, h, event("k", "a")).acked)
	require.Equal(t, 1, b.effects())
}

// What the check lets pass leaves nothing on the connection.
func TestTemporaryTablesEndWithTheDelivery(t *testing.T) {
	b := newBench(t)
	pool := newPool(t, b.URL, 1)
	h := b.consumer(pool, nil).Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		for _, statement := range []string{
			`CREATE TEMP TABLE staged (key text) ON COMMIT DROP`,
			`DECLARE c CURSOR FOR SELECT 1`,
			`SET LOCAL statement_timeout = '1min'`,
		} {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return nil, err
			}
		}
		return charge(ctx, tx, msg)
	})
	for _, id := range []string{"first", "second"} { // on the same connection
		require.True(t, deliver(t, h, event(id, "a")).acked)
	}
	require.Equal(t, 2, b.effects())
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_cursors WHERE name = 'c') + (SELECT count(*) FROM pg_class WHERE relname = 'staged')`).Scan(&left))
	require.Zero(t, left)
}
