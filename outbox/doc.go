// Package outbox writes messages in the transaction of the effect that they
// announce, and relays them to JetStream or any Watermill Publisher: they are
// sent if the transaction commits, and never if it does not.
//
//	// in a handler, or any pgx transaction
//	err := outbox.Write(ctx, tx, "payments.commands", msg)
//
//	// in one process or many
//	sink, err := outbox.JetStream(nc, outbox.JetStreamConfig{})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sink: sink})
//	err = relay.Run(ctx)
//
// # What is promised
//
// A committed message is sent until the sink confirms it, or waits as parked
// for a person. Copies can reach the stream, and all copies of a message carry
// the same HeaderID, by which consumers drop them. Payload and metadata arrive
// byte for byte; what could not is refused by Write. For one ordering key,
// messages of a transaction that committed before another wrote its own appear
// first in the stream; copies may trail.
//
// Not promised: exactly one copy; order between keys, or between transactions
// that ran at the same time; order if the sequence behind outbox.id caches
// numbers (it does not unless someone changed it); anything after the database
// lost committed transactions.
//
// # Tables
//
// A message is a row of outbox, which is not touched again until a Purger deletes
// it. What is still to send is a row of outbox_queue, written in the same
// statement and deleted when the sink confirmed. Rows are spread over lanes by
// the hash of the ordering key, else by id.
//
// # Reading
//
// Ids and commits have different orders: a row may become visible after one
// with a higher id. So a relay does not ask for ids above the last one, nor
// does it wait for the oldest open transaction. It takes a lane in
// generations. Each queue row has the xid of the transaction that wrote it. A
// generation is what the snapshot cur shows and the snapshot prev, the end of
// the generation before, did not; it is read in id order, page by page. A page
// looks at a bounded part of the lane, so that it costs the same in any backlog. The
// candidates are rows of transactions that prev lists as running, or that
// began later, found by an index on the xid. The first generation has no prev
// and is all rows of the lane.
//
// This keeps the order asked for. If a transaction committed before another
// wrote its rows, each snapshot that shows the second shows the first: the
// first is in the same generation or an earlier one, and its ids are lower.
//
// A wake-up names the lanes that have new rows; without one a lane is read
// every RelayConfig.Poll. The lanes of a relay share RelayConfig.Connections.
//
// When a failed row falls due, is driven again or skipped, when a mark finds
// less than was sent (it was republished meanwhile), and every five minutes as
// a net, the lane starts over with a generation of all rows, leaving out those
// it has in memory (a rescan). It first reads the open generation to its end,
// and rests for four times what the last rescan took, reading new rows: so any
// number of failing rows leaves the others their turn.
//
// # Sending
//
// At most one row of an ordering key is unacknowledged; the next one is sent
// when the sink confirmed it. Rows without a key have no such bound. No
// transaction is open while messages are sent. HeaderBrokerID is minted with
// the row, so JetStream drops a second publish within its duplicate window
// and acknowledges it: the message is stored. Success is a PubAck of a stream,
// nothing else.
//
// # Failure
//
// An outcome in doubt (no connection, no answer) charges nothing: the row is
// sent again with the same broker id, at first from memory; after three times
// without an answer on a working connection it is put off by five seconds, and
// its reason recorded. While the sink is away nothing is sent, and the lanes
// are let go.
//
// A row that the server rejects (no stream takes the subject, the stream is
// full) is charged one attempt and tried again after a growing delay, on the
// database's clock; after RelayConfig.MaxAttempts it is parked. A row that can
// never be sent (larger than the server takes, headers it cannot carry) is
// parked at once, with the sizes measured. Parked rows stay until Redrive or
// Skip.
//
// A row that failed, for whatever reason, holds up the rows of its ordering
// key that come behind it, since order was asked for, and no other.
//
// # Lanes and leases
//
// One relay sends for a lane at a time. It holds the lane by a lease on the
// database's clock and a fence that counts the holders, and takes its share:
// the lanes divided by the relays that can send, rounded up. It stops sending
// at a deadline on its monotonic clock, measured from before the renewal was
// sent. Marks of sent rows need no fence, since it does not matter who sent
// them; marks of failures are only written while the fence holds. A relay that
// was paused past its lease may still send one message: it is one that it read
// in order, so a copy, or no later than its successor's.
//
// Marks do not wait for the disk (synchronous_commit off): what a crash loses
// of them is sent again.
//
// # After a crash of the broker
//
// JetStream acknowledges before it syncs to disk. Sent rows therefore stay,
// until a Purger runs, and Republish queues those of a time span again. Each round
// has broker ids of its own, derived from the row's by SHA-256 over id and
// round, so that the broker does not drop them; the logical id stays, so that
// consumers do. Republish refuses what consumers may have forgotten.
package outbox
