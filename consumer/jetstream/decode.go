package jetstream

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
)

const (
	// headerUUID carries Watermill's message UUID, as watermill-nats writes it.
	headerUUID = "_watermill_message_uuid"
	// headerLogicalID is the logical id that oncemill's relay writes.
	headerLogicalID = "Oncemill-Id"
)

// errHeaders is the DecodeErr of a message whose header block is not one.
var errHeaders = errors.New("decoding a message: its headers are malformed")

// RepeatedHeaderError is the DecodeErr of a message that gives one header
// several values. Which one counts is not guessed. All are in
// consumer.Delivery.Header.
type RepeatedHeaderError struct {
	// Count is how many headers are repeated.
	Count int
}

func (e *RepeatedHeaderError) Error() string {
	return fmt.Sprintf("decoding a message: %d of its headers have several values, metadata holds one", e.Count)
}

// Decode is the default of [Config.Decode]. The payload is taken as it is.
// Every header becomes a metadata entry, key and value verbatim, except
// _watermill_message_uuid, which becomes the UUID. Without that the UUID is
// Oncemill-Id, else Nats-Msg-Id, else empty, and the Subscriber then fills in
// the position in the stream. A header with several values is a
// [*RepeatedHeaderError].
func Decode(nm *nats.Msg) (*message.Message, error) {
	msg := message.NewMessage("", nm.Data)
	repeated := 0
	for key, values := range nm.Header {
		switch {
		case len(values) > 1:
			repeated++
		case len(values) == 1 && key == headerUUID:
			msg.UUID = values[0]
		case len(values) == 1:
			msg.Metadata[key] = values[0]
		}
	}
	if repeated > 0 {
		return nil, &RepeatedHeaderError{Count: repeated}
	}
	for _, key := range []string{headerLogicalID, natsjs.MsgIDHeader} {
		if msg.UUID == "" {
			msg.UUID = msg.Metadata[key]
		}
	}
	return msg, nil
}

// decode makes the message of a delivery. It never fails: what cannot be
// decoded becomes a message with the raw payload, no metadata and DecodeErr.
func (s *Subscriber) decode(nm *nats.Msg, d *consumer.Delivery) *message.Message {
	position := d.Stream + ":" + strconv.FormatUint(d.Sequence, 10)
	msg, err := s.tryDecode(nm)
	if err != nil {
		d.DecodeErr = err
		return message.NewMessage(position, nm.Data)
	}
	if msg.UUID == "" {
		msg.UUID = position
	}
	return msg
}

func (s *Subscriber) tryDecode(nm *nats.Msg) (msg *message.Message, err error) {
	defer func() {
		if r := recover(); r != nil { // the value may quote the payload
			err = fmt.Errorf("decoding a message: Config.Decode panicked with a %T", r)
		}
	}()
	if lostHeaders(nm) {
		return nil, errHeaders
	}
	// A copy without Sub and Reply, so that Decode cannot settle the message.
	msg, err = s.cfg.Decode(&nats.Msg{Subject: nm.Subject, Header: nm.Header, Data: nm.Data})
	if err == nil && msg == nil {
		err = errors.New("decoding a message: Config.Decode returned neither a message nor an error")
	}
	return msg, err
}

// lostHeaders tells whether the message had a header block that nats.go could
// not parse. nats.go then delivers it without headers; only the size on the
// wire shows that there were some.
func lostHeaders(nm *nats.Msg) bool {
	return nm.Header == nil && nm.Size() > len(nm.Subject)+len(nm.Reply)+len(nm.Data)
}
