package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// markDelay is how long a mark waits for others to share its statement.
	markDelay = 5 * time.Millisecond
	// retryDelay is the wait after a statement failed.
	retryDelay = 250 * time.Millisecond
	// readyDelay is how often a sink that is not ready is asked again.
	readyDelay = 50 * time.Millisecond
	// rescanEvery is the net under the generations: all rows are read again.
	rescanEvery = 5 * time.Minute
	// rescanRest is the rest after a rescan, in times of what it took: with
	// many failing rows one is always due, and new rows want their turn.
	rescanRest = 4
	// maxDoubts is how often a row in doubt is sent again from memory before
	// it is put off; doubtDelay is for how long.
	maxDoubts  = 3
	doubtDelay = 5 * time.Second
)

// lane sends the rows of one lane, for as long as the relay holds it. All
// state is owned by the goroutine in run; reads and marks happen beside it,
// one of each at a time.
type lane struct {
	relay  *Relay
	hold   hold
	leases leases
	reader reader
	marker marker
	win    *window
	drain  bool // end when nothing is left to send

	cancel   context.CancelFunc
	bell     chan struct{}
	finished chan struct{}
	deadline atomic.Int64 // end of the lease, on the relay's monotonic clock
	lost     atomic.Bool
	answers  answers

	reading, marking    bool
	wantRead, rescan    bool
	pollAt, rescanAt    time.Time
	rescanFrom          time.Time // no rescan before
	rescanBegan         time.Time // zero when none is under way
	readFrom            time.Time // no read before
	markFrom, markRetry time.Time // no mark before; markFrom yields to a full batch
	pending             marks
	again               []doubtful
	forgetAfterRead     []*row
	readDone            chan readResult
	markDone            chan markResult
}

type doubtful struct {
	row *row
	at  time.Time
}

func newLane(r *Relay, h hold, until time.Time, drain bool) *lane {
	l := &lane{
		relay: r, hold: h, leases: r.leases, win: newWindow(), drain: drain,
		reader:   reader{db: r.lanesDB, sql: r.sql, lane: h.lane},
		marker:   marker{db: r.lanesDB, sql: r.sql, hold: h, delete: r.cfg.DeleteSent},
		bell:     make(chan struct{}, 1),
		finished: make(chan struct{}),
		answers:  answers{bell: make(chan struct{}, 1)},
		readDone: make(chan readResult, 1),
		markDone: make(chan markResult, 1),
		rescan:   true,
	}
	l.leases.db = r.lanesDB
	l.extend(until)
	return l
}

// extend sets the time after which nothing is sent.
func (l *lane) extend(until time.Time) { l.deadline.Store(int64(until.Sub(l.relay.epoch))) }

func (l *lane) mayPublish(now time.Time) bool {
	return int64(now.Sub(l.relay.epoch)) < l.deadline.Load() && !l.lost.Load()
}

// run works until ctx ends, the lane is lost or, with drain, nothing is left.
// It gives the lane back.
func (l *lane) run(ctx context.Context) {
	defer close(l.finished)
	if _, err := l.relay.lanesDB.Exec(ctx, l.relay.sql.adopt, l.hold.lane); err != nil && ctx.Err() == nil {
		l.relay.warnError(fmt.Errorf("outbox: adopt rows of lane %d: %w", l.hold.lane, err))
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !l.lost.Load() && ctx.Err() == nil {
		l.step(ctx)
		if l.drain && l.idle() {
			break
		}
		timer.Reset(time.Until(l.nextEvent()))
		select {
		case <-ctx.Done():
		case <-l.answers.bell:
		case <-l.bell:
			l.wantRead = true
		case res := <-l.readDone:
			l.accept(res)
		case res := <-l.markDone:
			l.marked(res)
		case <-timer.C:
		}
	}
	l.finish(context.WithoutCancel(ctx))
}

// step does all that can be done now.
func (l *lane) step(ctx context.Context) {
	now := time.Now()
	l.takeAnswers(now)
	l.takeDue(now)
	l.publish(ctx)
	l.startRead(ctx, now)
	l.startMark(ctx, now)
}

func (l *lane) idle() bool {
	return !l.wantRead && !l.rescan && !l.reading && !l.marking && len(l.win.rows) == 0
}

// nextEvent is the next time at which something may have to be done.
func (l *lane) nextEvent() time.Time {
	next := l.pollAt
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	earlier(l.rescanAt)
	if len(l.again) > 0 {
		earlier(l.again[0].at)
	}
	if !l.pending.empty() && !l.marking {
		earlier(later(l.markFrom, l.markRetry))
	}
	if l.wantRead && !l.reading && l.hasRoom() {
		earlier(l.readFrom)
	}
	if l.rescan && !l.reading && !l.reader.open() {
		earlier(later(l.rescanFrom, l.readFrom))
	}
	if len(l.win.ready) > 0 && l.win.sent < l.relay.cfg.Window {
		earlier(time.Now().Add(readyDelay))
	}
	return next
}

// takeDue starts what the clock asks for.
func (l *lane) takeDue(now time.Time) {
	if !now.Before(l.pollAt) {
		l.wantRead = true
		l.pollAt = now.Add(l.relay.cfg.Poll)
	}
	if !l.rescanAt.IsZero() && !now.Before(l.rescanAt) {
		l.rescan, l.rescanAt = true, time.Time{}
	}
	for len(l.again) > 0 && !now.Before(l.again[0].at) {
		l.win.again(l.again[0].row)
		l.again = l.again[1:]
	}
}

// publish sends what is ready, as far as window, lease and sink allow.
func (l *lane) publish(ctx context.Context) {
	for len(l.win.ready) > 0 && l.win.sent < l.relay.cfg.Window && l.mayPublish(time.Now()) && l.relay.cfg.Sink.Ready() == nil {
		r := l.win.take()
		if r.missing {
			l.answers.put(r, &SendError{Unsendable, "the message is gone from the outbox table", nil})
			continue
		}
		l.relay.cfg.Sink.Send(ctx, &r.Message, func(err error) { l.answers.put(r, err) })
	}
}

// finish waits for answers that are under way, writes the marks and gives the
// lane back. Marks of sent rows need no lease.
func (l *lane) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.relay.cfg.Lease)
	defer cancel()
	timer := time.NewTimer(l.relay.cfg.StopWait)
	defer timer.Stop()
	for waiting := true; waiting && l.win.sent > 0 && l.relay.cfg.Sink.Ready() == nil; {
		select {
		case <-l.answers.bell:
			l.takeAnswers(time.Now())
		case <-timer.C:
			waiting = false
		}
	}
	l.takeAnswers(time.Now())
	if l.reading {
		l.accept(<-l.readDone)
	}
	if l.marking {
		l.marked(<-l.markDone)
	}
	if _, err := l.marker.write(ctx, &l.pending); err != nil && !errors.Is(err, errLost) {
		l.relay.warnError(err)
	}
	if err := l.leases.release(ctx, l.hold); err != nil {
		l.relay.warnError(err)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
