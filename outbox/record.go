package outbox

import (
	"context"
	"errors"
	"time"
)

type markResult struct {
	done, left marks
	err        error
}

// mark adds an outcome to those that wait to be written.
func (l *lane) mark(now time.Time, add func(*marks)) {
	if l.pending.empty() {
		l.markFrom = now.Add(markDelay)
	}
	add(&l.pending)
}

// startMark writes the outcomes so far beside the loop.
func (l *lane) startMark(ctx context.Context, now time.Time) {
	if l.marking || l.pending.empty() || now.Before(l.markRetry) {
		return
	}
	if now.Before(l.markFrom) && l.pending.size() < l.relay.cfg.Batch {
		return
	}
	l.marking = true
	todo := l.pending
	l.pending = marks{}
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.relay.cfg.Lease)
		defer cancel()
		done, err := l.marker.write(ctx, &todo)
		l.markDone <- markResult{done, todo, err}
	}()
}

// marked forgets what was recorded and keeps the rest.
func (l *lane) marked(res markResult) {
	l.marking = false
	if errors.Is(res.err, errLost) {
		l.lost.Store(true)
	} else if res.err != nil {
		l.relay.warnError(res.err)
		l.markRetry = time.Now().Add(retryDelay)
	}
	l.pending.sent = append(res.left.sent, l.pending.sent...)
	l.pending.failed = append(res.left.failed, l.pending.failed...)
	l.rescan = l.rescan || res.done.short
	for _, r := range res.done.sent {
		l.forgetSoon(r)
	}
	for _, f := range res.done.failed {
		if !f.park {
			l.rescanIn(f.delay)
		}
		l.forgetSoon(f.row)
	}
}

// forgetSoon drops a recorded row from memory, but not while a read is under
// way: its snapshot may still show the row as unsent.
func (l *lane) forgetSoon(r *row) {
	if l.reading {
		l.forgetAfterRead = append(l.forgetAfterRead, r)
		return
	}
	l.forget(r)
}

func (l *lane) forget(r *row) {
	l.win.forget(r)
	if blocker, blocked := l.win.blockerOf(r); r.skip && blocked && blocker == r.id {
		l.rescan = true
	}
}
