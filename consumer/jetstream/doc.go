// Package jetstream is a Watermill Subscriber for NATS JetStream that knows
// what a [consumer.Consumer] needs: the broker's position and delivery count of
// each message, delayed nacks, terminations, and messages that cannot be
// decoded.
//
// # Authority
//
// A subscription reads one durable pull consumer (the "durable") of an existing
// stream. The server owns the position. The Subscriber creates the durable if
// it is missing and otherwise takes it as it is: it never updates, resets or
// deletes one. A durable under which messages could be lost is refused: one
// with a delivery limit (once it is used up the server keeps the message, shows
// nothing pending and delivers no more), one without explicit acks, a push
// consumer, one that leaves out payloads.
//
// # States of a delivery
//
//	fetched -> handed out -> acked | nacked -> settled on the server
//	fetched -> returned   (shutdown before anybody took it: nacked at once)
//	any     -> lapsed     (AckWait is over: the server delivers it again)
//
// Messages are asked for only while there is room: what was fetched and is not
// settled, plus what is asked for, never exceeds [Config.InFlight]. No message
// waits in a client buffer for a handler, which would use up its AckWait.
//
// The handler's Ack becomes an ack, or a termination if the Consumer asked for
// one with [consumer.Delivery.Terminate]. Its Nack becomes a nack, with the
// delay asked for with [consumer.Delivery.NackAfter]. A failure to settle is
// logged and counted, never an error of the handler: its outcome is durable
// already, and the next delivery is a duplicate.
//
// # Time
//
// From fetch to settlement the Subscriber tells the server every third of an
// AckWait that the message is in progress, at most for [Config.MaxExtend]. A
// handler that hangs longer loses the message to another worker within one more
// AckWait. It keeps its slot, since it still runs. Its late ack is sent (the
// outcome is durable), its late nack is not (the delivery is no longer its own).
//
// # Failure
//
// A lost connection, a restarted server, a changed leader, a deleted durable, a
// lost request: fetching starts again on a new inbox, after a growing delay if
// it keeps failing. Messages in flight are kept; if the server gave them to
// somebody else meanwhile, that is a redelivery like any other. A durable that
// was deleted is created again (unless [Config.Bind] is set) and starts where
// its configuration says, by default at the start of the stream: everything
// still stored arrives once more, as duplicates.
//
// # Shutdown
//
// Close stops fetching, closes the output channels, returns what nobody took,
// and waits up to [Config.CloseTimeout] for the messages in flight. Their
// contexts stay alive so that they can finish. After the bound their contexts
// are cancelled and they are left to redelivery. The end of the context given
// to Subscribe does the same for one subscription, without a bound.
//
// # Not promised
//
// Delivery once: the server may deliver any message again. An order: more than
// one message may be in flight, and a nacked one comes later.
package jetstream
