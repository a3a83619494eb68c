package keys

import (
	"errors"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/dedup"
)

const (
	sourceCloudEvents = "CloudEvents source + id"
	// structuredType starts the content types of structured mode.
	structuredType = "application/cloudevents"
	structuredJSON = "application/cloudevents+json"
)

// CloudEvents takes source and id of a CloudEvent, which together identify it
// (CloudEvents 1.0 section 3.1.1): an id alone is unique only within its
// source. The type is not part of it. They are joined as in [Composite].
//
// Binary mode has them in metadata ce-source and ce-id (NATS and HTTP bindings)
// or ce_source and ce_id (Kafka binding), in any letter case. Structured mode
// has them in the JSON payload; it is taken for structured if metadata
// content-type is application/cloudevents+json, or if there is neither of the
// two in metadata (the NATS binding up to 1.0.2 had no headers). Values are
// taken as they are: percent-encoding is not undone.
//
// It is [Timed]: what counts is the optional attribute time (RFC 3339; blank is
// none) or the time in the id (UUIDv7, ULID), whichever is earlier.
func CloudEvents() Func { return cloudEvents{} }

type cloudEvents struct{}

func (cloudEvents) String() string { return sourceCloudEvents }

func (c cloudEvents) ID(msg *message.Message) (string, error) {
	from, id, _, err := c.read(msg)
	if err != nil {
		return "", err
	}
	return join(from, id), nil
}

func (c cloudEvents) Time(msg *message.Message) (time.Time, error) {
	_, id, read, err := c.read(msg)
	if err != nil {
		return time.Time{}, err
	}
	at, err := eventTime(read("time"))
	return earlier(at, idTime(id)), err
}

// read returns source and id, and what reads other attributes of the event.
func (cloudEvents) read(msg *message.Message) (from, id string, read reader, err error) {
	read, rule := readerOf(msg)
	if rule == "" {
		from, rule = read("source")
	}
	if rule == "" {
		id, rule = read("id")
	}
	if from, id = trim(from), trim(id); rule == "" && (from == "" || id == "") {
		rule = ruleMissing
	}
	if rule != "" {
		err = &Error{sourceCloudEvents, rule}
	}
	return from, id, read, err
}

// eventTime reads what a reader returned for the attribute time. A time that is
// there and no time is an error, and so is Go's zero time, which would count as
// none: dropping it would turn a refused message into a fresh one.
func eventTime(value, rule string) (time.Time, error) {
	if value = trim(value); rule == ruleMissing || value == "" && rule == "" {
		return time.Time{}, nil
	}
	// RFC 3339 lets T and Z be lower case.
	at, err := time.Parse(time.RFC3339Nano, strings.ToUpper(value))
	if rule != "" || err != nil || at.IsZero() {
		return time.Time{}, dedup.Permanent(errors.New("the CloudEvents attribute time is ambiguous, not an RFC 3339 time, or Go's zero time"))
	}
	return at, nil
}

// reader reads an attribute of an event by its name: its value, or the rule that
// it breaks.
type reader func(name string) (value, rule string)

func readerOf(msg *message.Message) (read reader, rule string) {
	contentType, rule := attribute(msg, "content-type")
	if rule != "" {
		return nil, rule
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(trim(mediaType))
	switch {
	case mediaType == structuredJSON:
		return structured(msg.Payload)
	case strings.HasPrefix(mediaType, structuredType):
		return nil, "cannot be read: of the structured formats only single JSON events are supported"
	}
	binary := func(name string) (string, string) { return attribute(msg, "ce-"+name, "ce_"+name) }
	for _, name := range []string{"source", "id"} {
		if value, rule := binary(name); value != "" || rule != "" {
			return binary, ""
		}
	}
	return structured(msg.Payload)
}

// structured reads from the payload.
func structured(payload []byte) (reader, string) {
	read := func(name string) (string, string) { return textAt(payload, []string{name}) }
	if _, rule := read("specversion"); rule != "" {
		return nil, "cannot be read: the payload is no JSON event and there is no ce-source and ce-id in metadata"
	}
	return read, ""
}

// attribute is the value of the metadata field with one of the names, in any
// letter case; empty if there is none. Fields that differ are ambiguous.
func attribute(msg *message.Message, names ...string) (value, rule string) {
	for field, v := range msg.Metadata {
		for _, name := range names {
			if !strings.EqualFold(field, name) || trim(v) == "" {
				continue
			}
			if value != "" && value != trim(v) {
				return "", "is ambiguous: " + names[0] + " is in metadata twice, with different values"
			}
			value = trim(v)
		}
	}
	return value, ""
}
