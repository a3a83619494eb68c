package main

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sampleBench has a baseline, and a variant that is compared with it and with
// a third.
func sampleBench() (Bench, []Result) {
	raw := result("raw", nil, 1000, 3000, 2000)
	slow := result("slow", nil, 10, 20, 30)
	own := result("own", []time.Duration{time.Millisecond, 2500 * time.Microsecond}, 1500, 1600, 1700)
	own.Variant.InFlight = 4
	own.Variant.Against = []Baseline{{Variant: "raw", Must: 0.4}, {Variant: "slow", Must: 15}}
	for i := range own.Samples {
		own.Samples[i].WAL = int64(own.Samples[i].Ops) * 118
	}
	results := []Result{raw, slow, own}
	return Bench{Name: "relay", Task: "drain", Variants: []Variant{raw.Variant, slow.Variant, own.Variant}}, results
}

func TestJSONHasALinePerComparison(t *testing.T) {
	b, results := sampleBench()
	var out, errs bytes.Buffer
	lines := &jsonLines{w: &out, err: &errs, machine: machine{Cores: 2, CPU: "X", Postgres: "15.18", NATS: "2.15.2", Golang: "go1.26"}}
	require.NoError(t, lines.bench(b, results))
	require.NoError(t, lines.end())
	require.Equal(t, `{"bench":"relay","variant":"raw","against":"","in_flight":0,"per_second":2000,"ratio":null,"min":1000,"max":3000,"runs":3,"p50_ms":null,"p99_ms":null,"wal_bytes_per_op":null}
{"bench":"relay","variant":"slow","against":"","in_flight":0,"per_second":20,"ratio":null,"min":10,"max":30,"runs":3,"p50_ms":null,"p99_ms":null,"wal_bytes_per_op":null}
{"bench":"relay","variant":"own","against":"raw","in_flight":4,"per_second":1600,"ratio":0.8,"min":1500,"max":1700,"runs":3,"p50_ms":1,"p99_ms":2.5,"wal_bytes_per_op":118}
{"bench":"relay","variant":"own","against":"slow","in_flight":4,"per_second":1600,"ratio":80,"min":1500,"max":1700,"runs":3,"p50_ms":1,"p99_ms":2.5,"wal_bytes_per_op":118}
`, out.String())
	require.Equal(t, "machine: 2 cores, X, PostgreSQL 15.18, nats-server 2.15.2, go1.26\n", errs.String())
}

func TestTableShowsEachVariantOnceWithAllItsRatios(t *testing.T) {
	b, results := sampleBench()
	var out bytes.Buffer
	require.NoError(t, (&table{w: &out, progress: io.Discard}).bench(b, results))
	require.Regexp(t, `(?m)^own +4 +1600 +1500 +1700 +1 +2\.5 +118 +3 +0\.8 x raw \(must 0\.4\), 80 x slow \(must 15\)$`, out.String())
	require.Regexp(t, `(?m)^raw +- +2000 +1000 +3000 +- +- +- +3 +-$`, out.String())
}

func TestAComparisonWithNothingIsAnError(t *testing.T) {
	b, results := sampleBench()
	results[2].Variant.Against = []Baseline{{Variant: "gone"}}
	err := (&jsonLines{w: io.Discard}).bench(b, results)
	require.EqualError(t, err, `relay, own: compared with "gone", which is no variant`)
}

func TestARunThatDidNothingIsAnError(t *testing.T) {
	idle := Variant{Name: "idle", Run: func(context.Context, *Env) (Sample, error) { return Sample{Elapsed: time.Second}, nil }}
	b := Bench{Name: "b", Variants: []Variant{idle}}
	_, err := b.run(t.Context(), &Env{Scale: scale{Rounds: 1}}, &jsonLines{})
	require.EqualError(t, err, "b, idle: nothing was done in the time of a run")
}

func TestVariantsTakeTurnsAndTheFirstPlaceMoves(t *testing.T) {
	var order []string
	variant := func(name string) Variant {
		return Variant{Name: name, Run: func(context.Context, *Env) (Sample, error) {
			order = append(order, name)
			return Sample{Ops: 1, Elapsed: time.Second}, nil
		}}
	}
	b := Bench{Name: "b", Variants: []Variant{variant("x"), variant("y"), variant("z")}}
	results, err := b.run(t.Context(), &Env{Scale: scale{Rounds: 4}}, &jsonLines{})
	require.NoError(t, err)
	require.Equal(t, []string{"x", "y", "z", "y", "z", "x", "z", "x", "y", "x", "y", "z"}, order)
	for _, r := range results {
		require.Len(t, r.Samples, 4)
	}
}
