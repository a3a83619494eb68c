package dedup

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// QueuedClaims is [QueuedClaim] for several intents. Not safe for concurrent
// use.
type QueuedClaims struct {
	in      *Inbox
	intents []Intent
	ids     []string // of the intents
	row     freshRow
	// inserted are the ids of the rows that went in, nil if all did.
	inserted []string
	ran      bool
}

// QueueClaims adds the statement that claims the intents to b, typically right
// after a BEGIN: one insert in id order, so that sets that share keys do not
// deadlock. The intents must be of one scope and operation and have different
// keys. wait bounds the wait for a live rival, as InboxConfig.LockWait does.
func (in *Inbox) QueueClaims(b *pgx.Batch, intents []Intent, wait time.Duration) *QueuedClaims {
	n := len(intents)
	q := &QueuedClaims{in: in, intents: intents, ids: make([]string, n)}
	versions, sums, times := make([]int32, n), make([][]byte, n), make([]*time.Time, n)
	for i := range intents {
		q.ids[i], times[i] = intents[i].Key.uuid(), intents[i].at()
		versions[i], sums[i] = intents[i].Fingerprint.Version, intents[i].Fingerprint.Sum[:]
	}
	of := intents[0].Key
	b.Queue(in.sql.claimGroup, q.ids, versions, sums, times, of.Scope, of.Operation, lockBound(wait)).QueryRow(func(r pgx.Row) error {
		q.ran = true
		return r.Scan(append([]any{&q.inserted}, q.row.dest()...)...)
	})
	return q
}

// Claims returns the claims in the order of the intents. Those that are not
// Fresh or BeyondHorizon have no verdict: their key is taken, ask with
// QueueVerdicts in the same transaction. batchErr is the error of sending and
// closing the batch. A busy rival of any member is a *BusyError with an empty
// key.
//
// A claim that is BeyondHorizon must not be committed: see QueueUnclaim.
func (q *QueuedClaims) Claims(batchErr error) ([]Claim, error) {
	switch {
	case batchErr != nil:
		return nil, q.in.claimError(Key{}, batchErr)
	case !q.ran:
		return nil, fmt.Errorf("claim %d keys: the batch was not read to its end", len(q.intents))
	}
	fresh := make(map[string]bool, len(q.inserted))
	for _, id := range q.inserted {
		fresh[id] = true
	}
	claims := make([]Claim, len(q.intents))
	for i, intent := range q.intents {
		claims[i] = Claim{Intent: intent}
		if q.inserted == nil || fresh[q.ids[i]] {
			claims[i] = q.in.fresh(intent, q.row)
		}
	}
	return claims, nil
}

// QueuedVerdicts is [QueuedVerdict] for several intents.
type QueuedVerdicts struct {
	in     *Inbox
	claims []Claim
	next   int
}

// QueueVerdicts adds the statement that reads the rows of taken keys to b.
func (in *Inbox) QueueVerdicts(b *pgx.Batch, intents []Intent) *QueuedVerdicts {
	q := &QueuedVerdicts{in: in, claims: make([]Claim, len(intents))}
	b.Queue(in.sql.claimReadMany, setReadArgs(intents, places(len(intents)))...).Query(func(rows pgx.Rows) error {
		var r storedRow
		var f freshRow
		_, err := pgx.ForEachRow(rows, append(r.dest(), f.dest()...), func() error {
			claim, found := stored(intents[q.next], r)
			if !found {
				claim = Claim{Intent: intents[q.next]}
			}
			q.claims[q.next] = claim
			q.next++
			return nil
		})
		return err
	})
	return q
}

// Claims returns the claims in the order of the intents. One without a verdict
// means that the row vanished: claim again. batchErr is the error of sending
// and closing the batch.
func (q *QueuedVerdicts) Claims(batchErr error) ([]Claim, error) {
	if batchErr != nil {
		return nil, q.in.claimError(Key{}, batchErr)
	}
	if q.next != len(q.claims) {
		return nil, fmt.Errorf("read the rows of %d keys: the batch was not read to its end", len(q.claims))
	}
	return q.claims, nil
}

// QueueUnclaim adds a statement to b that takes back claims of this
// transaction whose effects are not part of it, as if they had not been made.
func (in *Inbox) QueueUnclaim(b *pgx.Batch, claims []Claim) {
	ids := make([]string, len(claims))
	for i, c := range claims {
		ids[i] = c.Intent.Key.uuid()
	}
	b.Queue(in.sql.unclaim, ids)
}

// QueueFinishSet adds what ends Fresh claims of one transaction and operation
// to b: a result for each claim that has one, then the check of
// [Inbox.QueueFinish] for all of them.
func (in *Inbox) QueueFinishSet(b *pgx.Batch, claims []Claim, results [][]byte, lost *bool) {
	for i, c := range claims {
		if results[i] != nil {
			b.Queue(in.sql.setResult, c.Intent.Key.uuid(), results[i])
		}
	}
	b.Queue(in.sql.claimAssert, claims[0].XID, claims[0].Intent.Key.Operation, oldest(claims)).QueryRow(func(r pgx.Row) error {
		var one int
		err := r.Scan(&one)
		*lost = isDivisionByZero(err)
		return err
	})
}

// oldest returns the earliest event time of the claims, nil if none is known.
func oldest(claims []Claim) (at *time.Time) {
	for _, c := range claims {
		if t := c.Intent.at(); t != nil && (at == nil || t.Before(*at)) {
			at = t
		}
	}
	return at
}
