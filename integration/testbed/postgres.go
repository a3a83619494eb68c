package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// databaseEnv names a running server to use instead of a cluster of our own.
const databaseEnv = "ONCEMILL_DATABASE_URL"

// superuser is the role initdb makes.
const superuser = "postgres"

// PostgresConfig configures a throwaway cluster; its zero value works.
type PostgresConfig struct {
	// NoFsync turns fsync off: faster, and a crash of the machine (never of
	// the server alone) may lose data.
	NoFsync bool
	// Settings are further lines of postgresql.conf. They win over the bed's
	// own: max_connections 200, shared_buffers 256MB, timezone UTC.
	Settings map[string]string
}

// Postgres is a PostgreSQL server for tests: a throwaway cluster of our own,
// or the running server named by ONCEMILL_DATABASE_URL. Its methods may be
// called concurrently, except for Start, Stop and Close.
type Postgres struct {
	external *url.URL // set for a server that is not ours

	cfg  PostgresConfig
	bin  string
	dir  string
	cred *syscall.Credential
	port int

	mu     sync.Mutex
	server *child // nil while stopped
}

// StartPostgres makes a cluster in a directory of its own and starts it. It
// listens on a unix socket and a loopback port and trusts every local user.
// As root it runs as the user postgres, else nobody. The guard removes it when
// this process ends in whatever way; call Close to do so earlier.
//
// When ctx has no deadline, a minute is allowed.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if raw := os.Getenv(databaseEnv); raw != "" {
		return externalPostgres(ctx, raw)
	}
	ctx, cancel := bounded(ctx, startBound)
	defer cancel()
	p, err := newCluster(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := p.startAnywhere(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func externalPostgres(ctx context.Context, raw string) (*Postgres, error) {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return nil, fmt.Errorf("testbed: %s: must be a URL, postgres://user:password@host:port/database", databaseEnv)
	}
	p := &Postgres{external: u}
	conn, err := p.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("testbed: %s: %w", databaseEnv, err)
	}
	return p, conn.Close(ctx)
}

// startAnywhere starts the server on a free port, on another one if it does
// not come up: somebody else may have been faster to take the port.
func (p *Postgres) startAnywhere(ctx context.Context) error {
	var last error
	for range 3 {
		port, err := freePort()
		if err != nil {
			return err
		}
		p.port = port
		if last = p.Start(ctx); last == nil || ctx.Err() != nil {
			return last
		}
	}
	return last
}

// Start starts a stopped server again, on the same port and directory, and
// returns when it answers, after crash recovery if that is needed. Starting a
// running server does nothing.
func (p *Postgres) Start(ctx context.Context) error {
	if p.external != nil {
		return ErrNotOurs
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return nil
	}
	ctx, cancel := bounded(ctx, startBound)
	defer cancel()
	server, err := p.launch()
	if err != nil {
		return fmt.Errorf("testbed: starting PostgreSQL: %w", err)
	}
	if err := p.awaitAnswer(ctx, server); err != nil {
		killed, cancel := context.WithCancel(context.Background())
		cancel() // no patience: it is killed at once
		_ = server.stop(killed, syscall.SIGQUIT)
		return fmt.Errorf("testbed: starting PostgreSQL: %w; its log ends with: %s", err, logTail(p.logPath()))
	}
	p.server = server
	return nil
}

func (p *Postgres) launch() (*child, error) {
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(p.bin, "postgres"), "-D", filepath.Join(p.dir, dataDir), "-p", strconv.Itoa(p.port))
	cmd.Stdout, cmd.Stderr = log, log
	p.asServer(cmd)
	return startChild(cmd, "quit")
}

// awaitAnswer connects until the server answers or has ended. It asks over the
// unix socket, where nobody else can answer.
func (p *Postgres) awaitAnswer(ctx context.Context, server *child) error {
	return poll(ctx, "PostgreSQL answers", func() (bool, error) {
		select {
		case <-server.done:
			return false, errors.New("the server ended at once")
		default:
		}
		conn, err := pgconn.Connect(ctx, p.SocketURL())
		if err != nil {
			return false, nil
		}
		return true, conn.Close(ctx)
	})
}

// StopMode is a way to stop a server.
type StopMode int

const (
	// Fast aborts open transactions and shuts down cleanly (SIGINT).
	Fast StopMode = iota
	// Immediate ends all processes at once, as in a crash: the next start
	// goes through recovery (SIGQUIT).
	Immediate
)

// Stop stops the server and waits until it is gone; Start brings it back. When
// ctx ends first the server is killed and the context's error returned.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	if p.external != nil {
		return ErrNotOurs
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	ctx, cancel := bounded(ctx, stopBound)
	defer cancel()
	sig := syscall.SIGINT
	if mode == Immediate {
		sig = syscall.SIGQUIT
	}
	err := p.server.stop(ctx, sig)
	p.server = nil
	return err
}

// Close stops the server and removes its directory. A server that is not ours
// is left as it is.
func (p *Postgres) Close() error {
	if p.external != nil {
		return nil
	}
	return errors.Join(p.Stop(context.Background(), Immediate), removeDir(p.dir))
}

// PID is the process id of the postmaster; 0 while stopped or not ours.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return 0
	}
	return p.server.pid()
}

// URL is the superuser's connection URL over TCP, for the database postgres.
func (p *Postgres) URL() string { return p.URLFor("", "") }

// URLFor is the connection URL over TCP for a database and a role; empty means
// the maintenance database, and the superuser. On a server that is not ours
// the password in ONCEMILL_DATABASE_URL is kept for its own user only.
func (p *Postgres) URLFor(database, user string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: loopback(p.port), Path: "/postgres", RawQuery: "sslmode=disable"}
	if p.external != nil {
		u = *p.external
	}
	if database != "" {
		u.Path = "/" + database
	}
	if user != "" && user != u.User.Username() {
		u.User = url.User(user)
	}
	return u.String()
}

// SocketURL is like URL over the unix socket. It is URL itself on a server
// that is not ours.
func (p *Postgres) SocketURL() string {
	if p.external != nil {
		return p.URL()
	}
	q := url.Values{"host": {p.dir}, "port": {strconv.Itoa(p.port)}, "user": {superuser}, "sslmode": {"disable"}}
	return "postgres:///postgres?" + q.Encode()
}

// connect opens the superuser's connection to the maintenance database.
func (p *Postgres) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return nil, fmt.Errorf("connecting as superuser: %w", err)
	}
	return conn, nil
}
