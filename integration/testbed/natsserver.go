package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// natsSettings is what a server is started with; it travels to a child as JSON.
type natsSettings struct {
	Port       int
	Dir        string
	MaxPayload int32
	SyncAlways bool
}

func (s natsSettings) options() *server.Options {
	return &server.Options{
		ServerName: "testbed",
		Host:       "127.0.0.1",
		Port:       s.Port,
		JetStream:  true,
		StoreDir:   s.Dir,
		MaxPayload: s.MaxPayload,
		SyncAlways: s.SyncAlways,
		NoLog:      true,
		NoSigs:     true,
	}
}

// keepStreamsDir puts a file beside the streams. When the last stream is
// deleted the server removes their directory in the background if it is empty,
// and a stream that is created at that moment fails with error 10049 (stream.go
// and filestore.go of nats-server 2.15); tests do that all the time. The server
// passes over a file.
func (s natsSettings) keepStreamsDir() error {
	dir := filepath.Join(s.Dir, server.JetStreamStoreDir, "$G", "streams")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "keep"), nil, 0o600)
}

// natsReady is how long a server inside this process may take to listen; it
// says nothing when its port is taken, so that this is noticed by time.
const natsReady = 10 * time.Second

// natsEmbedded runs the server inside this process.
type natsEmbedded struct {
	tune   func(*server.Options)
	server *server.Server
}

func (e *natsEmbedded) start(_ context.Context, s natsSettings) error {
	if e.server != nil {
		return nil
	}
	options := s.options()
	if e.tune != nil {
		e.tune(options)
	}
	srv, err := server.NewServer(options)
	if err != nil {
		return err
	}
	srv.Start()
	if !srv.ReadyForConnections(natsReady) || !srv.JetStreamEnabled() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return errors.New("the server does not accept connections, or has no JetStream: another process may have its port")
	}
	e.server = srv
	return nil
}

func (e *natsEmbedded) stop(context.Context) error {
	if e.server != nil {
		e.server.Shutdown()
		e.server.WaitForShutdown()
		e.server = nil
	}
	return nil
}

func (e *natsEmbedded) kill(context.Context) error { return ErrInProcess }

// natsChild runs the server as a copy of this binary.
type natsChild struct {
	server *child
}

func (e *natsChild) start(ctx context.Context, s natsSettings) error {
	if e.server != nil {
		return nil
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, err := selfCommand("nats", []string{string(raw)})
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if _, err := cmd.StdinPipe(); err != nil { // its line to us; see exitWithParent
		return err
	}
	srv, err := startChild(cmd, "kill")
	if err != nil {
		return err
	}
	if err := awaitNATS(ctx, "nats://"+loopback(s.Port), srv.done); err != nil {
		killGroup(srv.pid())
		<-srv.done
		return fmt.Errorf("%w; its log ends with: %s", err, logTail(log.Name()))
	}
	e.server = srv
	return nil
}

func (e *natsChild) stop(ctx context.Context) error { return e.end(ctx, syscall.SIGTERM) }
func (e *natsChild) kill(ctx context.Context) error { return e.end(ctx, syscall.SIGKILL) }

func (e *natsChild) end(ctx context.Context, sig syscall.Signal) error {
	if e.server == nil {
		return nil
	}
	err := e.server.stop(ctx, sig)
	e.server = nil
	return err
}

// runNATS is the main function of a server process. It handles SIGTERM by a
// clean shutdown, which the server does itself.
func runNATS() {
	if err := serveNATS(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveNATS() error {
	var s natsSettings
	if len(childArgs) != 1 {
		return errors.New("testbed: role nats: one argument wanted")
	}
	if err := json.Unmarshal([]byte(childArgs[0]), &s); err != nil {
		return fmt.Errorf("testbed: role nats: %w", err)
	}
	options := s.options()
	options.NoSigs = false
	srv, err := server.NewServer(options)
	if err != nil {
		return err
	}
	srv.Start()
	srv.WaitForShutdown()
	return nil
}
