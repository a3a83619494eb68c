package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/internal/pg"
)

// Failure describes a queued message that failed; it has no payload.
type Failure struct {
	ID          int64
	Topic       string
	LogicalID   string
	OrderingKey string
	// Reason is why the last attempt failed.
	Reason   string
	Attempts int
	// CreatedAt is when the message was written.
	CreatedAt time.Time
	// ParkedAt is nil for a message that is still being tried.
	ParkedAt *time.Time
	// DueAt is the next attempt of one that is.
	DueAt *time.Time
}

// Parked lists parked messages, longest parked first. They wait for Redrive
// or Skip, and messages of their ordering keys behind them.
func (o *Outbox) Parked(ctx context.Context, db Tx, limit int) ([]Failure, error) {
	return o.failures(ctx, pg.FromPgx(db), limit, true)
}

// ParkedSQL is Parked for database/sql over pgx/stdlib.
func (o *Outbox) ParkedSQL(ctx context.Context, db SQLTx, limit int) ([]Failure, error) {
	return o.failures(ctx, pg.FromSQL(db), limit, true)
}

// Failing is Parked with the messages that are still being tried.
func (o *Outbox) Failing(ctx context.Context, db Tx, limit int) ([]Failure, error) {
	return o.failures(ctx, pg.FromPgx(db), limit, false)
}

// FailingSQL is Failing for database/sql over pgx/stdlib.
func (o *Outbox) FailingSQL(ctx context.Context, db SQLTx, limit int) ([]Failure, error) {
	return o.failures(ctx, pg.FromSQL(db), limit, false)
}

func (o *Outbox) failures(ctx context.Context, db pg.DB, limit int, parkedOnly bool) ([]Failure, error) {
	var list []Failure
	err := pg.Each(ctx, db, o.sql.failing, []any{limit, parkedOnly}, func(rs pg.Rows) error {
		var f Failure
		err := rs.Scan(&f.ID, &f.Topic, &f.LogicalID, &f.OrderingKey, &f.Reason, &f.Attempts, &f.CreatedAt, &f.ParkedAt, &f.DueAt)
		list = append(list, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: list failing messages: %w", err)
	}
	return list, nil
}

// Redrive has messages sent again at once, with no attempts charged, whether
// parked or waiting for their next attempt. Those that never failed are on
// their way and stay as they are. It returns how many were queued.
func (o *Outbox) Redrive(ctx context.Context, db Tx, ids ...int64) (int64, error) {
	return o.redrive(ctx, pg.FromPgx(db), ids)
}

// RedriveSQL is Redrive for database/sql over pgx/stdlib.
func (o *Outbox) RedriveSQL(ctx context.Context, db SQLTx, ids ...int64) (int64, error) {
	return o.redrive(ctx, pg.FromSQL(db), ids)
}

func (o *Outbox) redrive(ctx context.Context, db pg.DB, ids []int64) (int64, error) {
	n, err := db.Exec(ctx, o.sql.redrive, ids)
	if err != nil {
		return 0, fmt.Errorf("outbox: redrive: %w", err)
	}
	return n, nil
}

// Skip gives messages up: they are not sent, and those behind them in their
// ordering key go on. The message stays until a Purger runs, and Republish sends it.
// A message that is being sent may still arrive. It returns how many were
// queued.
func (o *Outbox) Skip(ctx context.Context, db Tx, ids ...int64) (int64, error) {
	return o.skip(ctx, pg.FromPgx(db), ids)
}

// SkipSQL is Skip for database/sql over pgx/stdlib.
func (o *Outbox) SkipSQL(ctx context.Context, db SQLTx, ids ...int64) (int64, error) {
	return o.skip(ctx, pg.FromSQL(db), ids)
}

func (o *Outbox) skip(ctx context.Context, db pg.DB, ids []int64) (int64, error) {
	n, err := db.Exec(ctx, o.sql.skip, ids)
	if err != nil {
		return 0, fmt.Errorf("outbox: skip: %w", err)
	}
	return n, nil
}

// Backlog is what is left to send.
type Backlog struct {
	// Queued counts all rows, Parked those of them that are parked.
	Queued, Parked int64
	// Lag is the age of the oldest row that is not parked.
	Lag time.Duration
}

// Backlog reads how much is left to send. Its cost grows with the queue.
func (o *Outbox) Backlog(ctx context.Context, db Tx) (Backlog, error) {
	return o.backlog(ctx, pg.FromPgx(db))
}

// BacklogSQL is Backlog for database/sql over pgx/stdlib.
func (o *Outbox) BacklogSQL(ctx context.Context, db SQLTx) (Backlog, error) {
	return o.backlog(ctx, pg.FromSQL(db))
}

func (o *Outbox) backlog(ctx context.Context, db pg.DB) (Backlog, error) {
	var b Backlog
	var seconds float64
	if err := pg.QueryRow(ctx, db, o.sql.backlog, nil, &b.Queued, &b.Parked, &seconds); err != nil {
		return Backlog{}, fmt.Errorf("outbox: read the backlog: %w", err)
	}
	b.Lag = time.Duration(seconds * float64(time.Second))
	return b, nil
}
