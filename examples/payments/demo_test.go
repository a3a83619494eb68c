package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound is how long a test waits for something that must happen.
const bound = time.Minute

// quiet is a console that nobody reads.
func quiet() *console { return &console{out: io.Discard, start: time.Now()} }

func TestEachPaymentOnceThroughKillsAndCrashes(t *testing.T) {
	for _, group := range []bool{false, true} {
		o := options{intents: 400, rate: 400, duplicates: 0.3, workers: 3, killEvery: 2 * time.Second, seed: 3, minKills: 1, group: group}
		r, err := run(t.Context(), o, quiet())
		require.NoError(t, err)
		require.Empty(t, append(r.broken, r.weak...))
		require.Equal(t, []int{400, 400, 400, 400}, []int{r.Intents, r.Effects, r.Commands, r.CommandsReceived})
		require.GreaterOrEqual(t, r.Deliveries, 400+r.republished)
	}
}

func TestNaiveWorkersApplyCopiesAgain(t *testing.T) {
	o := options{intents: 200, rate: 400, duplicates: 0.3, workers: 2, seed: 3, naive: true, calm: true}
	r, err := run(t.Context(), o, quiet())
	require.NoError(t, err)
	require.True(t, r.failed())
	require.GreaterOrEqual(t, r.Doubled, r.republished)
	require.Zero(t, r.Lost)
}

func TestInterruptedRunEndsWithoutAResult(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &signalWriter{text: "publishing", seen: cancel}
	o := options{intents: 100_000, rate: 100, workers: 1, seed: 1}
	_, err := run(ctx, o, &console{out: out, start: time.Now()})
	require.ErrorIs(t, err, context.Canceled)
}

// signalWriter calls seen when text is written.
type signalWriter struct {
	text string
	seen func()
}

func (w *signalWriter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.text) {
		w.seen()
	}
	return len(p), nil
}

func TestWorkersWaitForServersThatAreAway(t *testing.T) {
	b, err := openBed(t.Context(), options{workers: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.close()) })
	for name, server := range map[string]struct{ stop, start func(context.Context) error }{
		"PostgreSQL": {func(ctx context.Context) error { return b.postgres.Stop(ctx, testbed.Immediate) }, b.postgres.Start},
		"NATS":       {b.nats.Kill, b.nats.Start},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			require.NoError(t, server.stop(ctx))
			w := testbed.NewWorker(t, roleOncemill, testbed.WorkerConfig{Args: b.workerArgs()})
			require.Eventually(t, func() bool { return strings.Contains(w.Stderr(), "start again") }, bound, 10*time.Millisecond)
			require.NoError(t, server.start(ctx))
			require.NoError(t, w.WaitOutput(ctx, readyLine))
		})
	}
}

func TestWorkerThatEndsByItselfFailsTheRun(t *testing.T) {
	failed := make(chan error, 1)
	c := &crew{role: roleOncemill, log: io.Discard, fail: func(err error) { failed <- err }}
	require.ErrorContains(t, c.start(t.Context(), 1), "its configuration must be its only argument")
	require.ErrorContains(t, <-failed, "ended by itself")
	c.stop()
}
