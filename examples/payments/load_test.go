package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLoadIsDrawnFromTheSeed(t *testing.T) {
	o := options{intents: 1000, rate: 100, duplicates: 0.3, seed: 7}
	require.Equal(t, newLoad(o), newLoad(o))
	other := o
	other.seed++
	require.NotEqual(t, newLoad(o).schedule, newLoad(other).schedule)
}

func TestScheduleHasEachPaymentAndTheShareOfCopies(t *testing.T) {
	o := options{intents: 10_000, rate: 1000, duplicates: 0.3, seed: 1}
	l := newLoad(o)
	require.Len(t, l.payments, o.intents)
	ids := map[string]bool{}
	for _, p := range l.payments {
		require.Positive(t, p.Amount)
		ids[p.ID] = true
	}
	require.Len(t, ids, o.intents, "ids are different")

	first := map[int]time.Duration{}
	atOnce, later := 0, 0
	last := time.Duration(0)
	for _, pub := range l.schedule {
		require.GreaterOrEqual(t, pub.at, last, "in the order of time")
		last = pub.at
		at, published := first[pub.payment]
		require.Equal(t, pub.copy == 1, published, "first the payment, then at most one copy")
		switch delay := pub.at - at; {
		case !published:
			first[pub.payment] = pub.at
		case delay == 0:
			atOnce++
		default:
			require.GreaterOrEqual(t, delay, earliestCopy)
			require.Less(t, delay, latestCopy)
			later++
		}
	}
	require.Len(t, first, o.intents)
	require.InDelta(t, 1500, atOnce, 200)
	require.InDelta(t, 1500, later, 200)
	require.Equal(t, last, l.length())
}

func TestNoCopiesAndOnlyCopies(t *testing.T) {
	require.Len(t, newLoad(options{intents: 100, rate: 10, duplicates: 0}).schedule, 100)
	require.Len(t, newLoad(options{intents: 100, rate: 10, duplicates: 1}).schedule, 200)
}
