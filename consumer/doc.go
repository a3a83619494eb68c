// Package consumer turns each delivery of a Watermill message into one
// PostgreSQL transaction, so that redelivery, copies and crashes leave one
// effect.
//
// # Protocol
//
// For each delivery:
//
//  1. Key: scope, operation and the event's stable id. Missing or malformed
//     is permanent, never an empty key.
//  2. Begin and claim, one round trip: the intent's inbox row is inserted in
//     the transaction that the handler will use (package dedup).
//  3. Verdict: fresh runs; done and held are acked; a conflict and an event
//     beyond the horizon become dead letters; busy goes back with a delay.
//  4. The handler gets a [Tx], a facade of the transaction.
//  5. Finish, one round trip: queued statements, outgoing messages, the
//     result, a check on the server that this is still the claim's
//     transaction, COMMIT. It runs under a deadline of its own, since
//     Watermill cancels the messages' contexts when the Router closes.
//  6. Ack. Nothing is acked before its outcome is durable, and nothing is
//     left for the Router to publish.
//
// # Groups
//
// Deliveries of one operation that are in flight at the same time can share a
// transaction, which is several times faster under load: those of a
// [Consumer.QueueHandler] and a [Consumer.SetHandler] do, those of a plain
// handler with Config.Group. They wait in lanes, by Config.LaneKey; a lane takes
// what waits, up to Config.GroupSize, and never waits for more, so that one
// that is alone is as fast as ever. A group has one scope. Its claims are one
// statement in the order of ids, its members are applied in the order of their
// lane keys, and what they queued, send and store commits once, in one round
// trip. Groups of messages that name what they lock don't deadlock, also in
// several processes.
//
// What a member's failure costs depends on what is known. A handler that fails
// before it sent a statement leaves, and the others go on. One that is known
// otherwise (its own error, its queued statement) leaves, and the others run
// again; when it is not known who it was (a deferred constraint, a deadlock)
// each half runs by itself, down to single ones. A member whose key a live
// rival holds is found and goes back. Neighbours are never charged. A key that
// held up its group runs alone next time. The bound shrinks while groups fail,
// and grows back. A commit in doubt sends all members back. A handler that is a
// second past its deadline loses its connection, and the group goes on without
// it.
//
// Handlers in a group run one after the other, in one transaction, and may run
// again: what they do outside of the database is then repeated. They also share
// what belongs to a transaction: now(), SET LOCAL, advisory and row locks,
// deferred constraints, temporary tables. What a handler reads has what the
// members before it did.
//
// # Failures
//
// They are told apart by type and SQLSTATE, never by text.
//
//	transient   rivals, deadlocks, outages, shutdown: back with a delay,
//	            nobody's fault, no error to the Router
//	in doubt    the reply to COMMIT was lost: back with a delay; the next
//	            delivery finds out
//	permanent   dedup.Permanent(err), no key, undecodable, beyond horizon,
//	            conflict: held as a dead letter, then acked
//	attempt     any other error of the handler, a panic, an aborted
//	            transaction behind a nil error: back with a delay that grows
//	            with the delivery count, and an error to the Router
//
// A held message is kept with its exact payload, metadata and reason. If the
// database is away nothing is acked and nothing is held.
//
// # Subscribers
//
// Any Watermill Subscriber works. One that puts a [Delivery] into the
// message's context, as the sub-package jetstream does, gets the delays and
// tells the broker position. Without it the Consumer waits a bounded time
// before a delayed nack.
//
// # Middlewares
//
// The transaction ends where the Consumer's handler or middleware ends. What
// stands inside of it may swallow an error and let partial work commit; what
// stands outside sees the outcome: Retry, PoisonQueue and the like belong
// outside. An early ack (InstantAck) is detected: the message is held.
package consumer
