package consumer

import (
	"context"
	"sync"
	"time"
)

// Delivery is the contract between a Subscriber and a [Consumer]: what the
// Subscriber knows about one arrival of a message, and how the Consumer wants
// it settled. A Subscriber puts one into the message's context with
// [ContextWithDelivery]; after the message is acked or nacked it reads
// [Delivery.Disposition].
//
// A Subscriber that does not put one there works too. The Consumer then knows
// no broker position, and waits a bounded time itself before a delayed nack
// (see Config.NackWait).
//
// The exported fields are set before the message is handed over and only read
// afterwards; the methods are safe for concurrent use.
type Delivery struct {
	// BrokerID is the broker's own message id (JetStream: Nats-Msg-Id), empty
	// if the producer gave none. It identifies a publish, not an intent.
	BrokerID string
	// Subject is where the message was published, which may be narrower than
	// the topic that was subscribed to. Empty if unknown.
	Subject string
	// Stream and Sequence are the position of the message in the broker, empty
	// and zero if unknown. Together they identify the stored message.
	Stream   string
	Sequence uint64
	// Count is the number of this delivery, 1 for the first, 0 if unknown.
	Count uint64
	// Published is when the broker stored the message, zero if unknown. It is
	// the broker's time, renewed by every republish: never an event time.
	Published time.Time
	// Header holds the raw headers with repeated values kept in order.
	Header map[string][]string
	// DecodeErr is set when the message could not be decoded. Payload then
	// holds the raw bytes and Metadata is empty: the Consumer keeps the message
	// as a dead letter and never runs the handler.
	DecodeErr error

	mu        sync.Mutex
	delay     time.Duration
	terminate bool
}

type deliveryKey struct{}

// ContextWithDelivery returns a context that carries d.
func ContextWithDelivery(ctx context.Context, d *Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFrom returns the Delivery of the message whose context ctx is, and
// whether there is one.
func DeliveryFrom(ctx context.Context) (*Delivery, bool) {
	d, ok := ctx.Value(deliveryKey{}).(*Delivery)
	return d, ok
}

// NackAfter asks that a nacked message be delivered again no sooner than
// delay from now. The last call counts; zero means at once. It must be called
// before the message is nacked.
func (d *Delivery) NackAfter(delay time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delay = max(delay, 0)
}

// Terminate asks that an acked message be marked as never to be delivered
// again, where the broker knows the difference (JetStream: TERM instead of
// ACK). It must be called before the message is acked.
func (d *Delivery) Terminate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.terminate = true
}

// Disposition returns how the message is to be settled: the delay that goes
// with a nack, and whether an ack should be a termination. A Subscriber reads
// it after Acked() or Nacked() was closed.
func (d *Delivery) Disposition() (nackDelay time.Duration, terminate bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.delay, d.terminate
}
