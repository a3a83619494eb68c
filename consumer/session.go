package consumer

import (
	"context"
	"errors"
	"sync"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// store begins transactions with a claim. It hides which driver is in use.
type store interface {
	// begin starts a transaction and claims intent in it. Unless the claim is
	// fresh, nothing is left open and the session is nil. *dedup.BusyError is
	// among the errors.
	begin(ctx context.Context, intent dedup.Intent) (session, dedup.Claim, error)
	// look returns the verdict on an intent whose key is taken, in one round
	// trip, and reports whether it is known to be.
	look(ctx context.Context, intent dedup.Intent) (dedup.Claim, bool, error)
	// check makes sure that the database is ready for this code.
	check(ctx context.Context) error
	// hold runs the statements that keep a message in a transaction of their
	// own, and commits.
	hold(ctx context.Context, h heldMessage) error
	// exhausted reports whether every connection of the pool is in use.
	exhausted() bool
}

// session is the transaction of one delivery.
type session interface {
	sender
	// lanes returns where the messages went that finish committed.
	lanes() outbox.Lanes
	// finish sends what is queued, stores the result, makes sure that this is
	// still the claim's transaction, and commits. *InDoubtError: the reply to
	// COMMIT was lost. After any other error nothing was committed; rollback
	// is still to be called.
	finish(ctx context.Context, claim dedup.Claim) error
	// rollback ends the transaction, if it is still open, and gives the
	// connection back. It is safe to call after finish and more than once.
	rollback(ctx context.Context)
	// lost reports whether the transaction's connection is gone.
	lost() bool
}

// sender takes the messages of one delivery.
type sender interface {
	// send takes the message that prepare returns, which leaves with the
	// commit, until the transaction ends. step is the number of the message in
	// the delivery: no two have the same.
	send(prepare func(step int) (outbox.Row, error)) error
}

// outgoing collects the messages of a delivery. Handlers may send from several
// goroutines; one that is late is told so.
type outgoing struct {
	mu     sync.Mutex
	rows   []outbox.Row
	closed bool
	wrote  outbox.Lanes // by outbox.Write and finish
}

var errSentLate = errors.New("the handler has returned, its transaction ended: send before returning")

func (o *outgoing) send(prepare func(step int) (outbox.Row, error)) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errSentLate
	}
	row, err := prepare(len(o.rows))
	if err != nil {
		return err
	}
	o.rows = append(o.rows, row)
	return nil
}

func (o *outgoing) lanes() outbox.Lanes { return o.wrote }

// close returns what was sent and takes nothing more.
func (o *outgoing) close() []outbox.Row {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	return o.rows
}

// claimLost explains dedup.ErrClaimLost to the author of a handler.
func claimLost() error {
	return errors.Join(dedup.ErrClaimLost, errors.New("the handler must not end the transaction (COMMIT, ROLLBACK) or lower synchronous_commit"))
}
