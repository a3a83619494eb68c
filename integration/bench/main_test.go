package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestMain(m *testing.M) {
	testbed.Role(processRole, runProcess)
	testbed.Main(m)
}

// tiny lets every variant do its work, without a figure worth reading.
var tiny = scale{Rounds: 1, WarmUp: 20 * time.Millisecond, Duration: 100 * time.Millisecond, Rows: 700, Shrink: 1000, Idle: 200 * time.Millisecond}

func TestEveryVariantRuns(t *testing.T) {
	env, err := newEnv(t.Context(), tiny)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, env.NATS.Close())
		require.NoError(t, env.Postgres.Close())
	})
	m, err := env.machine(t.Context())
	require.NoError(t, err)
	require.Regexp(t, `^machine: \d+ cores, .+, PostgreSQL \d.+, nats-server \d.+, go1`, m.String())
	for _, b := range benches() {
		b = b.short()
		t.Run(b.Name, func(t *testing.T) {
			var lines bytes.Buffer
			out := &jsonLines{w: &lines}
			results, err := b.run(t.Context(), env, out)
			require.NoError(t, err)
			require.NoError(t, out.bench(b, results))
			for _, r := range results {
				require.Positive(t, r.Samples[0].Ops, r.Variant.Name)
			}
			require.Equal(t, comparisons(b), strings.Count(lines.String(), "\n"))
		})
	}
}

// comparisons is how many lines a benchmark prints.
func comparisons(b Bench) (n int) {
	for _, v := range b.Variants {
		n += max(len(v.Against), 1)
	}
	return n
}

func TestEveryComparisonHasItsVariant(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range benches() {
		require.False(t, seen[b.Name], "two benchmarks are called %s", b.Name)
		seen[b.Name] = true
		variants, points := map[string]bool{}, map[string]bool{}
		for _, v := range b.Variants {
			variants[v.Name], points[fmt.Sprint(v.Name, " ", v.InFlight)] = true, true
		}
		require.Len(t, points, len(b.Variants), "names are given once for each number in flight")
		for _, v := range b.Variants {
			for _, base := range v.Against {
				require.True(t, variants[base.Variant], "%s, %s: no %s", b.Name, v.Name, base.Variant)
			}
		}
	}
}

func TestOptions(t *testing.T) {
	all := []Bench{{Name: "inbox"}, {Name: "relay"}, {Name: "latency"}}
	parse := func(args ...string) (options, error) { return parseOptions(args, all, io.Discard) }

	opt, err := parse()
	require.NoError(t, err)
	require.Equal(t, options{scale: fullScale}, opt)
	require.True(t, opt.runs("relay"))

	opt, err = parse("-json", "-quick", "-only", "latency, inbox")
	require.NoError(t, err)
	require.Equal(t, options{json: true, only: []string{"latency", "inbox"}, scale: quickScale}, opt)
	require.True(t, opt.runs("inbox"))
	require.False(t, opt.runs("relay"))

	_, err = parse("-only", "inbox,outbox")
	require.EqualError(t, err, `-only: no benchmark "outbox"; there are inbox, relay, latency`)
	opt, err = parse("-picture", "x.svg", "-only", "latency,relay")
	require.NoError(t, err)
	require.Equal(t, "x.svg", opt.picture)
	_, err = parse("-picture", "x.svg", "-only", "latency")
	require.EqualError(t, err, "-picture shows inbox and relay: have one of them in -only")
	_, err = parse("inbox")
	require.ErrorContains(t, err, `argument "inbox"`)
	_, err = parse("-fast")
	require.Error(t, err)
	_, err = parse("-help")
	require.ErrorIs(t, err, flag.ErrHelp)
}

func TestPayloadsHaveTheirSize(t *testing.T) {
	require.Len(t, newEvent().Payload, payloadSize)
	require.Len(t, relayPayload, payloadSize)
	require.Len(t, numbered(7), payloadSize)
	require.Equal(t, 7, numberIn(numbered(7)))
	require.True(t, json.Valid(relayPayload))
}
