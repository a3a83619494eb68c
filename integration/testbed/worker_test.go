package testbed_test

import (
	"context"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

// bound is a context for waiting for a process.
func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	t.Cleanup(cancel)
	return ctx
}

func TestWorker_KillPauseResume(t *testing.T) {
	w := testbed.NewWorker(t, "sleeper", testbed.WorkerConfig{Args: []string{"a", "b c"}, Env: []string{"TESTBED_COLOUR=red"}})
	require.NoError(t, w.WaitOutput(bound(t), "up [a b c] red"))
	require.NoError(t, w.Pause(bound(t)))
	require.NoError(t, w.Signal(syscall.SIGTERM))
	select {
	case <-w.Done():
		require.FailNow(t, "a paused process handles no signal")
	default:
	}
	require.NoError(t, w.Resume())
	var exit *exec.ExitError
	require.ErrorAs(t, w.Wait(bound(t)), &exit)
	require.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal())
	require.NoError(t, w.Kill(), "killing one that has ended does nothing")
}

func TestWorker_TellsHowItEnded(t *testing.T) {
	w := testbed.NewWorker(t, "panics", testbed.WorkerConfig{})
	require.ErrorContains(t, w.WaitOutput(bound(t), "up"), "as asked")
	var exit *exec.ExitError
	require.ErrorAs(t, w.Wait(bound(t)), &exit)
	require.Equal(t, 2, exit.ExitCode())
	require.Contains(t, w.Stderr(), "as asked")
}

func TestWorker_UnknownRole(t *testing.T) {
	_, err := testbed.StartWorker("no-such-role", testbed.WorkerConfig{})
	require.ErrorContains(t, err, "testbed.Role")
	require.Panics(t, func() { testbed.Role("guard", nil) })
}
