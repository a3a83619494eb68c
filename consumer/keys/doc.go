// Package keys says where the id of an intent comes from: which part of a
// message stays the same when the same thing is asked for again.
//
//	consumer.Config{Key: keys.Metadata("event_id")}
//
// The right source is the one that whoever had the intent made, and that every
// retry repeats: a business id, an event id. A delivery id or an id minted per
// publish makes each retry a new intent, which is run again.
//
// Every source follows one rule. Outer blanks (space, tab) are cut off, since
// NATS and HTTP do that on the way; what is blank then is missing. A missing or
// malformed id is an [*Error], which is permanent: the message is held for a
// person, never run under an empty key and never retried. Nothing else about
// the id is changed here; dedup.NewKey checks it. Errors name the source, never
// the value.
//
// An id may carry the time of its event, by which one that is too old is told:
// a UUIDv7 or ULID does, and what is joined of several parts is [Timed].
package keys
