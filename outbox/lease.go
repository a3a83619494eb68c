package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/internal/pg"
)

// hold is a lane that a relay holds. Time is the database's: processes with
// wrong clocks neither steal a lane nor lose one.
type hold struct {
	lane  int16
	fence int64
}

// leases is what a relay does to the tables of lanes and relays.
type leases struct {
	db    pg.DB
	sql   *statements
	owner string
	lease time.Duration
}

// share says that the relay can send, and returns how many lanes it should
// hold at most: the lanes divided by the relays, rounded up.
func (l *leases) share(ctx context.Context) (int, error) {
	var relays, lanes int
	err := pg.QueryRow(ctx, l.db, l.sql.beat, []any{l.owner, l.lease.Microseconds()}, &relays, &lanes)
	if err != nil {
		return 0, fmt.Errorf("outbox: count the relays: %w", err)
	}
	return (lanes + relays - 1) / relays, nil
}

// leave makes the others stop counting this relay.
func (l *leases) leave(ctx context.Context) error {
	if _, err := l.db.Exec(ctx, l.sql.leave, l.owner); err != nil {
		return fmt.Errorf("outbox: sign off: %w", err)
	}
	return nil
}

// acquire takes up to n lanes that nobody holds.
func (l *leases) acquire(ctx context.Context, n int) ([]hold, error) {
	var holds []hold
	err := pg.Each(ctx, l.db, l.sql.acquire, []any{l.owner, l.lease.Microseconds(), n}, func(rs pg.Rows) error {
		var h hold
		err := rs.Scan(&h.lane, &h.fence)
		holds = append(holds, h)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: acquire lanes: %w", err)
	}
	return holds, nil
}

// renew returns the lanes, out of holds, that are still ours.
func (l *leases) renew(ctx context.Context, holds []hold) (map[int16]bool, error) {
	lanes, fences := make([]int32, len(holds)), make([]int64, len(holds))
	for i, h := range holds {
		lanes[i], fences[i] = int32(h.lane), h.fence
	}
	ours := make(map[int16]bool, len(holds))
	err := pg.Each(ctx, l.db, l.sql.renew, []any{l.owner, l.lease.Microseconds(), lanes, fences}, func(rs pg.Rows) error {
		var lane int16
		err := rs.Scan(&lane)
		ours[lane] = true
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: renew lanes: %w", err)
	}
	return ours, nil
}

// release gives a lane back, so that another relay can take it at once.
func (l *leases) release(ctx context.Context, h hold) error {
	if _, err := l.db.Exec(ctx, l.sql.release, l.owner, h.lane, h.fence); err != nil {
		return fmt.Errorf("outbox: release lane %d: %w", h.lane, err)
	}
	return nil
}
