package consumer

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedup"
)

// group runs the deliveries of one operation in shared transactions.
type group struct {
	consumer *Consumer
	op       operation
	store    *pgxStore
	size     int
	lanes    []*lane
	seed     maphash.Seed
	// effects runs the handlers of the parts of a trial.
	effects func(*trial) error
}

func newGroup(c *Consumer, op operation, effects func(*trial) error) *group {
	g := &group{consumer: c, op: op, store: c.store.(*pgxStore), size: c.cfg.GroupSize, seed: maphash.MakeSeed(), effects: effects}
	for range c.cfg.Lanes {
		g.lanes = append(g.lanes, &lane{group: g, bound: g.size})
	}
	return g
}

// do has a delivery processed in its group and returns its outcome. handler
// runs it if it comes to be alone.
func (g *group) do(msg *message.Message, intent *dedup.Intent, handler message.HandlerFunc) outcome {
	m := &member{msg: msg, handler: handler, intent: intent, id: intent.Key.InboxID(), outcome: make(chan outcome, 1)}
	if g.op.LaneKey != nil {
		m.lane = g.op.LaneKey(msg)
	}
	if m.lane == "" {
		m.lane = string(m.id[:])
	}
	l := g.lanes[maphash.String(g.seed, m.lane)%uint64(len(g.lanes))]
	if l.isAside(m) {
		g.consumer.slots <- struct{}{}
		defer func() { <-g.consumer.slots }()
		return outcome{final: true, err: g.consumer.claim(g.op, msg, intent, handler)}
	}
	l.add(m)
	return <-m.outcome
}

// run gives each member its outcome, with one connection at a time.
func (g *group) run(l *lane, members []*member) {
	g.consumer.slots <- struct{}{}
	defer func() { <-g.consumer.slots }()
	if len(members) == 1 {
		l.grow() // it says nothing about groups
	}
	g.settle(l, members, g.store.inbox.LockWait())
}

// probeWait is how long a group waits for a rival when it looks for the busy
// member: it was waited for before.
const probeWait = time.Millisecond

// settle commits the members together. One that fails leaves and the others
// run again; when it is not known which one it was, each half runs by itself.
// A member alone goes the way of deliveries without a group.
func (g *group) settle(l *lane, members []*member, wait time.Duration) {
	for {
		switch members = alive(members); {
		case len(members) == 0:
			return
		case len(members) == 1 && wait != probeWait:
			g.single(l, members[0])
			return
		}
		t := &trial{group: g, members: members, wait: wait}
		err := t.run()
		members = t.open()
		switch {
		case err == nil:
			l.grow()
			return
		case t.culprit == nil && endsAll(err):
			endAll(members, err)
			return
		case t.culprit != nil && !isContention(err):
			l.shrink(len(members))
			l.setAside(t.culprit)
			t.culprit.end(outcome{err: err})
			members = t.open()
		case isBusy(err):
			if wait = probeWait; len(members) == 1 {
				l.setAside(members[0])
				endAll(members, &dedup.BusyError{Key: members[0].intent.Key, Wait: g.store.inbox.LockWait()})
				return
			}
			members = g.half(l, members, wait)
		case len(members) == 1: // it is not the busy one
			g.single(l, members[0])
			return
		default:
			l.shrink(len(members))
			members = g.half(l, members, wait)
		}
	}
}

// half settles one half and returns the other one.
func (g *group) half(l *lane, members []*member, wait time.Duration) []*member {
	g.settle(l, members[:len(members)/2], wait)
	return members[len(members)/2:]
}

// single processes a member, and then each copy of it, in a transaction of its
// own. The lane goes on without a handler that is past its deadline and does
// not notice: it keeps its slot until it returns, and runs beside the lane next
// time.
func (g *group) single(l *lane, m *member) {
	copies := m.copies
	m.copies = nil
	var late <-chan time.Time
	if limit := g.consumer.cfg.HandlerTimeout; limit > 0 {
		timer := time.NewTimer(limit + cutGrace)
		defer timer.Stop()
		late = timer.C
	}
	ended := g.alone(m)
	select {
	case err := <-ended:
		m.end(outcome{final: true, err: err})
	case <-late:
		l.setAside(m)
		m.end(outcome{err: errLate()})
		go func() {
			<-ended //nolint:errcheck // The member has its outcome.
			<-g.consumer.slots
		}()
		g.consumer.slots <- struct{}{}
	}
	for _, c := range copies {
		g.single(l, c)
	}
}

// alone processes a member in a goroutine of its own, which its handler may
// end.
func (g *group) alone(m *member) <-chan error {
	ended := make(chan error, 1)
	go func() {
		var err error
		returned := false
		defer func() {
			if v := recover(); v != nil {
				err = newPanicError(v, true)
			} else if !returned {
				err = &PanicError{Goexit: true, Stack: debug.Stack()}
			}
			ended <- err
		}()
		err = g.consumer.claim(g.op, m.msg, m.intent, m.handler)
		returned = true
	}()
	return ended
}

func errLate() error {
	return fmt.Errorf("the handler went on for %s after its deadline: %w", cutGrace, context.DeadlineExceeded)
}

// alive ends the members whose message is given up, and returns the others.
func alive(members []*member) []*member {
	var rest []*member
	for _, m := range members {
		if err := m.msg.Context().Err(); err != nil {
			m.end(outcome{err: err})
			continue
		}
		rest = append(rest, m)
	}
	return rest
}

func endAll(members []*member, err error) {
	for _, m := range members {
		m.end(outcome{err: err})
	}
}

// isContention reports whether err comes from rivals in the database, so that
// the member whose statement got it is not to blame.
func isContention(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	return isBusy(err) || errors.As(err, &pgErr) && (pgErr.Code == "40001" || pgErr.Code == "40P01" || pgErr.Code == "55P03")
}

// oneByOne runs the members' handlers one after the other.
func oneByOne(t *trial) error {
	for _, p := range t.parts {
		if err := t.perform(p); err != nil {
			return err
		}
	}
	return nil
}
