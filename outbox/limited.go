package outbox

import (
	"context"
	"sync"

	"github.com/oncemill/oncemill/internal/pg"
)

// limited runs as many statements at a time as it has slots: what the lanes
// gain by more is less than what the database loses by switching between them.
type limited struct {
	db    pg.DB
	slots chan struct{}
}

func (l limited) acquire(ctx context.Context) error {
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l limited) release() { <-l.slots }

func (l limited) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := l.acquire(ctx); err != nil {
		return 0, err
	}
	defer l.release()
	return l.db.Exec(ctx, query, args...)
}

// Query keeps the slot until the rows are closed.
func (l limited) Query(ctx context.Context, query string, args ...any) (pg.Rows, error) {
	if err := l.acquire(ctx); err != nil {
		return nil, err
	}
	rows, err := l.db.Query(ctx, query, args...)
	if err != nil {
		l.release()
		return nil, err
	}
	return &limitedRows{rows, sync.OnceFunc(l.release)}, nil
}

type limitedRows struct {
	pg.Rows
	release func()
}

func (r *limitedRows) Close() error {
	defer r.release()
	return r.Rows.Close()
}
