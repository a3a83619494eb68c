package consumer

import (
	"cmp"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/dedup"
)

// member is a delivery that waits for a group.
type member struct {
	msg     *message.Message
	handler message.HandlerFunc // runs it alone
	intent  *dedup.Intent
	id      [16]byte // of the inbox row
	lane    string   // key
	outcome chan outcome
	// copies have the same key: they learn what became of this one.
	copies []*member
	ended  bool // it has its outcome
}

// outcome is what became of a member.
type outcome struct {
	// err is why it failed. final: the error was looked at, and what is to be
	// held is.
	err   error
	final bool
	// claim has the verdict if it did not fail: Fresh means that its effect is
	// committed.
	claim dedup.Claim
}

// end answers the member, and those of its copies that it answers too.
func (m *member) end(o outcome) {
	m.outcome <- o
	m.ended = true
	for _, c := range m.copies {
		c.outcome <- c.after(o)
	}
	m.copies = nil
}

// after is the outcome of a copy: done if the first one is, and else to come
// again, since the first one may still be on its way.
func (m *member) after(first outcome) outcome {
	switch {
	case first.err != nil, first.final, first.claim.Verdict == dedup.BeyondHorizon:
		return outcome{err: dedup.ErrClaimAgain}
	case m.differs(first) && first.claim.Verdict == dedup.Conflict:
		return outcome{err: dedup.ErrClaimAgain}
	case m.differs(first):
		return outcome{claim: dedup.Claim{Intent: *m.intent, Verdict: dedup.Conflict, State: dedup.StateDone}}
	case first.claim.Verdict == dedup.Fresh:
		return outcome{claim: dedup.Claim{Intent: *m.intent, Verdict: dedup.Done, State: dedup.StateDone}}
	}
	return outcome{claim: dedup.Claim{Intent: *m.intent, Verdict: first.claim.Verdict, State: first.claim.State}}
}

// differs reports whether m has another payload than the first of its key.
func (m *member) differs(first outcome) bool {
	return first.claim.Intent.Fingerprint.Compare(m.intent.Fingerprint) == dedup.Different
}

// lane runs its members in shared transactions, one at a time: those that
// wait when it gets to them, up to a bound, without waiting for more.
type lane struct {
	group *group

	mu      sync.Mutex
	waiting []*member
	running bool

	alone recent // keys that held up their group

	bound int // most members of the next group; the running goroutine's
}

// add makes m wait, and starts the lane if it rests.
func (l *lane) add(m *member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, m)
	l.group.consumer.counts.waiting.Add(1)
	if !l.running {
		l.running = true
		go l.work()
	}
}

// work runs groups until nobody waits.
func (l *lane) work() {
	for {
		members := l.take()
		if members == nil {
			return
		}
		l.group.run(l, members)
	}
}

// take returns the next group: members of one scope with different keys,
// sorted by lane key. Copies go with their first; what does not fit waits on.
// With none it ends the lane's goroutine.
func (l *lane) take() []*member {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running = len(l.waiting) > 0; !l.running {
		return nil
	}
	var taken []*member
	rest := l.waiting[:0:0]
	first := make(map[[16]byte]*member, min(len(l.waiting), l.bound))
	scope := l.waiting[0].intent.Key.Scope
	for i, m := range l.waiting {
		if len(taken) == l.bound {
			rest = append(rest, l.waiting[i:]...)
			break
		}
		switch f := first[m.id]; {
		case f != nil:
			f.copies = append(f.copies, m)
		case m.intent.Key.Scope != scope:
			rest = append(rest, m)
		default:
			first[m.id] = m
			taken = append(taken, m)
		}
	}
	l.group.consumer.counts.waiting.Add(int64(len(rest) - len(l.waiting)))
	l.waiting = rest
	slices.SortStableFunc(taken, func(a, b *member) int { return cmp.Compare(a.lane, b.lane) })
	return taken
}

// grow and shrink adapt the bound: groups that fail are run again in part, so
// that small ones cost less while many fail.
func (l *lane) grow() { l.bound = min(l.bound+l.bound/4+1, l.group.size) }

func (l *lane) shrink(n int) { l.bound = max(n/2, 1) }

// setAside lets the next deliveries of m run alone.
func (l *lane) setAside(m *member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alone.add(m.id)
}

func (l *lane) isAside(m *member) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alone.has(m.id)
}

// recent remembers the last keys that it was given.
type recent struct {
	ids  map[[16]byte]bool
	ring [][16]byte
	next int
}

// maxRecent bounds what a lane remembers: more keys than that are seldom in
// trouble at a time, and one that is forgotten costs its group a second run.
const maxRecent = 256

func (r *recent) has(id [16]byte) bool { return r.ids[id] }

func (r *recent) add(id [16]byte) {
	if r.ids == nil {
		r.ids = make(map[[16]byte]bool)
	}
	if r.ids[id] {
		return
	}
	if len(r.ring) < maxRecent {
		r.ring = append(r.ring, id)
	} else {
		delete(r.ids, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % maxRecent
	}
	r.ids[id] = true
}
