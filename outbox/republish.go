package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/internal/pg"
)

// RepublishConfig says which messages to send again.
type RepublishConfig struct {
	// Since and Until bound the time at which messages were written, by the
	// database's clock: Since inclusive, Until exclusive. Until zero: the
	// start of the call.
	Since, Until time.Time
	// Horizon is how far back every consumer of these messages still knows
	// what it processed (its retention). Required: a message older than that
	// would be processed once more.
	Horizon time.Duration
	// Batch is how many messages one transaction looks at. 0 means 1000.
	Batch int
}

// Republish queues messages once more that were sent already, in the order of
// their ids: JetStream acknowledges before it writes to disk, so a broker that
// crashed may have lost them. They get a broker id of this round, so that the
// broker does not drop them, and keep their logical id, so that consumers do.
// Messages that are queued stay where they are and get the round, too. It
// returns how many were not queued before; after an error these are queued, and
// calling it again is safe.
func (o *Outbox) Republish(ctx context.Context, db Tx, cfg RepublishConfig) (int64, error) {
	return o.republish(ctx, pg.FromPgx(db), cfg)
}

// RepublishSQL is Republish for database/sql over pgx/stdlib.
func (o *Outbox) RepublishSQL(ctx context.Context, db SQLTx, cfg RepublishConfig) (int64, error) {
	return o.republish(ctx, pg.FromSQL(db), cfg)
}

func (o *Outbox) republish(ctx context.Context, conn pg.DB, cfg RepublishConfig) (int64, error) {
	if err := cfg.prepare(); err != nil {
		return 0, err
	}
	var round int32
	var now time.Time
	err := pg.QueryRow(ctx, conn, o.sql.republishStart, []any{cfg.Since, cfg.Horizon.Microseconds()}, &round, &now)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("outbox: republish: Since: %s is before the consumer horizon of %s: consumers may have forgotten what they processed; choose a later one", cfg.Since.UTC().Format(time.RFC3339), cfg.Horizon)
	}
	if err != nil {
		return 0, fmt.Errorf("outbox: republish: start a round: %w", err)
	}
	if cfg.Until.IsZero() {
		cfg.Until = now
	}
	var total int64
	for after := int64(0); ; {
		var last, queued int64
		err := pg.QueryRow(ctx, conn, o.sql.republish, []any{after, cfg.Batch, cfg.Since, cfg.Until, round}, &last, &queued)
		if err != nil {
			return total, fmt.Errorf("outbox: republish: queue messages: %w", err)
		}
		total += queued
		if last == 0 {
			o.Notify()
			return total, nil
		}
		after = last
	}
}

func (c *RepublishConfig) prepare() error {
	if c.Since.IsZero() {
		return errors.New("outbox: republish: Since: missing")
	}
	if c.Horizon <= 0 {
		return errors.New("outbox: republish: Horizon: missing: say how far back all consumers know what they processed")
	}
	if c.Batch < 0 {
		return errors.New("outbox: republish: Batch: must not be negative")
	}
	defaultTo(&c.Batch, 1000)
	return nil
}
