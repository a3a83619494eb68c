package jetstream

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
)

// Bodies of the ack protocol, published to a message's reply subject
// (ADR-15 of NATS).
const (
	bodyAck      = "+ACK"
	bodyNack     = "-NAK"
	bodyTerm     = "+TERM"
	bodyProgress = "+WPI"
)

// delivery is one message in flight.
type delivery struct {
	reply  string
	msg    *message.Message
	info   *consumer.Delivery
	cancel context.CancelFunc // ends the message's context
	since  time.Time          // when it was fetched
	wait   time.Duration      // its AckWait

	mu      sync.Mutex // orders signs of progress before the settlement
	seen    time.Time  // when the server last heard of it
	settled bool
}

// newDelivery makes the message of nm, whose reply subject was parsed to meta.
func (sub *subscription) newDelivery(nm *nats.Msg, meta *nats.MsgMetadata) *delivery {
	info := &consumer.Delivery{
		Stream:    meta.Stream,
		Subject:   nm.Subject,
		Sequence:  meta.Sequence.Stream,
		Count:     meta.NumDelivered,
		Published: meta.Timestamp,
		Header:    nm.Header,
	}
	if ids := nm.Header[natsjs.MsgIDHeader]; len(ids) == 1 {
		info.BrokerID = ids[0]
	}
	msg := sub.s.decode(nm, info)
	ctx, cancel := context.WithCancel(consumer.ContextWithDelivery(sub.values, info))
	msg.SetContext(ctx)
	now := time.Now()
	return &delivery{reply: nm.Reply, msg: msg, info: info, cancel: cancel, since: now, wait: sub.ackWait, seen: now}
}

// extend tells the server that the message is being worked on, unless it is
// settled or was kept for long enough.
func (sub *subscription) extend(d *delivery, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settled || now.Sub(d.since) >= sub.s.cfg.MaxExtend {
		return
	}
	if sub.s.nc.Publish(d.reply, []byte(bodyProgress)) == nil {
		d.seen = now
		sub.s.count.extended.Add(1)
	}
}

// settle ends signs of progress and sends body. A sign after a delayed nack
// would replace its delay by a whole AckWait.
func (d *delivery) settle(nc *nats.Conn, body string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled = true
	return nc.Publish(d.reply, []byte(body))
}

// lapsed tells whether the server may have given the message to somebody else.
func (d *delivery) lapsed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.seen) >= d.wait
}
