package testbed

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// dirPrefix starts the name of each directory the bed makes. It is short:
	// with os.TempDir of macOS before it and a socket name behind it the path
	// must fit the 104 bytes of a socket address.
	dirPrefix = "om-"
	// dataDir is the cluster's directory inside the bed's directory.
	dataDir = "data"
	// startBound bounds the start of a server if the caller's context does not.
	startBound = 60 * time.Second
	// stopBound bounds a stop if the caller's context does not.
	stopBound = 30 * time.Second
)

// makeDir makes a directory that the guard removes if we cannot. It belongs to
// owner if that is not nil.
func makeDir(owner *syscall.Credential) (string, error) {
	base := os.TempDir()
	if len(base) > 60 { // a socket's path would not fit
		base = "/tmp"
	}
	dir := filepath.Join(base, dirPrefix+randomHex(5))
	if err := theGuard.tell("dir %s", dir); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("testbed: making a directory: %w", err)
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return "", errors.Join(fmt.Errorf("testbed: giving a directory to the server's user: %w", err), removeDir(dir))
		}
	}
	return dir, nil
}

func removeDir(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("testbed: removing a directory: %w", err)
	}
	return theGuard.tell("removed %s", dir)
}

// serverUser is the unprivileged user that PostgreSQL and PgBouncer run as
// when we are root, which both refuse; nil when we are not.
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uerr, gerr); err != nil {
			return nil, fmt.Errorf("testbed: user %q: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("testbed: PostgreSQL does not run as root and there is neither a user postgres nor nobody: add one or run as another user")
}

// freePort picks a loopback port between 20000 and 32000. These lie below the
// range the kernel takes client ports from, so that a client which keeps
// dialling a stopped server neither takes its port nor connects to itself.
// Another process may take the port before the caller does: try again then.
func freePort() (int, error) {
	var last error
	for range 100 {
		port := 20000 + mathrand.IntN(12000)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("testbed: no free loopback port: %w", last)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func randomHex(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

// bounded gives ctx a deadline unless it has one.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// logTail is the end of a server's log for an error text.
func logTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "no log"
	}
	defer f.Close()
	const tail = 2000
	if st, err := f.Stat(); err == nil && st.Size() > tail {
		_, _ = f.Seek(-tail, io.SeekEnd)
	}
	raw, _ := io.ReadAll(f)
	return strings.TrimSpace(string(raw))
}
