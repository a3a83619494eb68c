package testbed_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func init() {
	testbed.Role("bed-owner", ownBed)
	testbed.Role("guardless", ownSleeper)
	testbed.Role("sleeper", func() { fmt.Println("up", testbed.Args(), os.Getenv("TESTBED_COLOUR")); <-time.After(time.Hour) })
	testbed.Role("panics", func() { panic("as asked") })
}

// ownership is what a bed-owner tells about what it started.
type ownership struct {
	PIDs []int
	Dirs []string
}

// ownMore starts what only the suites with more installed parts can start, and
// keeps the guard's pid last.
var ownMore = func(context.Context, *testbed.Postgres, *ownership) {}

// ownBed starts one of each kind and waits to be killed. It tells the pids and
// the directories, which nobody but the guard may then clear away.
func ownBed() {
	ctx := context.Background()
	pg, err := testbed.StartPostgres(ctx, testbed.PostgresConfig{})
	exitOn(err)
	n, err := testbed.StartNATSProcess(ctx, testbed.NATSConfig{})
	exitOn(err)
	embedded, err := testbed.StartNATS(ctx, testbed.NATSConfig{})
	exitOn(err)
	w, err := testbed.StartWorker("sleeper", testbed.WorkerConfig{})
	exitOn(err)
	exitOn(w.Pause(ctx))
	own := ownership{
		PIDs: []int{pg.PID(), n.PID(), w.PID(), testbed.GuardPID()},
		Dirs: []string{pg.Dir(), n.Dir(), embedded.Dir()},
	}
	ownMore(ctx, pg, &own)
	raw, err := json.Marshal(own)
	exitOn(err)
	fmt.Println(string(raw) + "\nready")
	select {}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func startOwner(t *testing.T) (*testbed.Worker, ownership) {
	t.Helper()
	w := testbed.NewWorker(t, "bed-owner", testbed.WorkerConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitFor)
	defer cancel()
	require.NoError(t, w.WaitOutput(ctx, "ready"))
	line, _, _ := strings.Cut(w.Stdout(), "\n")
	var own ownership
	require.NoError(t, json.Unmarshal([]byte(line), &own))
	require.GreaterOrEqual(t, len(own.Dirs), 3)
	for _, dir := range own.Dirs {
		require.DirExists(t, dir)
	}
	for _, pid := range own.PIDs {
		require.True(t, testbed.Alive(pid))
	}
	return w, own
}

func requireCleared(t *testing.T, own ownership) {
	t.Helper()
	for _, pid := range own.PIDs {
		require.Eventually(t, func() bool { return !testbed.Alive(pid) }, waitFor, tick)
	}
	for _, dir := range own.Dirs {
		require.NoDirExists(t, dir)
	}
}

func TestGuard_ClearsUpAfterSIGKILL(t *testing.T) {
	w, own := startOwner(t)
	require.NoError(t, w.Kill())
	requireCleared(t, own)
}

// TestGuard_OutlivesTheTerminal sends to the guard what Ctrl-C, a hang-up and
// a service manager would send, then ends the parent the way "go test" does
// after its timeout.
func TestGuard_OutlivesTheTerminal(t *testing.T) {
	w, own := startOwner(t)
	guard := own.PIDs[len(own.PIDs)-1]
	group, err := syscall.Getpgid(guard)
	require.NoError(t, err)
	require.Equal(t, guard, group, "in a process group of its own")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGQUIT} {
		require.NoError(t, syscall.Kill(guard, sig))
	}
	require.NoError(t, w.Signal(syscall.SIGQUIT))
	<-w.Done()
	requireCleared(t, own)
}

// ownSleeper starts a child, loses its guard, and waits to be killed.
func ownSleeper() {
	w, err := testbed.StartWorker("sleeper", testbed.WorkerConfig{})
	exitOn(err)
	exitOn(w.WaitOutput(context.Background(), "up")) // later a closed pipe would end it
	exitOn(syscall.Kill(testbed.GuardPID(), syscall.SIGKILL))
	fmt.Println(w.PID(), "ready")
	select {}
}

// TestChild_EndsWithItsParent covers a child of which the guard never heard.
func TestChild_EndsWithItsParent(t *testing.T) {
	w := testbed.NewWorker(t, "guardless", testbed.WorkerConfig{})
	require.NoError(t, w.WaitOutput(bound(t), "ready"))
	var pid int
	_, err := fmt.Sscan(w.Stdout(), &pid)
	require.NoError(t, err)
	require.True(t, testbed.Alive(pid))
	require.NoError(t, w.Kill())
	require.Eventually(t, func() bool { return !testbed.Alive(pid) }, waitFor, tick)
}

// TestGuard_FindsThePostmaster covers a server of which the guard knows no
// more than the directory.
func TestGuard_FindsThePostmaster(t *testing.T) {
	p := testbed.NewPostgres(t, testbed.PostgresConfig{})
	pid := p.PID()
	require.NoError(t, testbed.Settle(p.Dir()))
	require.False(t, testbed.Alive(pid))
	require.NoDirExists(t, p.Dir())
}

func TestGuard_RefusesForeignDirectories(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, testbed.Settle(dir), "refusing")
	require.DirExists(t, dir)
}
