package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// child is a direct child process in a process group of its own, so that
// Ctrl-C in the terminal does not reach it, known to the guard.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been waited for
	err  error         // of Wait; read after done
}

// startChild starts cmd and waits for it in the background. how tells the
// guard the way to stop it: "quit" or "kill".
func startChild(cmd *exec.Cmd, how string) (*child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	pid := cmd.Process.Pid
	told := theGuard.tell("%s %d", how, pid)
	go func() {
		c.err = cmd.Wait()
		_ = theGuard.tell("gone %d", pid)
		close(c.done)
	}()
	if told != nil {
		killGroup(pid)
		<-c.done
		return nil, told
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// signal is a no-op for a process that has ended.
func (c *child) signal(sig os.Signal) error {
	if err := c.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("testbed: sending %v to process %d: %w", sig, c.pid(), err)
	}
	return nil
}

// wait returns when the process has ended or the context has.
func (c *child) wait(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("testbed: waiting for process %d to end: %w", c.pid(), ctx.Err())
	}
}

// stop sends sig and waits; a process that is still there when the context
// ends is killed, so that it is gone in any case.
func (c *child) stop(ctx context.Context, sig os.Signal) error {
	if err := c.signal(sig); err != nil {
		return err
	}
	err := c.wait(ctx)
	if err != nil {
		killGroup(c.pid())
		<-c.done
	}
	return err
}

// alive says whether a process exists and is no zombie.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	return processState(pid) != "Z"
}

// processState is the state letter of Linux's /proc (R, S, T, Z, ...); empty
// for a process that is gone and on systems without /proc.
func processState(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The command's name comes before, in brackets, and may hold anything.
	_, rest, _ := strings.Cut(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), " ")
	state, _, _ := strings.Cut(rest, " ")
	return state
}

// poll calls check with growing pauses, 1 ms to 50 ms, until it says true,
// fails, or the context ends.
func poll(ctx context.Context, what string, check func() (bool, error)) error {
	pause := time.Millisecond
	for {
		ok, err := check()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("testbed: waiting until %s: %w", what, ctx.Err())
		case <-time.After(pause):
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}
