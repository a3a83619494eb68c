package dedup

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/schema"
)

// A pass of Run reads a part of the ids that carry no time, and a round of
// them all.
func TestASliceOfDigestsAtATime(t *testing.T) {
	db := testbed.NewDB(t)
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{}))
	in, err := NewInbox(InboxConfig{Retention: time.Hour})
	require.NoError(t, err)
	const rows = 1600
	for i := range rows {
		key, err := NewKey("acme", "charge", fmt.Sprint("k", i))
		require.NoError(t, err)
		id := key.InboxID()
		_, err = db.Pool.Exec(t.Context(), `INSERT INTO oncemill.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
			VALUES ($1, 1, 1, sha256(''), now() - interval '2 hours', 'acme', 'charge')`, id)
		require.NoError(t, err)
	}
	p, err := NewPurger(in, Pgx(db.Pool), PurgeConfig{Operations: []string{"charge"}, Page: 30})
	require.NoError(t, err)
	var total int64
	for n := range PurgeSlices {
		stats, err := p.pass(t.Context(), digestSlice(n))
		require.NoError(t, err)
		require.InDelta(t, rows/PurgeSlices, stats.Seen, rows/PurgeSlices/2, "digests are spread evenly")
		total += stats.Deleted
	}
	require.EqualValues(t, rows, total)
	require.Equal(t, span{"7fffffff-ffff-ffff-ffff-ffffffffffff", "87ffffff-ffff-ffff-ffff-ffffffffffff"}, digestSlice(0))
	require.Equal(t, "ffffffff-ffff-ffff-ffff-ffffffffffff", digestSlice(PurgeSlices-1).last)
}

// Run goes round, wherever it begins.
func TestRunGoesThroughAllSlices(t *testing.T) {
	db := testbed.NewDB(t)
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{}))
	in, err := NewInbox(InboxConfig{Retention: time.Hour})
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `INSERT INTO oncemill.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
		SELECT (lpad(to_hex(g), 2, '0') || repeat('0', 30))::uuid, 1, 1, sha256(''), now() - interval '2 hours', 'acme', 'charge' FROM generate_series(128, 255) g`)
	require.NoError(t, err)
	p, err := NewPurger(in, Pgx(db.Pool), PurgeConfig{Operations: []string{"charge"}, Every: time.Nanosecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	require.Eventually(t, func() bool {
		var left int
		require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM oncemill.inbox`).Scan(&left))
		return left == 0
	}, time.Minute, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
