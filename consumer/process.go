package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/dedup"
)

// handle processes one delivery and settles it. It never leaves anything for
// the Router to publish.
func (c *Consumer) handle(op operation, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	returned := false
	defer func() {
		if !returned {
			// runtime.Goexit: nobody will get an error, so settle here.
			_ = c.settle(op, msg, &PanicError{Goexit: true, Stack: debug.Stack()})
			msg.Nack()
		}
	}()
	err := c.process(op, msg, h)
	returned = true
	return nil, c.settle(op, msg, err)
}

// process returns nil when the message may be acked: its outcome is durable.
func (c *Consumer) process(op operation, msg *message.Message, h message.HandlerFunc) (err error) {
	defer func() {
		if v := recover(); v != nil { // The Router would log the value.
			err = newPanicError(v, true)
		}
	}()
	ctx := msg.Context()
	if op.group == nil {
		select {
		case c.slots <- struct{}{}:
			defer func() { <-c.slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := c.Check(ctx); err != nil {
		return err
	}
	intent, reason, err := c.intent(op, msg)
	switch {
	case isClosed(msg.Acked()):
		return c.keep(op, msg, intent, ReasonAckedEarly, errAckedEarly)
	case err != nil && dedup.IsPermanent(err):
		return c.keep(op, msg, nil, reason, err)
	case err != nil:
		return err
	case op.group != nil:
		return c.outcome(op, msg, intent, op.group.do(msg, intent, h))
	}
	return c.claim(op, msg, intent, h)
}

// outcome is process for a member of a group.
func (c *Consumer) outcome(op operation, msg *message.Message, intent *dedup.Intent, o outcome) error {
	switch {
	case o.final:
		return o.err
	case o.err != nil:
		return c.failed(op, msg, intent, o.err)
	}
	return c.verdict(op, msg, intent, o.claim)
}

// verdict acts on the verdict of a claim whose effect needs nothing more.
func (c *Consumer) verdict(op operation, msg *message.Message, intent *dedup.Intent, claim dedup.Claim) error {
	switch claim.Verdict {
	case dedup.Fresh:
		c.counts.done.Add(1)
	case dedup.Done:
		c.counts.duplicates.Add(1)
	case dedup.Conflict:
		return c.keep(op, msg, intent, ReasonConflict, claim.Err())
	case dedup.BeyondHorizon:
		return c.keep(op, msg, intent, ReasonBeyondHorizon, claim.Err())
	default:
		c.counts.held.Add(1)
	}
	return nil
}

// failed keeps a message whose effect failed for good, and else returns err.
func (c *Consumer) failed(op operation, msg *message.Message, intent *dedup.Intent, err error) error {
	switch {
	case errors.Is(err, errAckedEarly):
		return c.keep(op, msg, intent, ReasonAckedEarly, err)
	case classify(err) == permanent:
		return c.keep(op, msg, intent, ReasonPermanent, err)
	case errors.Is(err, dedup.ErrClaimLost):
		if beyond := c.beyondHorizon(msg.Context(), *intent); beyond != nil {
			return c.keep(op, msg, intent, ReasonBeyondHorizon, beyond)
		}
	}
	return err
}

// claim makes the claim and acts on its verdict.
func (c *Consumer) claim(op operation, msg *message.Message, intent *dedup.Intent, h message.HandlerFunc) error {
	if c.repeats.expected() {
		claim, found, err := c.store.look(msg.Context(), *intent)
		if err != nil {
			return err
		}
		if found {
			return c.verdict(op, msg, intent, claim)
		}
	}
	s, claim, err := c.store.begin(msg.Context(), *intent)
	if err != nil {
		return err
	}
	c.repeats.count(claim)
	if claim.Verdict != dedup.Fresh {
		return c.verdict(op, msg, intent, claim)
	}
	end := func() {
		ctx, cancel := c.ending(msg.Context())
		defer cancel()
		s.rollback(ctx)
	}
	returned := false
	defer func() {
		if !returned { // runtime.Goexit, or a panic outside of the handler
			end()
		}
	}()
	err = c.effect(msg, s, claim, h)
	returned = true
	if err == nil {
		return c.verdict(op, msg, intent, claim)
	}
	if s.lost() && classify(err) != inDoubt && !errors.Is(err, dedup.ErrClaimLost) {
		err = errors.Join(errConnectionLost, err)
	}
	end()
	return c.failed(op, msg, intent, err)
}

// beyondHorizon claims an intent anew whose claim was lost, for the verdict
// only, and returns an error if the horizon moved past the event meanwhile.
func (c *Consumer) beyondHorizon(ctx context.Context, intent dedup.Intent) error {
	ctx, cancel := c.ending(ctx)
	defer cancel()
	s, claim, err := c.store.begin(ctx, intent)
	if s != nil {
		s.rollback(ctx)
	}
	if err != nil || claim.Verdict != dedup.BeyondHorizon {
		return nil
	}
	return claim.Err()
}

// effect runs the handler and commits.
func (c *Consumer) effect(msg *message.Message, s session, claim dedup.Claim, h message.HandlerFunc) error {
	if err := c.perform(msg, s, claim.Intent.Key, h); err != nil {
		return c.explainTimeout(err)
	}
	commit, cancel := c.ending(msg.Context())
	defer cancel()
	if err := s.finish(commit, claim); err != nil {
		return err
	}
	c.outbox.NotifyLanes(s.lanes())
	return nil
}

// perform runs the handler on s and takes what it sends.
func (c *Consumer) perform(msg *message.Message, s sender, key dedup.Key, h message.HandlerFunc) error {
	ctx := context.WithValue(msg.Context(), sessionKey{}, s)
	from := cause{key, msg.Metadata}
	ctx = context.WithValue(ctx, causeKey{}, from)
	if c.cfg.HandlerTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.HandlerTimeout)
		defer cancel()
	}
	own := copyMessage(ctx, msg)
	produced, err := runHandler(own, h)
	if err == nil {
		err = checkSettled(msg, own)
	}
	if err == nil {
		err = c.sendAll(s, from, message.PublishTopicFromCtx(ctx), produced)
	}
	return err
}

// ending is the context of a commit or rollback: it has a deadline of its own
// and does not end with the message's context, which Watermill cancels when
// the Router closes.
func (c *Consumer) ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.cfg.CommitTimeout)
}

