package dedup

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// maxNameLength bounds scope and operation, which are stored as they are.
	maxNameLength = 128

	// maxIDLength is the longest id that is kept as it is: a B-tree entry has
	// room for it whatever its bytes, and so have the key fields of providers.
	maxIDLength = 255

	// idPrefixLength is how much of a longer id stays readable. With the
	// marker and 64 hex digits it stays below maxIDLength.
	idPrefixLength = 180
	idDigestMarker = ":sha256:"

	// maxIDInput bounds the work of hashing an id that somebody else sent.
	maxIDInput = 1 << 20

	// keyVersion starts the bytes under a key's digest. Changing it would make
	// every stored key a new one.
	keyVersion = "oncemill key v1"
)

// Key names one intent: what is to happen once. Make it with [NewKey], which
// checks and normalises. Keys are equal exactly when their fields are.
//
// The id may be personal or secret: printing or logging a Key shows a digest.
type Key struct {
	Scope     string // tenant or security domain
	Operation string // what is done by whom, named by hand
	ID        string // of the event, made by whoever had the intent
}

// NewKey checks and normalises the parts of a key. Every entry (message, HTTP
// request, direct call) makes its keys here, so that one rule holds for all:
//
//   - Outer blanks (space, tab) of scope and id are cut off, since NATS and
//     HTTP do that to header values on the way. What is blank then is missing.
//   - Scope and operation have 1 to 128 bytes of visible ASCII (0x21 to 0x7e).
//   - The id is valid UTF-8 without ASCII control characters. Spaces inside
//     are allowed. Nothing else is changed: letter case and Unicode forms count.
//   - An id of up to 255 bytes is kept as it is. A longer one, up to 1 MiB, is
//     replaced by its first 180 bytes (cut between characters), ":sha256:" and
//     the SHA-256 of the whole in hex; that text is another spelling of the
//     same id.
//
// A part that breaks a rule gives a [*KeyError], which is permanent: no retry
// can mend it.
func NewKey(scope, operation, id string) (Key, error) {
	scope, id = trimBlanks(scope), trimBlanks(id)
	if rule := checkName(scope); rule != "" {
		return Key{}, &KeyError{Field: "scope", Rule: rule}
	}
	if rule := checkName(operation); rule != "" {
		return Key{}, &KeyError{Field: "operation", Rule: rule}
	}
	if rule := checkID(id); rule != "" {
		return Key{}, &KeyError{Field: "id", Rule: rule}
	}
	return Key{Scope: scope, Operation: operation, ID: shortenID(id)}, nil
}

func trimBlanks(s string) string { return strings.Trim(s, " \t") }

// checkName returns the rule that a scope or operation breaks, "" if none.
func checkName(name string) string {
	switch {
	case name == "":
		return "is missing"
	case len(name) > maxNameLength:
		return "has more than 128 bytes"
	case strings.IndexFunc(name, func(r rune) bool { return r < 0x21 || r > 0x7e }) >= 0:
		return "has a byte that is not visible ASCII"
	}
	return ""
}

// checkID returns the rule that an id breaks, "" if none.
func checkID(id string) string {
	switch {
	case id == "":
		return "is missing or blank"
	case len(id) > maxIDInput:
		return "has more than 1 MiB"
	case !utf8.ValidString(id):
		return "is not valid UTF-8"
	case strings.IndexFunc(id, func(r rune) bool { return r < 0x20 || r == 0x7f }) >= 0:
		return "has a control character"
	}
	return ""
}

func shortenID(id string) string {
	if len(id) <= maxIDLength {
		return id
	}
	end := idPrefixLength
	for !utf8.RuneStart(id[end]) {
		end--
	}
	sum := sha256.Sum256([]byte(id))
	return id[:end] + idDigestMarker + hex.EncodeToString(sum[:])
}

// Digest returns the SHA-256 of the key. Its parts are hashed with their
// lengths, so that no two keys give the same input.
func (k Key) Digest() [32]byte {
	var room [512]byte
	return sha256.Sum256(appendParts(room[:0], keyVersion, k.Scope, k.Operation, k.ID))
}

// InboxID returns the 16 bytes under which the inbox stores the key. If the id
// carries its own time (see [Key.Time]) they are a bit 0, the 47 bits of that
// time in milliseconds and 10 bytes of the digest: new rows land at the right
// edge of the index. For others they are 16 bytes of the digest, with the
// first bit 1. Two keys with one inbox id, should that ever happen, still
// differ in their fingerprints.
func (k Key) InboxID() [16]byte {
	var id [16]byte
	digest := k.Digest()
	if ms, ok := idMillis(k.ID); ok {
		binary.BigEndian.PutUint64(id[:], ms<<16)
		copy(id[6:], digest[:])
		return id
	}
	copy(id[:], digest[:])
	id[0] |= 0x80
	return id
}

// Time returns the time that the id itself carries, to the millisecond and in
// UTC, and whether it carries one: the id must be a UUID of version 7 (RFC
// 9562, 36 characters) or a ULID (26 characters, all upper or all lower case,
// at least one letter) with a time from 2016 to 2099. The time is the
// producer's claim; it is not checked against a clock.
func (k Key) Time() (time.Time, bool) {
	ms, ok := idMillis(k.ID)
	if !ok {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(ms)).UTC(), true
}

// String returns a short digest of the key for logs, never the id.
func (k Key) String() string {
	digest := k.Digest()
	return "key:" + hex.EncodeToString(digest[:8])
}

// GoString is [Key.String], for %#v.
func (k Key) GoString() string { return k.String() }

// LogValue is [Key.String], for slog.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// KeyError says which part of a key breaks which rule. It is permanent (see
// [IsPermanent]) and never quotes the part.
type KeyError struct {
	Field string // scope, operation or id
	Rule  string // what is wrong, such as "is missing"
}

// Error names the field and the rule.
func (e *KeyError) Error() string {
	return fmt.Sprintf("dedup: key: %s %s; see NewKey for the rules", e.Field, e.Rule)
}

// Permanent reports true: the same message has the same key again.
func (e *KeyError) Permanent() bool { return true }
