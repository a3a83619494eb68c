package testbed

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// guardian is the parent's side of the guard process, which is started with
// the first thing that it has to know about.
type guardian struct {
	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

var theGuard guardian

// tell gives the guard one line of its protocol; see ledger.apply.
func (g *guardian) tell(format string, args ...any) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cmd == nil {
		if err := g.start(); err != nil {
			return fmt.Errorf("testbed: starting the guard: %w", err)
		}
	}
	if _, err := fmt.Fprintf(g.stdin, format+"\n", args...); err != nil {
		return fmt.Errorf("testbed: telling the guard: %w", err)
	}
	return nil
}

func (g *guardian) start() error {
	cmd, err := selfCommand("guard", nil)
	if err != nil {
		return err
	}
	// Output stays nil, that is /dev/null: a guard that held the test's
	// output open would keep "go test" waiting.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	g.cmd, g.stdin = cmd, stdin
	return nil
}

// close ends the guard, which first clears away what is still in its ledger.
func (g *guardian) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cmd == nil {
		return nil
	}
	_ = g.stdin.Close()
	err := g.cmd.Wait()
	g.cmd, g.stdin = nil, nil
	if err != nil {
		return fmt.Errorf("testbed: the guard could not clear everything away: %w", err)
	}
	return nil
}

// selfCommand prepares a copy of this binary in the given role.
func selfCommand(role string, args []string) (*exec.Cmd, error) {
	env, err := selfEnv(role, args)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = env
	return cmd, nil
}
