package outbox

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"
)

// Limits of a message, in bytes.
const (
	// MaxTopic is the longest topic. NATS itself fails a connection whose
	// control line is over 4 KiB, subject and reply subject included.
	MaxTopic = 512
	// MaxOrderingKey is the longest ordering key.
	MaxOrderingKey = 255
	// MaxID is the longest logical id, provider key or message UUID.
	MaxID = 1024
	// DefaultMaxBytes bounds payload and headers together while no relay has
	// stored what the broker takes. It is the default of nats-server.
	DefaultMaxBytes = 1 << 20
)

// RefusedError is why a message was not written. It holds no values, only
// names: it may be logged.
type RefusedError struct {
	// Field is what was refused: "topic", "header", "payload", "size",
	// "ordering key", "logical id", "provider key", "uuid" or "message".
	Field string
	// Header is the header's name, if Field is "header".
	Header string
	// Rule is what was violated and what to do.
	Rule string
}

func (e *RefusedError) Error() string {
	if e.Field == "header" {
		return fmt.Sprintf("outbox: message refused: header %s: %s", quoteShort(e.Header), e.Rule)
	}
	return fmt.Sprintf("outbox: message refused: %s: %s", e.Field, e.Rule)
}

func quoteShort(name string) string {
	const limit = 80
	if len(name) > limit {
		return fmt.Sprintf("%q… (%d bytes)", name[:limit], len(name))
	}
	return fmt.Sprintf("%q", name)
}

// AsRefused turns the database's refusal of a queued write (see QueueWrite)
// into a *RefusedError, and returns any other error as it is.
func AsRefused(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.ConstraintName == sizeConstraint {
		return &RefusedError{Field: "size", Rule: "payload and headers are larger than the broker takes (max_payload of the server, outbox_settings.max_payload); send less or raise the limit"}
	}
	return err
}

// topicRule returns what is wrong with a topic, "" if nothing. Subjects are
// UTF-8; a token may hold anything but blanks, control characters, '*', '>'.
func topicRule(topic string) string {
	switch {
	case topic == "":
		return "must not be empty"
	case len(topic) > MaxTopic:
		return fmt.Sprintf("is %d bytes long, the limit is %d", len(topic), MaxTopic)
	case !utf8.ValidString(topic):
		return "must be valid UTF-8"
	case strings.ContainsAny(topic, "*>"):
		return "must not hold the wildcards * and >"
	case strings.ContainsFunc(topic, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return "must not hold blanks or control characters"
	case topic[0] == '$' || topic == "_INBOX" || strings.HasPrefix(topic, "_INBOX."):
		return "must not start with $ or _INBOX, which NATS reserves"
	case strings.HasPrefix(topic, ".") || strings.HasSuffix(topic, ".") || strings.Contains(topic, ".."):
		return "must not have empty tokens: no dot first, last or twice"
	}
	return ""
}

// nameRule returns what is wrong with a header name. NATS takes the token
// characters of RFC 7230, section 3.2.6.
func nameRule(name string) string {
	if name == "" {
		return "must not be empty"
	}
	for i := range len(name) {
		c := name[i]
		isToken := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
		if !isToken {
			return "NATS takes letters, digits and !#$%&'*+-.^_`|~ in a name"
		}
	}
	return ""
}

// valueRule returns what is wrong with a header value. All other bytes,
// invalid UTF-8 included, arrive as they were sent.
func valueRule(value string) string {
	switch {
	case strings.ContainsAny(value, "\r\n\x00"):
		return "must not hold CR, LF or NUL: NATS would change the value; encode it"
	case strings.Trim(value, " \t") != value:
		return "must not start or end with a blank: NATS would cut it off; encode the value"
	}
	return ""
}

// idRule returns what is wrong with a value that is also stored as text.
func idRule(value string, limit int) string {
	switch {
	case len(value) > limit:
		return fmt.Sprintf("is %d bytes long, the limit is %d", len(value), limit)
	case !utf8.ValidString(value):
		return "must be valid UTF-8"
	}
	return valueRule(value)
}

func checkMetadata(msg *message.Message) error {
	for name, value := range msg.Metadata {
		rule := nameRule(name)
		switch {
		case rule != "":
		case IsReserved(name):
			rule = "names that start with Nats- or Oncemill-, and " + HeaderUUID + ", are reserved; rename it"
		case name == "Status" && len(msg.Payload) == 0:
			rule = "NATS clients drop an empty message with this header as a status of the server; rename it"
		default:
			rule = valueRule(value)
		}
		if rule != "" {
			return &RefusedError{Field: "header", Header: name, Rule: rule}
		}
	}
	return nil
}

func refuse(field, rule string) error {
	if rule == "" {
		return nil
	}
	return &RefusedError{Field: field, Rule: rule}
}
