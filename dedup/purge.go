package dedup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/uuid"
)

// Defaults of PurgeConfig.
const (
	// DefaultPurgePage is how many rows one transaction looks at: some
	// milliseconds of work, so that locks and WAL come in small portions.
	DefaultPurgePage = 2000
	// DefaultPurgeEvery is the pause between two passes.
	DefaultPurgeEvery = 10 * time.Minute
	// PurgeSlices is in how many passes Run goes once through the rows whose
	// ids carry no time: 160 minutes with DefaultPurgeEvery.
	PurgeSlices = 16
)

// PurgeConfig configures a Purger.
type PurgeConfig struct {
	// Operations are the operations whose done rows are purged, each by its
	// retention in the Inbox. Required. Rows of other operations stay.
	Operations []string
	// Page is how many rows one transaction looks at, 1 to 100,000. 0 means
	// DefaultPurgePage.
	Page int
	// Every is the pause between two passes. 0 means DefaultPurgeEvery.
	Every time.Duration
	// Logger gets a line per pass that deleted something. nil means none.
	Logger *slog.Logger
}

// Purger deletes done rows whose retention is over, in bounded transactions.
// Held rows stay, whatever their age. Before any row goes, the operation's
// floor is raised and committed, so that an event older than it is refused,
// not run again. Several Purgers may run at once; one Purger may not be
// shared between goroutines.
//
// After each page it pauses for as long as that took, so that it takes no more
// than half of one connection's time.
//
// Rows whose ids carry their time (UUIDv7, ULID) lie in its order, so that a
// pass reads those that can be over, and with them the younger ones of
// operations with a longer retention. The others lie in no order, and all must
// be read to find those that are over. So each pass of Run reads one of
// PurgeSlices equal parts of them: such a row stays for up to PurgeSlices times
// PurgeConfig.Every, and what the passes take, longer than its retention.
type Purger struct {
	inbox *Inbox
	db    Tx
	cfg   PurgeConfig
}

// NewPurger validates cfg and returns a Purger on db, a pool and not a
// transaction: each page commits by itself. It does no I/O.
func NewPurger(inbox *Inbox, db Tx, cfg PurgeConfig) (*Purger, error) {
	if len(cfg.Operations) == 0 || slices.Contains(cfg.Operations, "") {
		return nil, errors.New("dedup.PurgeConfig.Operations: name the operations to purge")
	}
	if cfg.Page == 0 {
		cfg.Page = DefaultPurgePage
	}
	if cfg.Page < 1 || cfg.Page > 100_000 {
		return nil, fmt.Errorf("dedup.PurgeConfig.Page: %d is out of range, use 1 to 100000", cfg.Page)
	}
	cfg.Every = orDefault(cfg.Every, DefaultPurgeEvery)
	if cfg.Every < 0 {
		return nil, fmt.Errorf("dedup.PurgeConfig.Every: %s is negative, use a pause", cfg.Every)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Purger{inbox: inbox, db: db, cfg: cfg}, nil
}

// PurgeStats tells what a pass did, in rows.
type PurgeStats struct{ Seen, Deleted int64 }

// Run makes a pass, waits, and so on until ctx ends. Errors are logged, and what
// a pass left undone is for a later one.
func (p *Purger) Run(ctx context.Context) error {
	// Not from 0: a service that starts often would never reach the last one.
	for slice := rand.IntN(PurgeSlices); ; slice = (slice + 1) % PurgeSlices {
		stats, err := p.pass(ctx, digestSlice(slice))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			p.cfg.Logger.WarnContext(ctx, "inbox purge failed, trying again later", "error", err)
		case stats.Deleted > 0:
			p.cfg.Logger.InfoContext(ctx, "inbox purged", "deleted", stats.Deleted)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(p.cfg.Every):
		}
	}
}

// RunOnce makes one pass over all rows that can be over, those in no order
// included: what PurgeSlices passes of Run do.
func (p *Purger) RunOnce(ctx context.Context) (PurgeStats, error) {
	return p.pass(ctx, span{digestSlice(0).after, digestSlice(PurgeSlices - 1).last})
}

// pass goes through the ids with a time that can be over, and through those of
// digests.
func (p *Purger) pass(ctx context.Context, digests span) (PurgeStats, error) {
	operations, floors, err := p.raiseFloors(ctx)
	if err != nil || len(operations) == 0 {
		return PurgeStats{}, err
	}
	var stats PurgeStats
	newest := slices.MaxFunc(floors, time.Time.Compare)
	for _, s := range []span{{timedID(time.UnixMilli(0)), timedID(newest.Add(timedMargin))}, digests} {
		if err := p.purgeSpan(ctx, s, operations, floors, &stats); err != nil {
			return stats, err
		}
	}
	return stats, nil
}

// raiseFloors commits the floors of this pass.
func (p *Purger) raiseFloors(ctx context.Context) (operations []string, floors []time.Time, err error) {
	for _, operation := range p.cfg.Operations {
		retention := p.inbox.Retention(operation)
		if retention < 0 {
			continue
		}
		var floor time.Time
		if err := pg.QueryRow(ctx, p.db, p.inbox.sql.raiseFloor, []any{operation, retention.Microseconds()}, &floor); err != nil {
			return nil, nil, fmt.Errorf("purge inbox: raise the floor of operation %q: %w", operation, err)
		}
		operations, floors = append(operations, operation), append(floors, floor)
	}
	return operations, floors, nil
}

// span is the ids after one, up to and including the last.
type span struct{ after, last string }

// purgeSpan walks a span. The moving lower bound keeps a page from wading
// through the entries of rows that earlier pages deleted.
func (p *Purger) purgeSpan(ctx context.Context, s span, operations []string, floors []time.Time, stats *PurgeStats) error {
	for {
		var last string
		var seen, deleted int64
		start := time.Now()
		err := pg.QueryRow(ctx, p.db, p.inbox.sql.purgePage, []any{s.after, p.cfg.Page, operations, floors, s.last}, &last, &seen, &deleted)
		if err != nil {
			return fmt.Errorf("purge inbox: %w", err)
		}
		stats.Seen += seen
		stats.Deleted += deleted
		if seen < int64(p.cfg.Page) {
			return nil
		}
		s.after = last
		if err := rest(ctx, time.Since(start)); err != nil {
			return err
		}
	}
}

// rest leaves the database to others for as long as a page took: a purge is in
// no hurry, and the busier the server, the longer its pages.
func rest(ctx context.Context, took time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(took):
		return nil
	}
}

// timedMargin is how far a row's own time may be behind the time in its id:
// the id's time may be ahead of the clock by the skew, or the event's declared
// time may differ from the id's. A row that is missed because of a greater
// difference goes in a later pass.
const timedMargin = 24 * time.Hour

// digestSlice is part n of the ids that carry no time: the upper half, over
// which digests are spread evenly.
func digestSlice(n int) span {
	const width = 128 / PurgeSlices
	end := func(first int) string { return fmt.Sprintf("%02x%s", first, "ffffff-ffff-ffff-ffff-ffffffffffff") }
	return span{end(127 + n*width), end(127 + (n+1)*width)}
}

// timedID is the lowest id that carries the time t.
func timedID(t time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(max(t.UnixMilli(), 0))<<16) // Not negative.
	return uuid.Format(b)
}
