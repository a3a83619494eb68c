package consumer

import (
	"sync/atomic"

	"github.com/oncemill/oncemill/dedup"
)

// repeats counts claims in a row that met a taken key. Duplicates come in runs,
// after a reconnect or when a stream is read again: while one lasts, a look
// without a transaction answers each in half the round trips. It costs the
// fresh delivery that ends the run another one.
type repeats struct{ inARow atomic.Int32 }

// minRepeats make a run: where duplicates and fresh ones mix, as many in a row
// are rare, and fresh ones hardly ever pay for a look in vain.
const minRepeats = 8

func (r *repeats) expected() bool { return r.inARow.Load() >= minRepeats }

func (r *repeats) count(claim dedup.Claim) {
	switch n := r.inARow.Load(); {
	case claim.State == 0 && n != 0:
		r.inARow.Store(0)
	case claim.State != 0 && n < minRepeats:
		r.inARow.Add(1)
	}
}
