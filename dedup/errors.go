package dedup

import (
	"errors"
	"fmt"
	"time"
)

// DuplicateError says that the intent is done: its effect is committed and
// must not run again.
type DuplicateError struct {
	Key Key
	// Result is the stored answer, nil if none was stored.
	Result []byte
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("key %s: already done", e.Key)
}

// HeldError says that the database owns the message already: it is parked or
// dead, and only its replay may run it.
type HeldError struct {
	Key   Key
	State State
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("key %s: held (%s); replay the held message instead", e.Key, e.State)
}

// ConflictError says that the key was used before with another payload. The
// message is not processed and not merged. It is permanent.
type ConflictError struct {
	Key Key
	// Fingerprint is that of the refused payload.
	Fingerprint Fingerprint
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("key %s: conflict: the same key came before with another payload; give a new intent a new id", e.Key)
}

// Permanent reports true: no later try can succeed.
func (e *ConflictError) Permanent() bool { return true }

// BusyError says that a live rival holds the claim and did not finish within
// the bound. The transaction is aborted: roll it back and come again later.
type BusyError struct {
	Key Key
	// Wait is the bound that passed.
	Wait time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("key %s: busy: another transaction has held the claim for more than %s", e.Key, e.Wait)
}

// HorizonError says that the event's own time is outside the time span in
// which duplicates can be told from new events. The message is not processed.
// It is permanent.
type HorizonError struct {
	Key Key
	// EventTime is the producer's time of the event.
	EventTime time.Time
	// Limit is the time that it is before (or, if Ahead, after).
	Limit time.Time
	// Ahead says that the time is in the future.
	Ahead bool
}

func (e *HorizonError) Error() string {
	if e.Ahead {
		return fmt.Sprintf("key %s: event time %s is after %s: correct the producer's clock", e.Key, e.EventTime.UTC().Format(time.RFC3339), e.Limit.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("key %s: beyond horizon: event time %s is before %s, so its inbox row may have been purged and the effect may be done", e.Key, e.EventTime.UTC().Format(time.RFC3339), e.Limit.UTC().Format(time.RFC3339))
}

// Permanent reports true: the event only gets older, and a time ahead is a
// fault of the producer.
func (e *HorizonError) Permanent() bool { return true }

// ErrClaimLost says that the transaction at its end is not the one that made
// the claim, that its commit would not be durable, or that the horizon moved
// past the event meanwhile: something in between ended the transaction or
// lowered synchronous_commit, or a purge ran. Nothing was committed by the
// call that returned it.
var ErrClaimLost = errors.New("the claim does not hold any more: its transaction was ended, synchronous_commit lowered, or the horizon moved past the event")
