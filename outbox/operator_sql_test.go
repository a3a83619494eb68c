package outbox_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

func openSQL(t *testing.T, db *testbed.DB) *sql.DB {
	t.Helper()
	std := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { _ = std.Close() })
	return std
}

// What operators do works over database/sql as over pgx.
func TestOperatorsOverDatabaseSQL(t *testing.T) {
	db := newDB(t)
	std := openSQL(t, db)
	o := newOutbox(t, outbox.Config{})
	exec(t, db, `UPDATE oncemill.outbox_settings SET lanes = 1`)
	write(t, db, o, "a", keyed("1", "k"), newMessage("2"), newMessage("3"), newMessage("4"))
	exec(t, db, `UPDATE oncemill.outbox_queue SET parked_at = now(), reason = 'refused', attempts = 7 WHERE id = 1`)
	exec(t, db, `UPDATE oncemill.outbox_queue SET due_at = now() + interval '1 hour', reason = 'full', attempts = 3 WHERE id = 2`)

	ctx := t.Context()
	backlog, err := o.BacklogSQL(ctx, std)
	require.NoError(t, err)
	require.EqualValues(t, 4, backlog.Queued)
	require.EqualValues(t, 1, backlog.Parked)
	require.Positive(t, backlog.Lag)

	for _, limit := range []int{1, 10} {
		want, err := o.Failing(ctx, db.Pool, limit)
		require.NoError(t, err)
		require.Len(t, want, min(limit, 2))
		got, err := o.FailingSQL(ctx, std, limit)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	parked, err := o.ParkedSQL(ctx, std, 10)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, []any{int64(1), "a", "k", "refused", 7}, []any{parked[0].ID, parked[0].Topic, parked[0].OrderingKey, parked[0].Reason, parked[0].Attempts})
	require.NotNil(t, parked[0].ParkedAt)
	require.Nil(t, parked[0].DueAt)

	// In a transaction of the caller, which may roll back.
	tx, err := std.BeginTx(ctx, nil)
	require.NoError(t, err)
	n, err := o.RedriveSQL(ctx, tx, 1, 2, 3)
	require.NoError(t, err)
	require.EqualValues(t, 2, n, "the third never failed")
	require.NoError(t, tx.Rollback())
	parked, err = o.ParkedSQL(ctx, std, 10)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	n, err = o.RedriveSQL(ctx, std, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	n, err = o.SkipSQL(ctx, std, 2, 3, 99)
	require.NoError(t, err)
	require.EqualValues(t, 2, n)

	setLanes := func() error {
		tx, err := std.BeginTx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback() // Committed, or nothing to commit.
		if err := o.SetLanesSQL(ctx, tx, 2); err != nil {
			return err
		}
		return tx.Commit()
	}
	require.ErrorIs(t, setLanes(), outbox.ErrNotDrained)
	sink := &hooked{during: func(int) {}}
	relay := newRelay(t, db, relayConfig(sink))
	runOnce(t, relay)
	require.ElementsMatch(t, []string{"1", "4"}, sink.payloads())
	require.NoError(t, setLanes())
	require.Equal(t, 2, scalar[int](t, db, `SELECT lanes FROM oncemill.outbox_settings`))

	since := scalar[time.Time](t, db, `SELECT clock_timestamp() - interval '1 hour'`)
	cfg := outbox.RepublishConfig{Since: since, Batch: 3}
	_, err = o.RepublishSQL(ctx, std, cfg)
	require.ErrorContains(t, err, "Horizon")
	cfg.Horizon = 2 * time.Hour
	n, err = o.RepublishSQL(ctx, std, cfg)
	require.NoError(t, err)
	require.EqualValues(t, 4, n)
	require.Equal(t, 4, queued(t, db))
}
