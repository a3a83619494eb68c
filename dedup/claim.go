package dedup

import (
	"context"
	"database/sql"
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
	// XID is the id of the transaction that made the claim, "" unless its row
	// was inserted.
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
		var f freshRow
		err := pg.QueryRow(ctx, tx, in.sql.claimInsert, in.insertArgs(intent), f.dest()...)
		if err == nil {
			return in.fresh(intent, f), nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return Claim{}, in.claimError(intent.Key, err)
		}
		var r storedRow
		if err := pg.QueryRow(ctx, tx, in.sql.claimRead, []any{intent.Key.uuid()}, r.dest()...); err != nil {
			return Claim{}, in.claimError(intent.Key, err)
		}
		if claim, found := stored(intent, r); found {
			return claim, nil
		}
	}
	return Claim{}, in.claimError(intent.Key, errVanished)
}

// Look returns the verdict that a claim of the intent would give, if its key has
// a committed row, and reports whether it has one. It costs less than a claim of
// what is a duplicate, and needs no transaction. A row that is found says what a
// claim at that moment would have said. None found says nothing: claim.
func (in *Inbox) Look(ctx context.Context, db Tx, intent Intent) (Claim, bool, error) {
	var r storedRow
	switch err := pg.QueryRow(ctx, db, in.sql.claimLook, []any{intent.Key.uuid()}, r.dest()...); {
	case errors.Is(err, sql.ErrNoRows):
		return Claim{}, false, nil
	case err != nil:
		return Claim{}, false, fmt.Errorf("look for key %s: %w", intent.Key, err)
	}
	claim, found := stored(intent, r)
	return claim, found, nil
}

// at is the event's time as an argument, nil if unknown.
func (i Intent) at() *time.Time {
	t := i.eventTime()
	if t.IsZero() {
		return nil
	}
	return &t
}

func (in *Inbox) insertArgs(i Intent) []any {
	return []any{i.Key.uuid(), i.Fingerprint.Version, i.Fingerprint.Sum[:], i.at(), i.Key.Scope, i.Key.Operation, lockBound(in.lockWait)}
}

// claimError explains an error of the claim's statements.
func (in *Inbox) claimError(k Key, err error) error {
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "55P03" {
		return &BusyError{Key: k, Wait: in.lockWait}
	}
	return fmt.Errorf("claim key %s: %w", k, err)
}

// freshRow is what claimInsert returns.
type freshRow struct {
	xid           string
	now           time.Time
	floor         *time.Time
	bound, raised *string
}

func (f *freshRow) dest() []any { return []any{&f.xid, &f.now, &f.floor, &f.bound, &f.raised} }

// fresh is the claim of an intent whose row was inserted.
func (in *Inbox) fresh(intent Intent, f freshRow) Claim {
	c := Claim{Intent: intent, Verdict: Fresh, XID: f.xid}
	if c.horizon = in.outside(intent, f.now, f.floor); c.horizon != nil {
		c.Verdict = BeyondHorizon
	}
	return c
}

// storedRow is what claimRead returns.
type storedRow struct {
	state   *int16
	version *int32
	sum     []byte
	result  []byte
	bound   *string
}

func (r *storedRow) dest() []any { return []any{&r.state, &r.version, &r.sum, &r.result, &r.bound} }

// stored turns a row into a verdict. It reports false when there is none: the
// row that made the claim wait is gone, claim again.
func stored(intent Intent, r storedRow) (Claim, bool) {
	if r.state == nil || r.version == nil {
		return Claim{}, false
	}
	fingerprint := Fingerprint{Version: *r.version}
	copy(fingerprint.Sum[:], r.sum)
	c := Claim{Intent: intent, State: State(*r.state)}
	switch {
	case intent.Fingerprint.Compare(fingerprint) == Different:
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
func (in *Inbox) outside(intent Intent, now time.Time, raised *time.Time) *HorizonError {
	at := intent.eventTime()
	if at.IsZero() {
		return nil
	}
	if limit := now.Add(in.skew); in.skew >= 0 && at.After(limit) {
		return &HorizonError{Key: intent.Key, EventTime: at, Limit: limit, Ahead: true}
	}
	var floor time.Time
	if raised != nil {
		floor = *raised
	}
	if retention := in.Retention(intent.Key.Operation); retention >= 0 && now.Add(-retention).After(floor) {
		floor = now.Add(-retention)
	}
	if at.Before(floor) {
		return &HorizonError{Key: intent.Key, EventTime: at, Limit: floor}
	}
	return nil
}
