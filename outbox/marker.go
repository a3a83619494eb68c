package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/internal/pg"
)

// errLost is the end of a lane that another relay holds now.
var errLost = errors.New("outbox: the lane is held by another relay")

// failure is what is recorded of a row that was not sent.
type failure struct {
	row    *row
	charge int32
	delay  time.Duration
	park   bool
	reason string
}

// marks are outcomes on their way into the database.
type marks struct {
	sent   []*row
	failed []failure
}

func (m *marks) empty() bool { return len(m.sent) == 0 && len(m.failed) == 0 }

func (m *marks) size() int { return len(m.sent) + len(m.failed) }

// marker writes outcomes of one lane.
type marker struct {
	db   pg.DB
	sql  *statements
	hold hold
}

// write records the marks and removes from m what it recorded. It returns
// errLost when failures were not recorded since the fence is not ours.
func (mk *marker) write(ctx context.Context, m *marks) (done marks, err error) {
	if len(m.sent) > 0 {
		ids := make([]int64, len(m.sent))
		for i, r := range m.sent {
			ids[i] = r.id
		}
		if _, err := mk.db.Exec(ctx, mk.sql.markSent, mk.hold.lane, ids); err != nil {
			return done, fmt.Errorf("outbox: mark sent rows of lane %d: %w", mk.hold.lane, err)
		}
		done.sent, m.sent = m.sent, nil
	}
	if len(m.failed) == 0 {
		return done, nil
	}
	var held int
	if err := pg.QueryRow(ctx, mk.db, mk.sql.markFailed, mk.failedArgs(m.failed), &held); err != nil {
		return done, fmt.Errorf("outbox: record failed rows of lane %d: %w", mk.hold.lane, err)
	}
	done.failed, m.failed = m.failed, nil
	if held == 0 {
		return done, errLost
	}
	return done, nil
}

func (mk *marker) failedArgs(failed []failure) []any {
	n := len(failed)
	ids, charges, delays := make([]int64, n), make([]int32, n), make([]int64, n)
	parks, reasons := make([]bool, n), make([]string, n)
	for i, f := range failed {
		ids[i], charges[i], delays[i] = f.row.id, f.charge, f.delay.Microseconds()
		parks[i], reasons[i] = f.park, cleanReason(f.reason)
	}
	return []any{mk.hold.lane, mk.hold.fence, ids, charges, delays, parks, reasons}
}
