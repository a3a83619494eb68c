package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// guardPatience is how long the guard waits for a server to stop by itself
// before it kills it, and for a directory to stay removed. An immediate stop
// of PostgreSQL takes milliseconds; it kills its own backends after 5 s.
const guardPatience = 6 * time.Second

// ledger is what the guard has to clear away when its parent is gone.
type ledger struct {
	pids map[int]string  // pid to how it is stopped: "quit" or "kill"
	dirs map[string]bool // directories to remove
}

// runGuard is the guard's main function: it reads the ledger from the parent
// until the pipe closes, for whatever reason, and then clears away.
func runGuard() {
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGQUIT)
	led := ledger{pids: map[int]string{}, dirs: map[string]bool{}}
	led.read(os.Stdin)
	if err := led.settle(); err != nil {
		os.Exit(1)
	}
}

func (l *ledger) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		l.apply(lines.Text())
	}
}

// apply enters one line of the protocol:
//
//	quit N     process N runs; stop it with SIGQUIT, then SIGKILL
//	kill N     process N runs; stop it with SIGKILL
//	gone N     process N ended and was waited for
//	dir P      directory P is about to be made
//	removed P  directory P was removed
func (l *ledger) apply(line string) {
	verb, arg, _ := strings.Cut(line, " ")
	switch verb {
	case "dir":
		l.dirs[arg] = true
	case "removed":
		delete(l.dirs, arg)
	default:
		pid, err := strconv.Atoi(arg)
		if err != nil || pid <= 1 {
			return
		}
		l.pids[pid] = verb
		if verb == "gone" {
			delete(l.pids, pid)
		}
	}
}

// settle stops the processes and removes the directories that are left.
func (l *ledger) settle() error {
	for dir := range l.dirs {
		if pid := postmasterPID(dir); pid > 1 {
			l.pids[pid] = "quit"
		}
	}
	for pid, how := range l.pids {
		if how == "quit" {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			_ = syscall.Kill(pid, syscall.SIGCONT)
		} else {
			killGroup(pid)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), guardPatience)
	defer cancel()
	_ = poll(ctx, "processes end", func() (bool, error) { return !l.anyAlive(), nil })
	for pid := range l.pids {
		if alive(pid) {
			killGroup(pid)
		}
	}
	return l.removeDirs()
}

func (l *ledger) anyAlive() bool {
	for pid := range l.pids {
		if alive(pid) {
			return true
		}
	}
	return false
}

// removeDirs tries again for a while: a backend that outlives its postmaster
// for a moment may still write.
func (l *ledger) removeDirs() error {
	ctx, cancel := context.WithTimeout(context.Background(), guardPatience)
	defer cancel()
	var failed error
	for dir := range l.dirs {
		failed = errors.Join(failed, poll(ctx, "a directory is removed", func() (bool, error) {
			if err := mayRemove(dir); err != nil {
				return false, err
			}
			return os.RemoveAll(dir) == nil, nil
		}))
	}
	return failed
}

// mayRemove refuses what the bed cannot have made.
func mayRemove(dir string) error {
	if !filepath.IsAbs(dir) || !strings.HasPrefix(filepath.Base(dir), dirPrefix) {
		return fmt.Errorf("testbed: refusing to remove %q: not a directory of the test bed", dir)
	}
	return nil
}

// postmasterPID reads the process id that PostgreSQL wrote into a cluster in
// dir, for a server that was started in the parent's last moment; 0 if none.
func postmasterPID(dir string) int {
	raw, err := os.ReadFile(filepath.Join(dir, dataDir, "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(first))
	return pid
}

// killGroup kills a child together with the group that it leads.
func killGroup(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
