package keys

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
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
func CloudEvents() Func {
	return source{sourceCloudEvents, func(msg *message.Message) (string, error) {
		event, rule := eventOf(msg)
		if rule != "" {
			return "", &Error{sourceCloudEvents, rule}
		}
		from, id := trim(event.source), trim(event.id)
		if from == "" || id == "" {
			return "", &Error{sourceCloudEvents, ruleMissing}
		}
		return join(from, id), nil
	}}
}

type cloudEvent struct{ source, id string }

func eventOf(msg *message.Message) (event cloudEvent, rule string) {
	contentType, rule := attribute(msg, "content-type")
	if rule != "" {
		return event, rule
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(trim(mediaType))
	switch {
	case mediaType == structuredJSON:
		return structured(msg.Payload)
	case strings.HasPrefix(mediaType, structuredType):
		return event, "cannot be read: of the structured formats only single JSON events are supported"
	}
	if event, rule = binary(msg); event == (cloudEvent{}) && rule == "" {
		return structured(msg.Payload)
	}
	return event, rule
}

func binary(msg *message.Message) (event cloudEvent, rule string) {
	if event.source, rule = attribute(msg, "ce-source", "ce_source"); rule != "" {
		return event, rule
	}
	event.id, rule = attribute(msg, "ce-id", "ce_id")
	return event, rule
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

// structured reads the event from the payload.
func structured(payload []byte) (event cloudEvent, rule string) {
	if _, rule = textAt(payload, []string{"specversion"}); rule != "" {
		return event, "cannot be read: the payload is no JSON event and there is no ce-source and ce-id in metadata"
	}
	if event.source, rule = textAt(payload, []string{"source"}); rule != "" {
		return event, rule
	}
	event.id, rule = textAt(payload, []string{"id"})
	return event, rule
}
