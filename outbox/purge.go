package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/pg"
)

// PurgeConfig configures a Purger.
type PurgeConfig struct {
	// Keep is how long messages stay after they were sent, for Republish.
	// Required. JetStream syncs to disk every two minutes by default: keep more
	// than that.
	//
	// It does not count from when a message was written, which an outage of the
	// broker may put long before it was sent, but from when a pass first found
	// it sent. Passes look at a message when it is new, and again every Keep
	// while it is there. So it stays for Keep at least, for Keep and Every if
	// it was sent within moments, and for up to twice Keep if it was sent late.
	// A Republish has all messages looked at anew: nothing is deleted that was
	// not found sent again, Keep before. What passes saw is in the database:
	// several Purgers and restarts shorten nothing.
	Keep time.Duration
	// Every is how often Run purges. 0 means 1 min.
	Every time.Duration
	// Batch is how many messages one transaction looks at. 0 means 1000.
	Batch int
}

// Purger deletes messages that were sent or skipped, some time after that. It
// never deletes one that is queued, parked ones included. Its methods are safe
// for concurrent use, and any number of Purgers may run.
type Purger struct {
	db  pg.DB
	sql *statements
	cfg PurgeConfig
}

// NewPurger returns a Purger. It does no I/O.
func (o *Outbox) NewPurger(pool *pgxpool.Pool, cfg PurgeConfig) (*Purger, error) {
	return o.newPurger(pg.FromPgx(pool), cfg)
}

// NewPurgerSQL is NewPurger for database/sql over pgx/stdlib.
func (o *Outbox) NewPurgerSQL(db *sql.DB, cfg PurgeConfig) (*Purger, error) {
	return o.newPurger(pg.FromSQL(db), cfg)
}

func (o *Outbox) newPurger(db pg.DB, cfg PurgeConfig) (*Purger, error) {
	if cfg.Keep <= 0 {
		return nil, errors.New("outbox: PurgeConfig.Keep: missing: say how long sent messages stay")
	}
	if cfg.Every < 0 || cfg.Batch < 0 {
		return nil, errors.New("outbox: PurgeConfig: Every and Batch must not be negative")
	}
	defaultTo(&cfg.Every, time.Minute)
	defaultTo(&cfg.Batch, 1000)
	return &Purger{db: db, sql: &o.sql, cfg: cfg}, nil
}

// RunOnce looks at new messages and deletes those whose time is over, in
// bounded transactions. It returns how many it deleted.
func (p *Purger) RunOnce(ctx context.Context) (int64, error) {
	now, err := p.look(ctx)
	if err != nil {
		return 0, err
	}
	var total, gone int64
	for page := new(time.Time); ; total += gone {
		err := pg.QueryRow(ctx, p.db, p.sql.purge, []any{p.cfg.Keep.Microseconds(), now, *page}, &page, &gone)
		if err != nil {
			return total, fmt.Errorf("outbox: purge: %w", err)
		}
		if page == nil {
			return total, nil
		}
	}
}

// look writes down which of the messages that no pass looked at were sent. It
// returns the time.
func (p *Purger) look(ctx context.Context) (now time.Time, err error) {
	for seen := p.cfg.Batch; seen == p.cfg.Batch; {
		if err := pg.QueryRow(ctx, p.db, p.sql.look, []any{p.cfg.Batch}, &seen, &now); err != nil {
			return now, fmt.Errorf("outbox: purge: look for sent messages: %w", err)
		}
	}
	return now, nil
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
