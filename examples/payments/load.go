package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// accounts is small enough for payments to meet at one balance.
	accounts = 100
	// largestAmount of a payment, in minor units.
	largestAmount = 100_000
	// A late copy comes after the effect of the first one has long been
	// committed, and after the worker that did it may have been killed.
	earliestCopy, latestCopy = time.Second, 5 * time.Second
)

// Streams of random numbers: each thing is drawn from its own, so that one does
// not change with another.
const (
	randomLoad uint64 = iota
	randomVictims
	randomOutages
)

func random(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// load is what the producer means to do: its own list of intents, and when it
// publishes which of them.
type load struct {
	payments []Payment
	schedule []publication // by time
}

// publication is one publish, under a broker id of its own.
type publication struct {
	at      time.Duration // after the start
	payment int           // index
	copy    int           // 0 for the first
}

// newLoad draws the payments and the schedule. It is the same for one seed.
func newLoad(o options) load {
	r := random(o.seed, randomLoad)
	l := load{}
	for i := range o.intents {
		l.payments = append(l.payments, Payment{
			ID:       fmt.Sprintf("payment-%d-%06d", o.seed, i),
			Account:  fmt.Sprintf("account-%03d", r.IntN(accounts)),
			Amount:   1 + r.Int64N(largestAmount),
			Currency: "EUR",
		})
		at := time.Duration(i) * time.Second / time.Duration(o.rate)
		l.schedule = append(l.schedule, publication{at, i, 0})
		if r.Float64() < o.duplicates {
			l.schedule = append(l.schedule, publication{at + copyDelay(r), i, 1})
		}
	}
	slices.SortStableFunc(l.schedule, func(a, b publication) int { return cmp.Compare(a.at, b.at) })
	return l
}

// copyDelay is nothing for half of the copies.
func copyDelay(r *rand.Rand) time.Duration {
	if r.IntN(2) == 0 {
		return 0
	}
	return earliestCopy + time.Duration(r.Int64N(int64(latestCopy-earliestCopy)))
}

// length is when the last publish is due.
func (l load) length() time.Duration { return l.schedule[len(l.schedule)-1].at }
