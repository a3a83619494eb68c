package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/internal/header"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/internal/uuid"
)

// Reason says why a message is held. The set is closed.
type Reason string

// The reasons.
const (
	// ReasonPermanent: the handler returned a permanent error.
	ReasonPermanent Reason = "permanent"
	// ReasonNoKey: the id, the scope or the event time is missing or malformed.
	ReasonNoKey Reason = "no key"
	// ReasonUndecodable: the Subscriber could not decode the message.
	ReasonUndecodable Reason = "undecodable"
	// ReasonConflict: the key came before with another payload.
	ReasonConflict Reason = "conflict"
	// ReasonBeyondHorizon: the event is older than keys are remembered, or its
	// time is ahead of the clock.
	ReasonBeyondHorizon Reason = "beyond horizon"
	// ReasonAckedEarly: the message was acked before its effect was durable,
	// so that the broker will not deliver it again.
	ReasonAckedEarly Reason = "acked early"
)

// heldMessage is a message on its way into the held table.
type heldMessage struct {
	operation string
	topic     string
	reason    Reason
	err       error
	msg       *message.Message
	delivery  *Delivery // nil if the Subscriber gives none
	// intent is nil for a message without key.
	intent *dedup.Intent
	// conflict: the key belongs to another message, so that there is no inbox
	// row of this one.
	conflict bool
}

// id is the identity of the held entry: the inbox id; for a conflict the
// intent and the fingerprint; without key the bytes, and the position in the
// broker if it is known. Redeliveries of one message have one id. The position
// alone would not do: a stream that is made again counts from 1 again.
func (h heldMessage) id() string {
	switch {
	case h.conflict:
		inbox := h.intent.Key.InboxID()
		return digestUUID("conflict", inbox[:], h.intent.Fingerprint.Sum[:])
	case h.intent != nil:
		return h.inboxID()
	case h.delivery != nil && h.delivery.Stream != "":
		return digestUUID("position", []byte(h.operation), []byte(h.delivery.Stream), binary.BigEndian.AppendUint64(nil, h.delivery.Sequence),
			[]byte(h.msg.UUID), header.EncodeMap(h.msg.Metadata), header.Encode(h.delivery.Header), h.msg.Payload)
	}
	return digestUUID("bytes", []byte(h.operation), []byte(h.topic), []byte(h.msg.UUID), header.EncodeMap(h.msg.Metadata), h.msg.Payload)
}

func (h heldMessage) inboxID() string { return uuid.Format(h.intent.Key.InboxID()) }

// digestUUID hashes the parts with their lengths.
func digestUUID(kind string, parts ...[]byte) string {
	sum := sha256.New()
	for _, p := range append([][]byte{[]byte(kind)}, parts...) {
		_ = binary.Write(sum, binary.BigEndian, uint64(len(p)))
		_, _ = sum.Write(p)
	}
	return uuid.Digest([32]byte(sum.Sum(nil)))
}

func (h heldMessage) args() []any {
	var inboxID, scope, key, stream, sequence *string
	var version *int32
	var sum, raw []byte
	var published *time.Time
	if h.intent != nil {
		scope, key = &h.intent.Key.Scope, &h.intent.Key.ID
		version, sum = &h.intent.Fingerprint.Version, h.intent.Fingerprint.Sum[:]
		if !h.conflict {
			id := h.inboxID()
			inboxID = &id
		}
	}
	if d := h.delivery; d != nil {
		raw = header.Encode(d.Header)
		if d.Stream != "" {
			name, seq := sqlText(d.Stream), strconv.FormatUint(d.Sequence, 10)
			stream, sequence = &name, &seq
		}
		if !d.Published.IsZero() {
			published = &d.Published
		}
	}
	return []any{h.id(), inboxID, int16(dedup.StateDead), string(h.reason), sqlText(clean(h.err)), 1,
		scope, h.operation, key, version, sum, sqlText(h.topic), []byte(h.msg.UUID), header.EncodeMap(h.msg.Metadata), raw, notNil(h.msg.Payload),
		stream, sequence, published}
}

// notNil returns b, or empty bytes for nil, which would be NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// sqlText makes s a value that a text column takes.
func sqlText(s string) string {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return strconv.Quote(s)
	}
	return s
}

// notHeldError says that the key turned out not to be free while the message was
// being held; verdict has the error of the claim.
type notHeldError struct{ verdict error }

func (e notHeldError) Error() string { return e.verdict.Error() }
func (e notHeldError) Unwrap() error { return e.verdict }

// holdIn keeps h within a transaction: for a message with a key its inbox row
// becomes a held one, which only a replay may run. The caller commits.
func holdIn(ctx context.Context, inbox *dedup.Inbox, name schema.Name, tx dedup.Tx, h heldMessage) error {
	if h.intent != nil && !h.conflict {
		claim, err := inbox.Claim(ctx, tx, *h.intent)
		if err != nil {
			return err
		}
		if claim.Verdict != dedup.Fresh && claim.Verdict != dedup.BeyondHorizon {
			return notHeldError{claim.Err()}
		}
		if err := inbox.Hold(ctx, tx, claim, dedup.StateDead); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, name.Expand(holdMessage), h.args()...); err != nil {
		return fmt.Errorf("keep the held message: %w", err)
	}
	return nil
}

// hold keeps a message and reports whether it did: a key that turns out to be
// done or held by now needs nothing, one that turns out to belong to another
// payload is a conflict.
func (c *Consumer) hold(ctx context.Context, h heldMessage) (bool, error) {
	err := c.store.hold(ctx, h)
	var not notHeldError
	if !errors.As(err, &not) {
		return err == nil, err
	}
	var conflict *dedup.ConflictError
	if !errors.As(not.verdict, &conflict) {
		return false, nil
	}
	h.conflict, h.reason, h.err = true, ReasonConflict, conflict
	err = c.store.hold(ctx, h)
	return err == nil, err
}
