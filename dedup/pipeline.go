package dedup

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// QueuedClaim is a claim whose statements travel with others in one round
// trip. Not safe for concurrent use.
type QueuedClaim struct {
	in       *Inbox
	intent   Intent
	inserted bool
	row      row
	err      error
	ran      bool
}

// QueueClaim adds the claim's statements to b, typically right after a BEGIN.
// After the batch was sent and closed, QueuedClaim.Claim tells the outcome.
func (in *Inbox) QueueClaim(b *pgx.Batch, intent Intent) *QueuedClaim {
	q := &QueuedClaim{in: in, intent: intent}
	b.Queue(in.sql.claimInsert, in.insertArgs(intent)...).Exec(func(tag pgconn.CommandTag) error {
		q.inserted = tag.RowsAffected() == 1
		return nil
	})
	b.Queue(in.sql.claimRead, readArgs(intent)...).QueryRow(func(r pgx.Row) error {
		q.err = r.Scan(q.row.dest()...)
		q.ran = q.err == nil
		return q.err
	})
	return q
}

// ErrClaimAgain says that the row that made the claim wait vanished, by
// rollback or purge: claim again, in the same transaction or another one.
var ErrClaimAgain = errors.New("the row that made the claim wait vanished: claim again")

// Claim returns the outcome. batchErr is the error of sending and closing the
// batch. *BusyError and ErrClaimAgain are among the errors.
func (q *QueuedClaim) Claim(batchErr error) (Claim, error) {
	switch {
	case batchErr != nil:
		return Claim{}, q.in.claimError(q.intent.Key, batchErr)
	case !q.ran:
		return Claim{}, fmt.Errorf("claim key %s: the batch was not read to its end", q.intent.Key)
	}
	claim, ok := q.in.judge(q.intent, q.inserted, q.row)
	if !ok {
		return Claim{}, fmt.Errorf("claim key %s: %w", q.intent.Key, ErrClaimAgain)
	}
	return claim, nil
}

// QueueFinish adds what ends a Fresh claim to b: the result if there is one,
// and a check on the server that this is still the transaction of the claim.
// Queue COMMIT after it in the same batch: when the check fails the server
// skips what follows. *lost becomes true if it was this check that failed.
func (in *Inbox) QueueFinish(b *pgx.Batch, c Claim, result []byte, lost *bool) {
	if result != nil {
		b.Queue(in.sql.setResult, c.Intent.Key.uuid(), result)
	}
	b.Queue(claimAssert, c.XID).QueryRow(func(r pgx.Row) error {
		var one int
		err := r.Scan(&one)
		*lost = isDivisionByZero(err)
		return err
	})
}

func isDivisionByZero(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && pgErr.Code == "22012"
}
