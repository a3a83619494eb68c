package main

import (
	"math"
	"slices"
	"time"
)

// median returns the middle of the values, the mean of the two in the middle
// if their number is even; NaN for none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// percentile returns the smallest duration that at least p percent of them do
// not exceed (nearest rank); 0 for none.
func percentile(durations []time.Duration, p float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// over applies f to each sample.
func (r Result) over(f func(Sample) float64) []float64 {
	values := make([]float64, len(r.Samples))
	for i, s := range r.Samples {
		values[i] = f(s)
	}
	return values
}

func (r Result) rates() []float64 { return r.over(Sample.perSecond) }

// latency returns the median over the runs of each run's percentile, in
// milliseconds, and whether latencies were measured.
func (r Result) latency(p float64) (ms float64, measured bool) {
	if len(r.Samples) == 0 || len(r.Samples[0].Latencies) == 0 {
		return 0, false
	}
	return median(r.over(func(s Sample) float64 {
		return float64(percentile(s.Latencies, p)) / float64(time.Millisecond)
	})), true
}

// walPerOp returns the median of log bytes per operation, and whether there
// were any.
func (r Result) walPerOp() (bytes float64, measured bool) {
	bytes = median(r.over(func(s Sample) float64 { return float64(s.WAL) / float64(s.Ops) }))
	return bytes, bytes > 0
}

// ratio says how many times better r is than base.
func (b Bench) ratio(r, base Result) float64 {
	if b.Better == ByLatency {
		own, _ := r.latency(50)
		other, _ := base.latency(50)
		return other / own
	}
	return median(r.rates()) / median(base.rates())
}

// baseline finds a result by the name of its variant: that with as many in
// flight, else the first one.
func baseline(results []Result, name string, inFlight int) (Result, bool) {
	i := slices.IndexFunc(results, func(r Result) bool { return r.Variant.Name == name && r.Variant.InFlight == inFlight })
	if i < 0 {
		i = slices.IndexFunc(results, func(r Result) bool { return r.Variant.Name == name })
	}
	if i < 0 {
		return Result{}, false
	}
	return results[i], true
}

// round3 keeps three significant digits or whole numbers: more is noise.
func round3(v float64) float64 {
	if v == 0 || math.Abs(v) >= 100 {
		return math.Round(v)
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
