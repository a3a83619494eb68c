package testbed

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Stream is a JetStream stream of its own, with a connection. It takes all
// subjects under Prefix, which nobody else uses.
type Stream struct {
	Conn   *nats.Conn
	JS     jetstream.JetStream
	Stream jetstream.Stream
	Name   string
	Prefix string
	Server *NATS
}

// OpenStream makes a stream of a fresh name on file storage. tune may change
// its configuration; nil leaves it.
func (n *NATS) OpenStream(ctx context.Context, tune func(*jetstream.StreamConfig)) (*Stream, error) {
	conn, err := n.Connect()
	if err != nil {
		return nil, err
	}
	s, err := newStream(ctx, conn, tune)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("testbed: creating a stream: %w", err)
	}
	s.Server = n
	return s, nil
}

func newStream(ctx context.Context, conn *nats.Conn, tune func(*jetstream.StreamConfig)) (*Stream, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	id := randomHex(6)
	s := &Stream{Conn: conn, JS: js, Name: "OM_" + id, Prefix: "om." + id}
	cfg := jetstream.StreamConfig{Name: s.Name, Subjects: []string{s.Prefix + ".>"}, Storage: jetstream.FileStorage}
	if tune != nil {
		tune(&cfg)
	}
	s.Name = cfg.Name
	s.Stream, err = js.CreateStream(ctx, cfg)
	return s, err
}

// Subject is the subject for a name under the stream's prefix: "new" gives
// "om.1f2e3d4c5b6a.new".
func (s *Stream) Subject(name string) string { return s.Prefix + "." + name }

// Close deletes the stream and closes the connection.
func (s *Stream) Close(ctx context.Context) error {
	defer s.Conn.Close()
	ctx, cancel := bounded(ctx, stopBound)
	defer cancel()
	err := s.JS.DeleteStream(ctx, s.Name)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("testbed: deleting stream %s: %w (a test that stops its server starts it again before it ends)", s.Name, err)
	}
	return nil
}
