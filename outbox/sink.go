package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/internal/uuid"
)

// Message is a row to send, as the relay hands it to a Sink.
type Message struct {
	// BrokerID is the same whenever this row is sent in one round.
	BrokerID string
	// LogicalID is the same on every copy of the message, in any round.
	LogicalID   string
	Topic       string
	OrderingKey string
	CreatedAt   time.Time
	// Header has the metadata of the message, encoded; see Metadata.
	Header  []byte
	Payload []byte
}

// Metadata returns the headers to send: those of the user and those of the
// outbox, but for HeaderBrokerID.
func (m *Message) Metadata() (map[string]string, error) {
	h := make(map[string]string, usualHeaders)
	err := m.eachHeader(func(name, value string) { h[name] = value })
	return h, err
}

// Sink is where a relay sends. Its methods are called concurrently, one
// goroutine per lane.
type Sink interface {
	// Send sends m and calls done exactly once, with nil when m is stored. It
	// may return before; done may be called from any goroutine and does not
	// block. The error of done should be a *SendError; any other one means
	// that the outcome is in doubt.
	//
	// Send may block for a bounded time, shorter than the relay's lease. The
	// next message of an ordering key is sent when done was called with nil.
	Send(ctx context.Context, m *Message, done func(error))
	// Ready returns nil while it makes sense to send. While it does not,
	// nothing is sent and nobody is charged for it.
	Ready() error
	// MaxBytes is the largest message, payload and headers, that the sink
	// takes now; 0 if it is not known.
	MaxBytes() int
}

// Outcome says what is known about a message that was not confirmed.
type Outcome int

const (
	// InDoubt means that it may or may not have been stored. It is sent again with the
	// same broker id, and not charged.
	InDoubt Outcome = iota
	// Rejected means that the receiver refused it and may take it later. The attempt is
	// charged, with a growing delay.
	Rejected
	// Unsendable means that it cannot be stored as it is. The row is parked.
	Unsendable
)

// SendError is the outcome of a message that was not confirmed.
type SendError struct {
	Outcome Outcome
	// Reason is stored with the row and shown to people: no payloads, no
	// header values. It is cut after 500 bytes.
	Reason string
	Err    error
}

func (e *SendError) Error() string { return "outbox: send: " + e.Reason }

func (e *SendError) Unwrap() error { return e.Err }

func asSendError(err error) *SendError {
	var e *SendError
	if errors.As(err, &e) {
		return e
	}
	return &SendError{Outcome: InDoubt, Reason: fmt.Sprintf("the sink failed (%T)", err), Err: err}
}

const maxReason = 500

// cleanReason makes a reason fit for a text column and a terminal.
func cleanReason(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}

// brokerIDOf returns the broker id of a round: the row's own for the first,
// then a UUID version 8 (RFC 9562) from SHA-256(row's id, round).
func brokerIDOf(own string, round int32) string {
	if round == 0 {
		return own
	}
	return uuid.Digest(sha256.Sum256(binary.BigEndian.AppendUint32([]byte(own), uint32(round))))
}
