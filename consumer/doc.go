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
