package dedup

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// QueuedClaim is a claim whose statement travels with others in one round
// trip. Not safe for concurrent use.
type QueuedClaim struct {
	in       *Inbox
	intent   Intent
	row      freshRow
	inserted bool
	ran      bool
}

// QueueClaim adds the claim's statement to b, typically right after a BEGIN.
// After the batch was sent and closed, QueuedClaim.Claim tells the outcome.
func (in *Inbox) QueueClaim(b *pgx.Batch, intent Intent) *QueuedClaim {
	q := &QueuedClaim{in: in, intent: intent}
	b.Queue(in.sql.claimInsert, in.insertArgs(intent)...).QueryRow(func(r pgx.Row) error {
		err := r.Scan(q.row.dest()...)
		q.inserted = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		q.ran = err == nil
		return err
	})
	return q
}

// ErrTaken says that the key has a row: ask for the verdict with QueueVerdict,
// in the same transaction.
var ErrTaken = errors.New("the key is taken: read its row")

// Claim returns the outcome. batchErr is the error of sending and closing the
// batch. *BusyError and ErrTaken are among the errors.
func (q *QueuedClaim) Claim(batchErr error) (Claim, error) {
	switch {
	case batchErr != nil:
		return Claim{}, q.in.claimError(q.intent.Key, batchErr)
	case !q.ran:
		return Claim{}, fmt.Errorf("claim key %s: the batch was not read to its end", q.intent.Key)
	case !q.inserted:
		return Claim{}, fmt.Errorf("claim key %s: %w", q.intent.Key, ErrTaken)
	}
	return q.in.fresh(q.intent, q.row), nil
}

// QueuedVerdict is the second half of a claim that found its key taken.
type QueuedVerdict struct {
	in     *Inbox
	intent Intent
	row    storedRow
}

// QueueVerdict adds the statement that reads the row of a taken key to b. A
// ROLLBACK may follow it in the same batch.
func (in *Inbox) QueueVerdict(b *pgx.Batch, intent Intent) *QueuedVerdict {
	q := &QueuedVerdict{in: in, intent: intent}
	b.Queue(in.sql.claimRead, intent.Key.uuid()).QueryRow(func(r pgx.Row) error { return r.Scan(q.row.dest()...) })
	return q
}

// ErrClaimAgain says that the row that made the claim wait vanished, by
// rollback or purge: claim again, in the same transaction or another one.
var ErrClaimAgain = errors.New("the row that made the claim wait vanished: claim again")

// Claim returns the outcome. batchErr is the error of sending and closing the
// batch. ErrClaimAgain is among the errors.
func (q *QueuedVerdict) Claim(batchErr error) (Claim, error) {
	if batchErr != nil {
		return Claim{}, q.in.claimError(q.intent.Key, batchErr)
	}
	claim, found := stored(q.intent, q.row)
	if !found {
		return Claim{}, fmt.Errorf("claim key %s: %w", q.intent.Key, ErrClaimAgain)
	}
	return claim, nil
}

// QueueFinish adds what ends a Fresh claim to b: the result if there is one,
// and a check on the server that this is still the transaction of the claim.
// Queue COMMIT after it in the same batch: when the check fails the server
// skips what follows. *lost becomes true if it was this check that failed.
func (in *Inbox) QueueFinish(b *pgx.Batch, c Claim, result []byte, lost *bool) {
	in.QueueFinishSet(b, []Claim{c}, [][]byte{result}, lost)
}

func (in *Inbox) assertArgs(c Claim) []any {
	return []any{c.XID, c.Intent.Key.Operation, c.Intent.at()}
}

func isDivisionByZero(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && pgErr.Code == "22012"
}
