package outbox

import (
	"context"
	"errors"
	"time"
)

type readResult struct {
	rows []*row
	more bool
	err  error
}

func (l *lane) hasRoom() bool {
	return len(l.win.rows) < l.relay.cfg.maxRows() && l.win.bytes < l.relay.cfg.MaxBytes
}

// startRead reads the next page beside the loop, when there is room for it.
func (l *lane) startRead(ctx context.Context, now time.Time) {
	if l.reading || now.Before(l.readFrom) {
		return
	}
	if l.rescan && !l.reader.open() && !now.Before(l.rescanFrom) {
		l.startRescan(now)
	}
	if !l.wantRead || !l.hasRoom() {
		return
	}
	cfg := &l.relay.cfg
	req := readRequest{rows: min(cfg.Batch, cfg.maxRows()-len(l.win.rows)), bytes: cfg.MaxBytes - l.win.bytes}
	req.blockedKeys, req.blockingRows = l.win.filter()
	l.reading, l.wantRead = true, false
	go func() {
		rows, more, err := l.reader.next(ctx, req)
		l.readDone <- readResult{rows, more, err}
	}()
}

// startRescan begins a generation of all rows. One that is open is read to its
// end first: rows that fall due while it is would never let it end.
func (l *lane) startRescan(now time.Time) {
	l.rescan, l.wantRead = false, true
	l.rescanAt, l.rescanBegan = now.Add(rescanEvery), now
	l.win.unblock()
	l.reader.restart()
}

// endRescan sets when the next one may begin.
func (l *lane) endRescan(now time.Time) {
	if !l.rescanBegan.IsZero() {
		l.rescanFrom = now.Add(rescanRest * now.Sub(l.rescanBegan))
		l.rescanBegan = time.Time{}
	}
}

// accept takes a page into memory.
func (l *lane) accept(res readResult) {
	l.reading = false
	switch {
	case errors.Is(res.err, errNewBoot):
		l.reader.restart()
		l.rescan, l.rescanFrom = true, time.Time{}
	case errors.Is(res.err, context.Canceled): // the lane is being given back
	case res.err != nil:
		l.wantRead, l.readFrom = true, time.Now().Add(retryDelay)
		l.relay.warnError(res.err)
	}
	l.wantRead = l.wantRead || res.more
	if res.err == nil && !res.more {
		l.endRescan(time.Now())
	}
	for _, r := range res.rows {
		l.acceptRow(r)
	}
	for _, r := range l.forgetAfterRead {
		l.forget(r)
	}
	l.forgetAfterRead = nil
}

func (l *lane) acceptRow(r *row) {
	if known := l.win.rows[r.id]; known != nil {
		if known.round != r.round {
			// Queued again after its mark, of which this lane does not know yet.
			l.rescanIn(doubtDelay)
		}
		return
	}
	blocker, blocked := l.win.blockerOf(r)
	switch {
	case r.skip:
		l.win.hold(r)
		l.mark(time.Now(), func(m *marks) { m.sent = append(m.sent, r) })
	case r.waits():
		if !blocked {
			l.win.blockBehind(r)
		}
		if r.dueIn != nil {
			l.rescanIn(time.Duration(*r.dueIn * float64(time.Second)))
		}
	case blocked:
		// Driven again by an operator: it and those behind it come in order.
		l.rescan = l.rescan || blocker == r.id
	default:
		l.win.add(r)
	}
}

// rescanIn asks for a rescan, no later than d from now.
func (l *lane) rescanIn(d time.Duration) {
	at := time.Now().Add(d)
	if l.rescanAt.IsZero() || at.Before(l.rescanAt) {
		l.rescanAt = at
	}
}
