package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// trial is one transaction of a group.
type trial struct {
	group   *group
	members []*member
	wait    time.Duration // for a live rival
	shared  *pgxTx

	mu sync.Mutex // over what follows, while handlers run
	// parts are those whose claim is fresh, in the members' order.
	parts []*part
	// left are members that take no part any more. They get their outcome when
	// the transaction has ended, so that they don't meet their own claim, which
	// is among those taken back.
	left    []leaver
	without []dedup.Claim
	// culprit is the member that the trial's error is about, if it is known.
	culprit *member
	running *part     // whose handler runs
	since   time.Time // when it began
	cut     bool      // a handler ran for too long: what it does counts no more
}

// part is a member that takes part, with what it does.
type part struct {
	*member
	claim dedup.Claim
	work  work
}

func (p *part) cause() cause { return cause{p.claim.Intent.Key, p.msg.Metadata} }

type leaver struct {
	member *member
	outcome
}

// run returns nil when each member has its outcome: those that take part are
// committed.
func (t *trial) run() error {
	t.shared = &pgxTx{store: t.group.store}
	ctx, cancel := t.group.consumer.ending(context.Background())
	defer cancel()
	err := t.begin(ctx)
	if err == nil && len(t.parts) > 0 {
		err = t.effects()
	}
	if err == nil && len(t.parts) > 0 {
		err = t.commit()
	}
	if err != nil && t.culprit == nil && t.shared.lost() && classify(err) != inDoubt && !isContext(err) && !errors.Is(err, dedup.ErrClaimLost) {
		err = errors.Join(errConnectionLost, err)
	}
	if t.shared.conn != nil {
		ctx, cancel := t.group.consumer.ending(context.Background())
		defer cancel()
		t.shared.rollback(ctx)
	}
	for _, l := range t.left {
		l.member.end(l.outcome)
	}
	return err
}

// open returns the members without an outcome.
func (t *trial) open() []*member {
	var open []*member
	for _, m := range t.members {
		if !m.ended {
			open = append(open, m)
		}
	}
	return open
}

// begin begins the transaction with the claims of all members, in one round
// trip. Keys that are taken cost another one.
func (t *trial) begin(ctx context.Context) error {
	conn, err := t.group.store.acquire(ctx)
	if err != nil {
		return err
	}
	t.shared.conn = conn
	claims, err := t.claim(ctx)
	if err != nil {
		return t.shared.explainClaim(ctx, err)
	}
	for i, m := range t.members {
		switch c := claims[i]; c.Verdict {
		case dedup.Fresh:
			t.parts = append(t.parts, &part{member: m, claim: c, work: work{shared: t.shared}})
		case dedup.BeyondHorizon:
			t.left = append(t.left, leaver{m, outcome{claim: c}})
			t.without = append(t.without, c)
		case 0:
			t.left = append(t.left, leaver{m, outcome{err: fmt.Errorf("claim key %s: %w", m.intent.Key, dedup.ErrClaimAgain)}})
		default:
			t.left = append(t.left, leaver{m, outcome{claim: c}})
		}
	}
	return nil
}

func (t *trial) claim(ctx context.Context) ([]dedup.Claim, error) {
	inbox := t.group.store.inbox
	intents := make([]dedup.Intent, len(t.members))
	for i, m := range t.members {
		intents[i] = *m.intent
	}
	b := &pgx.Batch{}
	b.BeginTx(claimTx)
	queued := inbox.QueueClaims(b, intents, t.wait)
	results := t.shared.conn.SendBatch(ctx, b)
	t.shared.tx = results.Tx()
	claims, err := queued.Claims(results.Close())
	if err != nil {
		return nil, err
	}
	var taken []dedup.Intent
	for _, c := range claims {
		if c.Verdict == 0 {
			taken = append(taken, c.Intent)
		}
	}
	if len(taken) == 0 {
		return claims, nil
	}
	b = &pgx.Batch{}
	verdicts := inbox.QueueVerdicts(b, taken)
	if len(taken) == len(claims) {
		b.Queue("rollback")
	}
	found, err := verdicts.Claims(t.shared.conn.SendBatch(ctx, b).Close())
	if err != nil {
		return nil, err
	}
	for i := range claims {
		if claims[i].Verdict == 0 {
			claims[i], found = found[0], found[1:]
		}
	}
	return claims, nil
}

// cutGrace is how long past its deadline a handler may take to notice.
const cutGrace = time.Second

