package keys

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// headerLogicalID is written by oncemill's relay: the same on every copy of
	// a message that one intent made.
	headerLogicalID = "Oncemill-Id"
	// headerBrokerID is JetStream's deduplication id.
	headerBrokerID = "Nats-Msg-Id"
)

// Metadata takes the id from a metadata field, by its exact name. It panics on
// a blank name.
func Metadata(field string) Func {
	if trim(field) == "" {
		panic("keys.Metadata: field: is blank; name the metadata field that holds the id")
	}
	return metadata("metadata "+strconv.Quote(field), field)
}

// LogicalID takes the id that oncemill's relay gives each message of an intent,
// metadata Oncemill-Id.
func LogicalID() Func { return metadata("logical id", headerLogicalID) }

// BrokerID takes the broker's message id, metadata Nats-Msg-Id, but prefers the
// logical id where there is one: the relay mints a broker id per row and round.
// Use it when producers make the broker id of the intent.
func BrokerID() Func { return metadata("broker id", headerLogicalID, headerBrokerID) }

// MessageUUID takes Watermill's message UUID. Mind that Watermill's publishers
// mint a fresh one per publish (its cqrs component does so, too): then a retry
// by the producer is a new intent and runs again. Use it only where the
// producer sets the UUID to an id of the intent.
func MessageUUID() Func {
	return source{"message UUID", func(msg *message.Message) (string, error) { return msg.UUID, nil }}
}

// metadata takes the first field that is not blank.
func metadata(name string, fields ...string) Func {
	return source{name, func(msg *message.Message) (string, error) {
		for _, field := range fields {
			if v := trim(msg.Metadata[field]); v != "" {
				return v, nil
			}
		}
		return "", nil
	}}
}
