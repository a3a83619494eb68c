package outbox

import (
	"strings"
	"time"

	"github.com/oncemill/oncemill/internal/header"
)

// Headers that the outbox writes. Names that start with Oncemill- or Nats-,
// in any case, are refused from users.
const (
	// HeaderID is the logical id: the same on every copy of a message, so
	// that a consumer processes one of them.
	HeaderID = "Oncemill-Id"
	// HeaderProviderKey is the idempotency key for an outside provider that
	// the receiver of a command must use verbatim.
	HeaderProviderKey = "Oncemill-Provider-Key"
	// HeaderTime is when the row was written, by the database's clock:
	// RFC 3339 with nanoseconds, UTC. Republishing does not renew it.
	HeaderTime = "Oncemill-Time"
	// HeaderOrderingKey is the ordering key, if the message has one.
	HeaderOrderingKey = "Oncemill-Ordering-Key"
	// HeaderUUID carries message.UUID, as watermill-nats does.
	HeaderUUID = "_watermill_message_uuid"
	// HeaderBrokerID is the id by which JetStream recognises a second publish
	// of a row within the stream's duplicate window.
	HeaderBrokerID = "Nats-Msg-Id"
)

// maxHeaderBlock is what JetStream stores of headers (nats-server: the length
// is kept in 16 bits; error 10097 above it).
const maxHeaderBlock = 65535

// The NATS header block is "NATS/1.0\r\n", one "name: value\r\n" per header,
// and "\r\n" (ADR-4).
const (
	headerFrame     = len("NATS/1.0\r\n") + len("\r\n")
	headerLineExtra = len(": ") + len("\r\n")
)

// usualHeaders is how many headers a message has, mostly.
const usualHeaders = 8

// Longest values of the headers that the relay adds.
const (
	maxTimeLen     = len(time.RFC3339Nano)
	maxBrokerIDLen = 36
)

func lineSize(name string, valueLen int) int { return len(name) + valueLen + headerLineExtra }

// headerBlockSize is the size of the header block that the relay will send for
// a row, with each framework header at its longest.
func headerBlockSize(stored map[string]string, logicalID, orderingKey string) int {
	size := headerFrame + lineSize(HeaderID, len(logicalID)) +
		lineSize(HeaderTime, maxTimeLen) + lineSize(HeaderBrokerID, maxBrokerIDLen)
	if orderingKey != "" {
		size += lineSize(HeaderOrderingKey, len(orderingKey))
	}
	for name, value := range stored {
		size += lineSize(name, len(value))
	}
	return size
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// IsReserved tells whether users may not set a header of this name.
func IsReserved(name string) bool {
	return hasPrefixFold(name, "nats-") || hasPrefixFold(name, "oncemill-") || strings.EqualFold(name, HeaderUUID)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// eachHeader calls yield for each header to send: those stored and those that
// come from the row, but for HeaderBrokerID. A name that is stored twice is
// malformed.
func (m *Message) eachHeader(yield func(name, value string)) error {
	if err := header.EachOnce(m.Header, yield); err != nil {
		return err
	}
	yield(HeaderID, m.LogicalID)
	yield(HeaderTime, formatTime(m.CreatedAt))
	if m.OrderingKey != "" {
		yield(HeaderOrderingKey, m.OrderingKey)
	}
	return nil
}
