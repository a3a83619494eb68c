package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsEnv names a running server to use instead of one of our own.
const natsEnv = "ONCEMILL_NATS_URL"

// ErrInProcess is returned for killing a server inside this process.
var ErrInProcess = errors.New("testbed: a NATS server inside this process cannot be killed: use StartNATSProcess")

// NATSConfig configures a NATS server; its zero value works.
type NATSConfig struct {
	// MaxPayload is the largest payload with headers in bytes; 0 is 1 MiB.
	MaxPayload int32
	// SyncAlways makes JetStream sync each message to disk before it
	// acknowledges; otherwise it does so every two minutes.
	SyncAlways bool
	// Tune may change any further option. In-process servers only.
	Tune func(*server.Options)
}

// NATS is a NATS server with JetStream on disk: inside this process, as a
// process of its own, or the running one named by ONCEMILL_NATS_URL. Its
// methods may be called concurrently, except for those that start or stop it.
type NATS struct {
	external string // set for a server that is not ours
	dir      string
	port     int

	mu     sync.Mutex
	cfg    NATSConfig
	engine natsEngine
}

// natsEngine is one of the two ways to run a server. start gets a fixed port
// and store; stop and kill of a stopped engine do nothing.
type natsEngine interface {
	start(ctx context.Context, s natsSettings) error
	stop(ctx context.Context) error
	kill(ctx context.Context) error
}

// StartNATS starts a server inside this process. When ctx has no deadline, a
// minute is allowed.
func StartNATS(ctx context.Context, cfg NATSConfig) (*NATS, error) {
	return startNATS(ctx, cfg, &natsEmbedded{tune: cfg.Tune})
}

// StartNATSProcess starts a server as a child process, which can be killed
// like a machine that goes away. When ctx has no deadline, a minute is allowed.
func StartNATSProcess(ctx context.Context, cfg NATSConfig) (*NATS, error) {
	if cfg.Tune != nil {
		return nil, errors.New("testbed: NATSConfig.Tune: a function cannot be given to another process: use StartNATS")
	}
	return startNATS(ctx, cfg, &natsChild{})
}

func startNATS(ctx context.Context, cfg NATSConfig, engine natsEngine) (*NATS, error) {
	if u := os.Getenv(natsEnv); u != "" {
		return externalNATS(ctx, u)
	}
	dir, err := makeDir(nil)
	if err != nil {
		return nil, err
	}
	n := &NATS{dir: dir, cfg: cfg, engine: engine}
	if err := n.startAnywhere(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func externalNATS(ctx context.Context, u string) (*NATS, error) {
	n := &NATS{external: u}
	if err := n.awaitAnswer(ctx, nil); err != nil {
		return nil, fmt.Errorf("testbed: %s: %w", natsEnv, err)
	}
	return n, nil
}

// startAnywhere is like Postgres.startAnywhere.
func (n *NATS) startAnywhere(ctx context.Context) error {
	var last error
	for range 3 {
		port, err := freePort()
		if err != nil {
			return err
		}
		n.port = port
		if last = n.Start(ctx); last == nil || ctx.Err() != nil {
			return last
		}
	}
	return last
}

// URL is where clients connect to.
func (n *NATS) URL() string {
	if n.external != "" {
		return n.external
	}
	return "nats://" + loopback(n.port)
}

// Start starts a stopped server again, on the same port and store, and returns
// when JetStream answers. Starting a running server does nothing.
func (n *NATS) Start(ctx context.Context) error {
	if n.external != "" {
		return ErrNotOurs
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, cancel := bounded(ctx, startBound)
	defer cancel()
	s := natsSettings{Port: n.port, Dir: n.dir, MaxPayload: n.cfg.MaxPayload, SyncAlways: n.cfg.SyncAlways}
	err := s.keepStreamsDir()
	if err == nil {
		err = n.engine.start(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("testbed: starting NATS: %w", err)
	}
	return nil
}

// SetMaxPayload changes the limit, in bytes, for the next Start.
func (n *NATS) SetMaxPayload(limit int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cfg.MaxPayload = limit
}

// Stop shuts the server down cleanly and waits for that.
func (n *NATS) Stop(ctx context.Context) error {
	return n.end(ctx, natsEngine.stop)
}

// Kill ends a server process with SIGKILL and waits until it is gone. A server
// inside this process gives ErrInProcess.
func (n *NATS) Kill(ctx context.Context) error {
	return n.end(ctx, natsEngine.kill)
}

func (n *NATS) end(ctx context.Context, how func(natsEngine, context.Context) error) error {
	if n.external != "" {
		return ErrNotOurs
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, cancel := bounded(ctx, stopBound)
	defer cancel()
	return how(n.engine, ctx)
}

// Close stops the server and removes its store. A server that is not ours is
// left as it is.
func (n *NATS) Close() error {
	if n.external != "" {
		return nil
	}
	return errors.Join(n.Stop(context.Background()), removeDir(n.dir))
}

// Connect opens a connection that fails at once while disconnected (no
// reconnect buffer: a publish that timed out must not be sent later) and comes
// back by itself soon after the server does. Further options win.
func (n *NATS) Connect(options ...nats.Option) (*nats.Conn, error) {
	return ConnectNATS(n.URL(), options...)
}

// ConnectNATS is Connect for another address, such as a proxy's.
func ConnectNATS(addr string, options ...nats.Option) (*nats.Conn, error) {
	all := append([]nats.Option{
		nats.ReconnectBufSize(-1),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(5*time.Millisecond, 5*time.Millisecond),
	}, options...)
	conn, err := nats.Connect(addr, all...)
	if err != nil {
		return nil, fmt.Errorf("testbed: connecting to NATS: %w", err)
	}
	return conn, nil
}

// awaitAnswer connects until JetStream answers or ended is closed.
func (n *NATS) awaitAnswer(ctx context.Context, ended <-chan struct{}) error {
	return awaitNATS(ctx, n.URL(), ended)
}

func awaitNATS(ctx context.Context, addr string, ended <-chan struct{}) error {
	ctx, cancel := bounded(ctx, startBound)
	defer cancel()
	return poll(ctx, "JetStream answers", func() (bool, error) {
		select {
		case <-ended:
			return false, errors.New("the server ended at once")
		default:
		}
		conn, err := nats.Connect(addr, nats.NoReconnect(), nats.Timeout(time.Second))
		if err != nil {
			return false, nil
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return false, err
		}
		_, err = js.AccountInfo(ctx)
		return err == nil, nil
	})
}
