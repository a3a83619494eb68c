// Package oncemill makes at-least-once delivery effectively-once for services
// built on Watermill, PostgreSQL and NATS JetStream.
//
// A message may arrive any number of times, from any number of producers,
// through crashes, redeliveries and broker restarts: its effect in the
// database happens once and its outgoing messages leave once.
//
//   - [github.com/oncemill/oncemill/consumer] turns one delivery into one
//     transaction: claim, handler, outgoing messages, commit, ack.
//   - [github.com/oncemill/oncemill/consumer/jetstream] is a Watermill
//     Subscriber for JetStream that delays, terminates and keeps alive.
//   - [github.com/oncemill/oncemill/outbox] writes outgoing messages in the
//     transaction of the effect and relays them until the broker confirms.
//   - [github.com/oncemill/oncemill/dedup] has what they stand on: keys,
//     fingerprints, the inbox, retention. It works without Watermill and NATS,
//     in any transaction of yours.
//
// This package has the database schema: [Migrate], [Grants], [MigrationSQL].
//
// # What is promised
//
// For one key (scope, operation, id) the database effect of a handler commits
// at most once, and exactly once if the message stays deliverable. Messages
// that the handler returns commit with the effect; copies on the wire carry
// one logical id, and an oncemill consumer processes one of them. Nothing is
// acked before its outcome is durable.
//
// # What is not
//
// Atomicity between the database and anything outside it; exactly-once
// delivery; dedup of two keys that mean the same thing; dedup beyond retention
// for messages that carry no time of their own; anything after a failover that
// loses committed transactions.
package oncemill
