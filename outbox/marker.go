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
	// short, of recorded marks, means that some sent rows were not in the queue
	// as they were read: marked by another relay, or republished meanwhile.
	short bool
}

func (m *marks) empty() bool { return len(m.sent) == 0 && len(m.failed) == 0 }

func (m *marks) size() int { return len(m.sent) + len(m.failed) }

// marker writes outcomes of one lane.
type marker struct {
	db     pg.DB
	sql    *statements
	hold   hold
	delete bool // messages that were sent
}

// write records the marks and removes from m what it recorded. It returns
// errLost when failures were not recorded since the fence is not ours.
func (mk *marker) write(ctx context.Context, m *marks) (done marks, err error) {
	markSent := mk.sql.markSent
	if mk.delete {
		markSent = mk.sql.deleteSent
	}
	for len(m.sent) > 0 {
		round, ids, others := sameRound(m.sent)
		deleted, err := mk.db.Exec(ctx, markSent, mk.hold.lane, ids, round)
		if err != nil {
			return done, fmt.Errorf("outbox: mark sent rows of lane %d: %w", mk.hold.lane, err)
		}
		done.short = done.short || deleted < int64(len(ids))
		for _, r := range m.sent {
			if r.round == round {
				done.sent = append(done.sent, r)
			}
		}
		m.sent = others
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

// sameRound returns the round of the first row, the ids of the rows of that
// round, and the other rows. Mostly there are none.
func sameRound(rows []*row) (round int32, ids []int64, others []*row) {
	round, ids = rows[0].round, make([]int64, 0, len(rows))
	for _, r := range rows {
		if r.round == round {
			ids = append(ids, r.id)
		} else {
			others = append(others, r)
		}
	}
	return round, ids, others
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
