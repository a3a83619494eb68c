package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Bench is a set of variants of one task. A later benchmark is a file with a
// function that returns one, and an entry in benches.
type Bench struct {
	Name string
	// Task says what the variants do, for people.
	Task string
	// Better is what ratios compare.
	Better   Better
	Variants []Variant
}

// Better says what makes a variant better.
type Better int

const (
	// ByRate: more operations per second.
	ByRate Better = iota
	// ByLatency: a lower median latency.
	ByLatency
)

// Variant is one way to do the task.
type Variant struct {
	Name string
	// Against are the variants that it is compared with; none for a baseline.
	Against []Baseline
	// Own is what a run compares itself with, for those whose samples have a
	// Ratio: a name for people, which is no variant.
	Own Baseline
	// InFlight is how many operations are under way at the same time; 0 where
	// their pace is given.
	InFlight int
	// Long variants are left out with -quick.
	Long bool
	// Run prepares what it needs, does the task once, and clears up. It
	// measures the task alone.
	Run func(ctx context.Context, env *Env) (Sample, error)
}

// Baseline is a variant to compare with.
type Baseline struct {
	Variant string
	// Must is the least ratio that the project asks of itself; 0 for none.
	Must float64
}

// Sample is what one run measured.
type Sample struct {
	Ops     int
	Elapsed time.Duration
	// Latencies of operations, in any order; empty if not measured.
	Latencies []time.Duration
	// WAL is how many bytes of PostgreSQL's log were written meanwhile; 0 if
	// the database had no part in it.
	WAL int64
	// Ratio is that of two measurements within the run; 0 if there is one only.
	Ratio float64
}

func (s Sample) perSecond() float64 { return float64(s.Ops) / s.Elapsed.Seconds() }

// Result is a variant with all its samples.
type Result struct {
	Variant Variant
	Samples []Sample
}

// output is told about progress and results.
type output interface {
	// sample is called after each run; round counts from 1.
	sample(b Bench, v Variant, round, rounds int, s Sample)
	bench(b Bench, results []Result) error
	end() error
}

// short is b without its long variants.
func (b Bench) short() Bench {
	b.Variants = slices.DeleteFunc(b.Variants, func(v Variant) bool { return v.Long })
	return b
}

// run runs the variants in turn, for as many rounds as the scale says.
func (b Bench) run(ctx context.Context, env *Env, out output) ([]Result, error) {
	defer env.dropKept(context.WithoutCancel(ctx))
	results := make([]Result, len(b.Variants))
	for i, v := range b.Variants {
		results[i].Variant = v
	}
	for round := range env.Scale.Rounds {
		for i := range b.Variants {
			r := &results[(i+round)%len(results)]
			s, err := r.Variant.Run(ctx, env)
			if err == nil && s.Ops == 0 {
				err = errors.New("nothing was done in the time of a run")
			}
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", b.Name, r.Variant.Name, err)
			}
			r.Samples = append(r.Samples, s)
			out.sample(b, r.Variant, round+1, env.Scale.Rounds, s)
		}
	}
	return results, nil
}