// effects runs the handlers. One that is past its deadline and does not notice
// loses its connection, and the group goes on without it.
func (t *trial) effects() error {
	t.starts(nil)
	finished := make(chan error, 1)
	go func() {
		var err error
		returned := false
		defer func() {
			if v := recover(); v != nil {
				err = t.fails(newPanicError(v, true))
			} else if !returned {
				err = t.fails(&PanicError{Goexit: true, Stack: debug.Stack()})
			}
			finished <- err
		}()
		if err = t.group.effects(t); err == nil {
			err = t.look()
		}
		returned = true
	}()
	limit := t.group.consumer.cfg.HandlerTimeout
	if limit < 0 {
		return <-finished
	}
	timer := time.NewTimer(limit + cutGrace)
	defer timer.Stop()
	for {
		select {
		case err := <-finished:
			return err
		case <-timer.C:
			left := t.cutAfter(limit + cutGrace)
			if left > 0 {
				timer.Reset(left)
				continue
			}
			t.shared.abandon(finished)
			return errLate()
		}
	}
}

// starts notes whose handler runs from now on.
func (t *trial) starts(p *part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running, t.since = p, time.Now()
}

// cutAfter takes the transaction away from a handler that ran for limit, and
// else returns what is left of it.
func (t *trial) cutAfter(limit time.Duration) (left time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if left = limit - time.Since(t.since); left > 0 {
		return left
	}
	t.cut = true
	if t.running != nil {
		t.culprit = t.running.member
	}
	for _, p := range t.parts {
		_, _ = p.work.end()
	}
	return 0
}

// perform runs the handler of one member.
func (t *trial) perform(p *part) error {
	t.starts(p)
	queue := &t.shared.queue
	before := len(queue.owners)
	err := t.group.consumer.perform(p.msg, &p.work, p.claim.Intent.Key, p.handler)
	p.work.ended.Store(true)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.cut:
		return context.DeadlineExceeded
	case t.shared.failed != nil: // whatever the handler says
		err = t.shared.failed
	case err == nil && p.work.refused != nil:
		err = p.work.refused
	case err == nil && p.work.used:
		err = t.shared.sound()
	}
	switch {
	case err == nil:
		return nil
	case t.shared.lost() && !isContext(err):
		return err
	case p.work.used:
		return t.blame(p, err)
	}
	// It did nothing yet in the database.
	queue.cut(before)
	t.leave(p, err)
	return nil
}

// look sends what was queued if results are to be looked at, in the goroutine
// of the handlers, since it is they who look.
func (t *trial) look() error {
	if !t.shared.queue.checked {
		return nil
	}
	t.starts(nil)
	ctx, cancel := t.group.consumer.ending(context.Background())
	defer cancel()
	err := t.shared.flush(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut {
		return context.DeadlineExceeded
	}
	return t.blame(nil, err)
}

// fails blames whose handler, or look at a result, runs for err.
func (t *trial) fails(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut {
		return err
	}
	p := t.running
	if w := t.shared.queue.looking; w != nil {
		p = t.partOf(w)
	}
	return t.blame(p, err)
}

// blame finds the culprit of err, which p's handler returned.
func (t *trial) blame(p *part, err error) error {
	var queued *QueuedError
	var anyones *anyonesError
	switch {
	case errors.As(err, &queued):
		p = t.partOf(queued.owner)
	case errors.As(err, &anyones):
		p = nil
	}
	if p != nil {
		t.culprit = p.member
	}
	return err
}

func (t *trial) partOf(w *work) *part {
	for _, p := range t.parts {
		if &p.work == w {
			return p
		}
	}
	return nil
}

// leave lets p take no part any more.
func (t *trial) leave(p *part, err error) {
	_, _ = p.work.end()
	t.left = append(t.left, leaver{p.member, outcome{err: err}})
	t.without = append(t.without, p.claim)
	rest := make([]*part, 0, len(t.parts))
	for _, other := range t.parts {
		if other != p {
			rest = append(rest, other)
		}
	}
	t.parts = rest
}

// commit ends the transaction and gives those that took part their outcome.
func (t *trial) commit() error {
	var rows []outbox.Row
	var wrote outbox.Lanes
	claims, results := make([]dedup.Claim, len(t.parts)), make([][]byte, len(t.parts))
	for i, p := range t.parts {
		sent, err := p.work.end()
		if err != nil {
			return t.blame(p, err)
		}
		rows = append(rows, sent...)
		wrote |= p.work.wrote
		claims[i], results[i] = p.claim, p.work.result
	}
	ctx, cancel := t.group.consumer.ending(context.Background())
	defer cancel()
	if err := t.shared.commit(ctx, rows, &wrote, claims, results, t.without); err != nil {
		return t.blame(nil, err)
	}
	t.group.consumer.counts.groups.Add(1)
	t.group.consumer.outbox.NotifyLanes(wrote)
	for _, p := range t.parts {
		p.end(outcome{claim: p.claim})
	}
	return nil
}

// endsAll reports whether err is nobody's fault, and would hit a part of the
// members as well.
func endsAll(err error) bool {
	kind := classify(err)
	return kind == inDoubt || kind == transient && !isContention(err) && !isContext(err) || errors.Is(err, errConnectionLost)
}

// isContext reports whether err is the end of a context.
func isContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
