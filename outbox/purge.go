package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/pg"
)

// PurgeConfig configures a Purger.
type PurgeConfig struct {
	// Keep is how long sent messages stay, for Republish. Required. JetStream
	// syncs to disk every two minutes by default: keep more than that.
	Keep time.Duration
	// Every is how often Run purges. 0 means 1 min.
	Every time.Duration
	// Batch is how many messages one transaction looks at. 0 means 1000.
	Batch int
}

// Purger deletes messages that were sent or skipped, some time after they
// were written. It never deletes one that is queued, parked ones included.
type Purger struct {
	db  pg.DB
	sql *statements
	cfg PurgeConfig
	// low is below the first message that stayed: a pass that started from the
	// beginning would wade through the index entries of those deleted before.
	low int64
}

// NewPurger returns a Purger. It does no I/O.
func (o *Outbox) NewPurger(pool *pgxpool.Pool, cfg PurgeConfig) (*Purger, error) {
	if cfg.Keep <= 0 {
		return nil, errors.New("outbox: PurgeConfig.Keep: missing: say how long sent messages stay")
	}
	if cfg.Every < 0 || cfg.Batch < 0 {
		return nil, errors.New("outbox: PurgeConfig: Every and Batch must not be negative")
	}
	defaultTo(&cfg.Every, time.Minute)
	defaultTo(&cfg.Batch, 1000)
	return &Purger{db: pg.FromPgx(pool), sql: &o.sql, cfg: cfg}, nil
}

// RunOnce deletes what is old enough, in bounded transactions, and returns how
// many messages that were. Not for concurrent use.
func (p *Purger) RunOnce(ctx context.Context) (int64, error) {
	var total int64
	after, low := p.low, int64(0)
	for {
		var last, stays, gone int64
		var young bool
		err := pg.QueryRow(ctx, p.db, p.sql.purge, []any{after, p.cfg.Batch, p.cfg.Keep.Microseconds()}, &last, &stays, &young, &gone)
		if err != nil {
			return total, fmt.Errorf("outbox: purge: %w", err)
		}
		total += gone
		if low == 0 && stays > 0 {
			low = stays
		}
		if last > 0 {
			after = last
		}
		if last == 0 || gone == 0 && young {
			p.low = max(p.low, low-1)
			if low == 0 {
				p.low = after
			}
			return total, nil
		}
	}
}

// Run purges until ctx ends. report gets errors, which do not end it; it may
// be nil.
func (p *Purger) Run(ctx context.Context, report func(error)) {
	ticker := time.NewTicker(p.cfg.Every)
	defer ticker.Stop()
	for {
		if _, err := p.RunOnce(ctx); err != nil && report != nil && ctx.Err() == nil {
			report(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
