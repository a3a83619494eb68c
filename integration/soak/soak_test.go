package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestMain(m *testing.M) {
	testbed.Role(workerRole, runWorker)
	testbed.Main(m)
}

// soaked runs for that long, and must find nothing.
func soaked(t *testing.T, d time.Duration) result {
	t.Helper()
	seed := rand.Uint64()
	r, err := run(t.Context(), seed, d)
	require.NoError(t, err, "seed %d", seed)
	require.True(t, r.kept(), "seed %d: %q", seed, r.Problems)
	require.Equal(t, r.Events*len(forms), r.Effects)
	require.Positive(t, r.Copies)
	return r
}

func TestShortSoak(t *testing.T) {
	soaked(t, 4*time.Second)
}

func TestEveryRoundHasEveryFault(t *testing.T) {
	drawn := round(rand.New(rand.NewPCG(1, randomFaults)))
	times := map[string]int{}
	for _, f := range drawn {
		times[f.name]++
	}
	for _, f := range faults {
		require.Equal(t, f.weight, times[f.name], f.name)
	}
	require.Equal(t, names(drawn), names(round(rand.New(rand.NewPCG(1, randomFaults)))), "the seed decides the order")
	require.NotEqual(t, names(drawn), names(round(rand.New(rand.NewPCG(2, randomFaults)))))
}

func names(list []fault) (names []string) {
	for _, f := range list {
		names = append(names, f.name)
	}
	return names
}

func TestOptions(t *testing.T) {
	for arg, want := range map[string]string{
		"-duration=0s": "-duration: 0s is not positive", "again": `argument "again": there are flags only`, "-fast": "not defined",
	} {
		require.ErrorContains(t, execute(t.Context(), []string{arg}, io.Discard, io.Discard), want)
	}
}

func TestResult(t *testing.T) {
	r := result{Seed: 7, Events: 2, verdict: verdict{Lost: 1, Problems: []string{"event e1 was not booked by form set"}}}
	var text bytes.Buffer
	require.NoError(t, r.print(&text))
	require.Contains(t, text.String(), "  ! event e1 was not booked by form set\n")
	require.NotContains(t, text.String(), "once each")
	line, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(line), `"seed":7`)
	require.Contains(t, string(line), `"lost":1`)
	text.Reset()
	require.NoError(t, result{}.print(&text))
	require.Contains(t, text.String(), "once each: nothing doubled, nothing lost")
}
