package testbed

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// Message kinds of the PostgreSQL protocol, version 3 (PostgreSQL manual,
// "Message Formats"). Some letters mean one thing from a client and another
// from the server.
const (
	msgQuery        = 'Q'
	msgParse        = 'P'
	msgBind         = 'B'
	msgExecute      = 'E'
	msgClose        = 'C'
	msgSync         = 'S'
	msgFlush        = 'H'
	msgFunctionCall = 'F'

	msgReadyForQuery   = 'Z'
	msgErrorResponse   = 'E'
	msgCommandComplete = 'C'
)

// Codes of the first packet of a connection, in place of a version.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// messageLimit is the largest message PostgreSQL takes.
const messageLimit = 1 << 30

var errFraming = errors.New("testbed: proxy: this is not the PostgreSQL protocol, version 3")

// pgMessage is a whole message: kind, length, body.
type pgMessage []byte

func (m pgMessage) kind() byte   { return m[0] }
func (m pgMessage) body() []byte { return m[5:] }

// readMessage reads one message.
func readMessage(r *bufio.Reader) (pgMessage, error) {
	header, err := r.Peek(5)
	if err != nil {
		return nil, err
	}
	return readSized(r, int(binary.BigEndian.Uint32(header[1:]))+1, 5)
}

// readStartup reads the first packet of a connection, which has no kind.
func readStartup(r *bufio.Reader) ([]byte, error) {
	header, err := r.Peek(4)
	if err != nil {
		return nil, err
	}
	return readSized(r, int(binary.BigEndian.Uint32(header)), 8)
}

func readSized(r *bufio.Reader, size, least int) ([]byte, error) {
	if size < least || size > messageLimit {
		return nil, errFraming
	}
	buf := make([]byte, size)
	_, err := io.ReadFull(r, buf)
	return buf, err
}

// messageBuffered says whether a whole message can be read without waiting.
func messageBuffered(r *bufio.Reader) bool {
	if r.Buffered() < 5 {
		return false
	}
	header, _ := r.Peek(5)
	return r.Buffered() >= int(binary.BigEndian.Uint32(header[1:]))+1
}

// cutString takes a zero-terminated string off the front of a body.
func cutString(body []byte) (string, []byte) {
	text, rest, _ := bytes.Cut(body, []byte{0})
	return string(text), rest
}
