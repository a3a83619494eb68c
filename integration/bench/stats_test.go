package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	require.True(t, math.IsNaN(median(nil)))
	require.EqualValues(t, 7, median([]float64{7}))
	require.EqualValues(t, 3, median([]float64{9, 1, 3}))
	require.EqualValues(t, 2.5, median([]float64{4, 1, 3, 2}))
	values := []float64{3, 1, 2}
	median(values)
	require.Equal(t, []float64{3, 1, 2}, values, "the caller's slice stays as it is")
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	require.Zero(t, percentile(nil, 50))
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	require.EqualValues(t, 50, percentile(hundred, 50))
	require.EqualValues(t, 99, percentile(hundred, 99))
	require.EqualValues(t, 100, percentile(hundred, 100))
	require.EqualValues(t, 1, percentile(hundred, 0))
	require.EqualValues(t, 3, percentile([]time.Duration{1, 2, 3}, 99))
}

func TestRound3(t *testing.T) {
	for in, want := range map[float64]float64{0: 0, 0.95449: 0.954, 1.0249: 1.02, 12.349: 12.3, 123.4: 123, 123_456.7: 123_457, 0.00123456: 0.00123, -2.3456: -2.35} {
		require.InDelta(t, want, round3(in), 1e-9)
	}
}

// result is a variant whose runs did so many operations per second, each run
// with these latencies.
func result(name string, latencies []time.Duration, rates ...int) Result {
	r := Result{Variant: Variant{Name: name}}
	for _, rate := range rates {
		r.Samples = append(r.Samples, Sample{Ops: 2 * rate, Elapsed: 2 * time.Second, Latencies: latencies})
	}
	return r
}

func TestRatioIsThatOfTheMedians(t *testing.T) {
	base := result("base", nil, 100, 10, 1000)
	own := result("own", nil, 150, 1, 9000)
	require.InDelta(t, 1.5, Bench{}.ratio(own, base), 1e-9)
}

func TestALowerLatencyIsBetter(t *testing.T) {
	base := result("base", []time.Duration{400, 500, 600}, 1)
	own := result("own", []time.Duration{1, 2, 900}, 1)
	require.InDelta(t, 250, Bench{Better: ByLatency}.ratio(own, base), 1e-9)
}

func TestLatencyIsTheMedianOfTheRunsPercentiles(t *testing.T) {
	_, measured := result("none", nil, 1).latency(50)
	require.False(t, measured)
	r := result("some", []time.Duration{time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond}, 1, 1, 1)
	r.Samples[0].Latencies = []time.Duration{time.Hour}
	ms, measured := r.latency(50)
	require.True(t, measured)
	require.InDelta(t, 3, ms, 1e-9)
}
