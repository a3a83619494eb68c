package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/internal/pg"
)

// Intent is what a claim is about.
type Intent struct {
	Key         Key
	Fingerprint Fingerprint
	// EventTime is when the producer says the event happened. Zero means the
	// time that the key's id carries (UUIDv7, ULID), if any. Never the
	// broker's publish time: republishing renews it.
	EventTime time.Time
}

// eventTime returns the producer's time of the event, zero if unknown.
func (i Intent) eventTime() time.Time {
	if i.EventTime.IsZero() {
		t, _ := i.Key.Time()
		return t
	}
	return i.EventTime
}

// Verdict is what a claim found.
type Verdict int

// The verdicts. The zero value is none of them.
const (
	// Fresh: the row is ours; run the effect in this transaction and commit.
	Fresh Verdict = iota + 1
	// Done: the effect is committed; don't run.
	Done
	// Held: the message is parked or dead; don't run.
	Held
	// Conflict: the key came before with another payload; don't run.
	Conflict
	// BeyondHorizon: the event is too old to be told from a duplicate, or its
	// time is ahead of the clock; don't run, roll back.
	BeyondHorizon
)

// String returns the verdict's name, as used in logs.
func (v Verdict) String() string {
	switch v {
	case Fresh:
		return "fresh"
	case Done:
		return "done"
	case Held:
		return "held"
	case Conflict:
		return "conflict"
	case BeyondHorizon:
		return "beyond horizon"
	default:
		return "unknown"
	}
}

// State is the state of an inbox row.
type State int16

// The states of an inbox row.
const (
	StateDone   State = 1
	StateParked State = 2
	StateDead   State = 3
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case StateDone:
		return "done"
	case StateParked:
		return "parked"
	case StateDead:
		return "dead"
	default:
		return "unknown"
	}
}

// Claim is the outcome of a claim. It is valid only if the transaction that
// made it commits.
type Claim struct {
	Intent  Intent
	Verdict Verdict
	// State is that of the existing row; 0 if the verdict is Fresh or
	// BeyondHorizon.
	State State
	// Result is the stored answer of a Done intent, nil if none.
	Result []byte
	// XID is the id of the transaction that made the claim, "" if it has
	// written nothing yet.
	XID string

	horizon *HorizonError
}

// Err returns nil for a Fresh claim, else the verdict as an error:
// *DuplicateError, *HeldError, *ConflictError or *HorizonError.
func (c Claim) Err() error {
	switch c.Verdict {
	case Fresh:
		return nil
	case Done:
		return &DuplicateError{Key: c.Intent.Key, Result: c.Result}
	case Held:
		return &HeldError{Key: c.Intent.Key, State: c.State}
	case Conflict:
		return &ConflictError{Key: c.Intent.Key, Fingerprint: c.Intent.Fingerprint}
	case BeyondHorizon:
		return c.horizon
	default:
		return fmt.Errorf("key %s: no verdict", c.Intent.Key)
	}
}

// maxClaims bounds how often a claim is repeated when its row was neither
// inserted nor found: a rival's row vanished in between, by rollback or purge.
// Each repetition needs another rival, so a few are plenty.
const maxClaims = 5

var errVanished = errors.New("the row that made the claim wait vanished again and again; try again later")

// Claim claims one intent in the caller's transaction, which must be READ
// COMMITTED and must not have failed. It waits for a live rival at most
// LockWait; then it returns a *BusyError and the transaction is aborted.
// With any verdict but Fresh the effect must not run; with BeyondHorizon the
// transaction must be rolled back.
func (in *Inbox) Claim(ctx context.Context, tx Tx, intent Intent) (Claim, error) {
	for range maxClaims {
		inserted, err := tx.Exec(ctx, in.sql.claimInsert, in.insertArgs(intent)...)
		if err != nil {
			return Claim{}, in.claimError(intent.Key, err)
		}
		var r row
		if err := pg.QueryRow(ctx, tx, in.sql.claimRead, readArgs(intent), r.dest()...); err != nil {
			return Claim{}, in.claimError(intent.Key, err)
		}
		if claim, ok := in.judge(intent, inserted == 1, r); ok {
			return claim, nil
		}
	}
	return Claim{}, in.claimError(intent.Key, errVanished)
}

func (in *Inbox) insertArgs(i Intent) []any {
	var at *time.Time
	if t := i.eventTime(); !t.IsZero() {
		at = &t
	}
	return []any{i.Key.uuid(), i.Fingerprint.Version, i.Fingerprint.Sum[:], at, i.Key.Scope, i.Key.Operation, in.lockBound()}
}

func readArgs(i Intent) []any { return []any{i.Key.uuid(), i.Key.Operation} }

// claimError explains an error of the claim's statements.
func (in *Inbox) claimError(k Key, err error) error {
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "55P03" {
		return &BusyError{Key: k, Wait: in.lockWait}
	}
	return fmt.Errorf("claim key %s: %w", k, err)
}

// row is what claimRead returns.
type row struct {
	state         *int16
	version       *int32
	sum           []byte
	result        []byte
	xid           *string
	now           time.Time
	floor         *time.Time
	bound, raised *string
}

func (r *row) dest() []any {
	return []any{&r.state, &r.version, &r.sum, &r.result, &r.xid, &r.now, &r.floor, &r.bound, &r.raised}
}

// judge turns what the two statements returned into a verdict. It reports
// false when there was neither an insert nor a row: claim again.
func (in *Inbox) judge(intent Intent, inserted bool, r row) (Claim, bool) {
	c := Claim{Intent: intent}
	if r.xid != nil {
		c.XID = *r.xid
	}
	if inserted {
		c.Verdict = Fresh
		if c.horizon = in.outside(intent, r); c.horizon != nil {
			c.Verdict = BeyondHorizon
		}
		return c, true
	}
	if r.state == nil || r.version == nil {
		return c, false
	}
	stored := Fingerprint{Version: *r.version}
	copy(stored.Sum[:], r.sum)
	c.State = State(*r.state)
	switch {
	case intent.Fingerprint.Compare(stored) == Different:
		c.Verdict = Conflict
	case c.State == StateDone:
		c.Verdict, c.Result = Done, r.result
	default:
		c.Verdict = Held
	}
	return c, true
}

// outside returns an error if the event's own time is not within the span in
// which a missing row means that the event is new.
func (in *Inbox) outside(intent Intent, r row) *HorizonError {
	at := intent.eventTime()
	if at.IsZero() {
		return nil
	}
	if limit := r.now.Add(in.skew); in.skew >= 0 && at.After(limit) {
		return &HorizonError{Key: intent.Key, EventTime: at, Limit: limit, Ahead: true}
	}
	var floor time.Time
	if r.floor != nil {
		floor = *r.floor
	}
	if retention := in.Retention(intent.Key.Operation); retention >= 0 && r.now.Add(-retention).After(floor) {
		floor = r.now.Add(-retention)
	}
	if at.Before(floor) {
		return &HorizonError{Key: intent.Key, EventTime: at, Limit: floor}
	}
	return nil
}
