package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/internal/pg"
)

// Finish stores the result of a Fresh claim, nil for none, and makes sure that
// tx is still the transaction that made the claim and that its commit will be
// durable; else it returns ErrClaimLost and the transaction is aborted. Call
// it last, right before the commit.
func (in *Inbox) Finish(ctx context.Context, tx Tx, c Claim, result []byte) error {
	if result != nil {
		if _, err := tx.Exec(ctx, in.sql.setResult, c.Intent.Key.uuid(), result); err != nil {
			return fmt.Errorf("store the result of key %s: %w", c.Intent.Key, err)
		}
	}
	var one int
	err := pg.QueryRow(ctx, tx, in.sql.claimAssert, in.assertArgs(c), &one)
	switch {
	case isDivisionByZero(err):
		return fmt.Errorf("finish key %s: %w", c.Intent.Key, ErrClaimLost)
	case err != nil:
		return fmt.Errorf("finish key %s: %w", c.Intent.Key, err)
	}
	return nil
}

// Hold turns a Fresh claim of this transaction into a held one: the message is
// kept in the database and its key is neither done nor free.
func (in *Inbox) Hold(ctx context.Context, tx Tx, c Claim, state State) error {
	if state != StateParked && state != StateDead {
		return fmt.Errorf("hold key %s: state %s is not a held state, use StateParked or StateDead", c.Intent.Key, state)
	}
	n, err := tx.Exec(ctx, in.sql.hold, c.Intent.Key.uuid(), int16(state))
	if err != nil {
		return fmt.Errorf("hold key %s: %w", c.Intent.Key, err)
	}
	if n != 1 {
		return fmt.Errorf("hold key %s: the claim is not there", c.Intent.Key)
	}
	return nil
}

// Record is an inbox row as Lookup returns it.
type Record struct {
	State       State
	Fingerprint Fingerprint
	// At is the later of the event's own time and the claim.
	At     time.Time
	Result []byte
}

// Lookup reads the row of a key without claiming it, and reports whether
// there is one. Its answer may be old the moment it is given: never run or
// skip an effect because of it.
func (in *Inbox) Lookup(ctx context.Context, db Tx, k Key) (Record, bool, error) {
	var r Record
	var sum []byte
	err := pg.QueryRow(ctx, db, in.sql.lookup, []any{k.uuid()}, (*int16)(&r.State), &r.Fingerprint.Version, &sum, &r.At, &r.Result)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Record{}, false, nil
	case err != nil:
		return Record{}, false, fmt.Errorf("look up key %s: %w", k, err)
	}
	copy(r.Fingerprint.Sum[:], sum)
	return r, true, nil
}
