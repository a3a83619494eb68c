package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// console shows how a run goes on: notes, and on a terminal a line below them
// that changes.
type console struct {
	out      io.Writer
	terminal bool
	start    time.Time

	mu   sync.Mutex
	line string
}

// clearLine goes to the beginning of the line and clears it (ECMA-48: CR, EL).
const clearLine = "\r\x1b[K"

func newConsole(f *os.File) *console {
	info, err := f.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &console{out: f, terminal: terminal, start: time.Now()}
}

// note writes a line that stays.
func (c *console) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	_, _ = fmt.Fprintf(c.out, "%5.1fs  %s\n%s", time.Since(c.start).Seconds(), fmt.Sprintf(format, args...), c.line)
}

// show replaces the line that changes; "" removes it.
func (c *console) show(line string) {
	if !c.terminal {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	c.line = line
	_, _ = io.WriteString(c.out, c.line)
}

func (c *console) clear() {
	if c.line != "" {
		_, _ = io.WriteString(c.out, clearLine)
	}
}

// Write writes what workers logged.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	defer func() { _, _ = io.WriteString(c.out, c.line) }()
	return c.out.Write(p)
}