// copyMessage gives the handler a message of its own: what it changes is not
// in what is held, and its acks reach nobody.
func copyMessage(ctx context.Context, msg *message.Message) *message.Message {
	own := msg.Copy()
	own.Payload = append(message.Payload(nil), msg.Payload...)
	own.SetContext(ctx)
	return own
}

// runHandler turns a panic into an error.
func runHandler(msg *message.Message, h message.HandlerFunc) (produced []*message.Message, err error) {
	defer func() {
		if v := recover(); v != nil {
			produced, err = nil, newPanicError(v, false)
		}
	}()
	return h(msg)
}

// newPanicError is called by a deferred function, when the stack is still there.
func newPanicError(value any, config bool) *PanicError {
	return &PanicError{Config: config, Kind: fmt.Sprintf("%T", value), Stack: debug.Stack()}
}

var (
	errAckedEarly = errors.New("the message was acked before its effect was durable; remove InstantAck and other early acks from around the handler")
	errSettled    = errors.New("the handler acked or nacked the message; return nil or an error instead")
)

// checkSettled makes sure that nobody settled the message before its outcome
// is durable.
func checkSettled(msg, own *message.Message) error {
	switch {
	case isClosed(msg.Acked()):
		return errAckedEarly
	case isClosed(own.Acked()), isClosed(own.Nacked()), isClosed(msg.Nacked()):
		return errSettled
	}
	return nil
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// explainTimeout says so when a handler ran out of time while all connections
// of the pool were taken.
func (c *Consumer) explainTimeout(err error) error {
	if errors.Is(err, context.DeadlineExceeded) && c.store.exhausted() {
		return fmt.Errorf("every connection of the pool is in use; a handler that needs one besides its transaction (tx) needs a pool larger than Concurrency: %w", err)
	}
	return err
}
