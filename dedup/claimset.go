package dedup

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/internal/pg"
)

// ClaimSet claims several intents in the caller's transaction with one insert
// in id order, so that sets that share keys do not deadlock. The claims come
// back in the order of intents.
//
// Two intents with one key: the first gets the verdict, the other one is Done
// (or Conflict, if its payload differs), which as everything here holds only
// if the transaction commits. A busy rival of any member is a *BusyError with
// an empty key, since the server does not say which; the transaction is then
// aborted.
func (in *Inbox) ClaimSet(ctx context.Context, tx Tx, intents []Intent) ([]Claim, error) {
	claims := make([]Claim, len(intents))
	open := places(len(intents))
	for range maxClaims {
		if len(open) == 0 {
			return claims, nil
		}
		vanished, err := in.claimOpen(ctx, tx, intents, open, claims)
		if err != nil {
			return nil, err
		}
		open = vanished
	}
	return nil, fmt.Errorf("claim %d keys: %w", len(open), errVanished)
}

// places returns 0 to n-1.
func places(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// claimOpen claims the intents at the places in open, fills in their claims
// and returns the places whose row was neither inserted nor found.
func (in *Inbox) claimOpen(ctx context.Context, tx Tx, intents []Intent, open []int, claims []Claim) ([]int, error) {
	inserted := make(map[string]bool)
	err := pg.Each(ctx, tx, in.sql.claimMany, setArgs(intents, open, in.lockWait), func(rows pg.Rows) error {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		inserted[id] = true
		return nil
	})
	if err != nil {
		return nil, in.claimError(Key{}, err)
	}
	var vanished []int
	next := 0
	err = pg.Each(ctx, tx, in.sql.claimReadMany, setReadArgs(intents, open), func(rows pg.Rows) error {
		var r storedRow
		var f freshRow
		if err := rows.Scan(append(r.dest(), f.dest()...)...); err != nil {
			return err
		}
		place := open[next]
		next++
		id := intents[place].Key.uuid()
		if inserted[id] {
			delete(inserted, id) // a later copy of the key is not the one that inserted
			claims[place] = in.fresh(intents[place], f)
			return nil
		}
		claim, found := stored(intents[place], r)
		if !found {
			vanished = append(vanished, place)
		}
		claims[place] = claim
		return nil
	})
	if err != nil {
		return nil, in.claimError(Key{}, err)
	}
	return vanished, nil
}

// setArgs are the columns to insert: of several copies of one key the first,
// whose fingerprint is the one that counts.
func setArgs(intents []Intent, open []int, wait time.Duration) []any {
	n := len(open)
	ids, scopes, operations := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	versions, sums, times := make([]int32, 0, n), make([][]byte, 0, n), make([]*time.Time, 0, n)
	seen := make(map[string]bool, len(open))
	for _, place := range open {
		it := &intents[place]
		id := it.Key.uuid()
		if seen[id] {
			continue
		}
		seen[id] = true
		ids, scopes, operations = append(ids, id), append(scopes, it.Key.Scope), append(operations, it.Key.Operation)
		versions, sums = append(versions, it.Fingerprint.Version), append(sums, it.Fingerprint.Sum[:])
		times = append(times, it.at())
	}
	return []any{ids, versions, sums, times, scopes, operations, lockBound(wait)}
}

func setReadArgs(intents []Intent, open []int) []any {
	ids, operations := make([]string, len(open)), make([]string, len(open))
	for i, place := range open {
		ids[i], operations[i] = intents[place].Key.uuid(), intents[place].Key.Operation
	}
	return []any{ids, operations}
}
