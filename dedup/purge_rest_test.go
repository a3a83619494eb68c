package dedup

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
)

// farTx is a database that is a while away, and notes when it was asked.
type farTx struct {
	Tx
	away  time.Duration
	asked []time.Time
}

func (tx *farTx) Query(ctx context.Context, query string, args ...any) (pg.Rows, error) {
	tx.asked = append(tx.asked, time.Now())
	time.Sleep(tx.away)
	return tx.Tx.Query(ctx, query, args...)
}

func TestAPurgeRestsForAsLongAsAPageTook(t *testing.T) {
	db := testbed.NewDB(t)
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{}))
	in, err := NewInbox(InboxConfig{Retention: time.Hour})
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `INSERT INTO oncemill.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
		SELECT (lpad(to_hex(g), 2, '0') || repeat('0', 30))::uuid, 1, 1, sha256(''), now() - interval '2 hours', 'acme', 'charge' FROM generate_series(128, 133) g`)
	require.NoError(t, err)
	far := &farTx{Tx: Pgx(db.Pool), away: 200 * time.Millisecond}
	p, err := NewPurger(in, far, PurgeConfig{Operations: []string{"charge"}, Page: 2})
	require.NoError(t, err)
	stats, err := p.pass(t.Context(), digestSlice(0))
	require.NoError(t, err)
	require.EqualValues(t, 6, stats.Deleted)

	const before = 2 // raising the floor, and the ids with a time: none
	pages := far.asked[before:]
	require.Len(t, pages, 4, "three full pages and the end")
	for i := range pages[1:] {
		require.GreaterOrEqual(t, pages[i+1].Sub(pages[i]), 2*far.away, "page %d took that long, and so does the rest after it", i)
	}
}

func TestARestEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, rest(ctx, time.Hour), context.Canceled)
}
