package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/pg"
)

// maxLanes is the largest number of lanes (outbox_settings_lanes_check).
const maxLanes = 64

// ErrNotDrained is returned by SetLanes while messages are queued.
var ErrNotDrained = errors.New("outbox: messages are queued: stop the writers, let relays drain the queue, and skip or redrive parked rows")

// SetLanes changes the number of lanes, 1 to 64, over which rows are spread
// by ordering key: as many relays can share the work. The queue must be empty,
// since a key may move to another lane; writers wait while it runs. It must
// not run beside writing transactions above READ COMMITTED: they might still
// see the old number. Lanes above n stay, empty.
func (o *Outbox) SetLanes(ctx context.Context, tx pgx.Tx, n int) error {
	return o.setLanes(ctx, pg.FromPgx(tx), n)
}

// SetLanesSQL is SetLanes for database/sql over pgx/stdlib.
func (o *Outbox) SetLanesSQL(ctx context.Context, tx *sql.Tx, n int) error {
	return o.setLanes(ctx, pg.FromSQL(tx), n)
}

func (o *Outbox) setLanes(ctx context.Context, db pg.DB, n int) error {
	if n < 1 || n > maxLanes {
		return fmt.Errorf("outbox: lanes: %d is not in 1 to %d", n, maxLanes)
	}
	if _, err := db.Exec(ctx, o.sql.lockQueue); err != nil {
		return fmt.Errorf("outbox: set lanes: keep writers out: %w", err)
	}
	var empty bool
	if err := pg.QueryRow(ctx, db, o.sql.queueEmpty, nil, &empty); err != nil {
		return fmt.Errorf("outbox: set lanes: look at the queue: %w", err)
	}
	if !empty {
		return ErrNotDrained
	}
	if _, err := db.Exec(ctx, o.sql.setLanes, n); err != nil {
		return fmt.Errorf("outbox: set lanes: %w", err)
	}
	return nil
}
