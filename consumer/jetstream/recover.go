package jetstream

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go"
)

var errDisconnected = errors.New("not connected to NATS")

// open starts fetching from d.
func (sub *subscription) open(d *durable) {
	in, err := openInbox(sub.s.nc, d, sub.s.cfg.InFlight)
	if err != nil {
		sub.fault(err)
		return
	}
	if d.ackWait != sub.ackWait {
		sub.ackWait = d.ackWait
		sub.beat.Reset(signInterval(d.ackWait))
	}
	sub.inbox = in
	sub.pull()
}

// fault ends fetching, and starts it again after a delay that grows until the
// server shows again that it serves us.
func (sub *subscription) fault(err error) {
	sub.quiet.Stop()
	sub.closeInbox()
	if sub.stopping {
		return
	}
	sub.log.Error("Fetching stopped and will start again", err, watermill.LogFields{"delay": sub.delay.String()})
	sub.retry.Reset(sub.delay)
	sub.delay = min(max(2*sub.delay, firstRetry), lastRetry)
}

// lookUp finds or creates the durable, in a goroutine of its own: it may take
// as long as the server's API does, and messages in flight cannot wait. Without
// a connection it is left to the event of its return.
func (sub *subscription) lookUp() {
	if sub.inbox != nil || sub.bound != nil || sub.stopping || !sub.s.nc.IsConnected() {
		return
	}
	bound := make(chan bindDone, 1)
	sub.bound = bound
	sub.s.running.Go(func() {
		d, err := sub.s.bind(sub.ctx, sub.topic)
		bound <- bindDone{d, err}
	})
}

func (sub *subscription) rebound(done bindDone) {
	sub.bound = nil
	switch {
	case sub.stopping:
	case done.err != nil:
		sub.fault(done.err)
	default:
		sub.open(done.durable)
	}
}

// connection reacts to the state of the connection. A request does not survive
// a lost one, since its inbox is gone for a moment or its server for good.
func (sub *subscription) connection(status nats.Status, ok bool) {
	switch {
	case !ok, status == nats.CLOSED:
		sub.conn = nil
		sub.cancel()
		sub.stopDraining()
	case status == nats.CONNECTED:
		sub.delay = 0
		if sub.inbox == nil {
			sub.retry.Reset(0)
		}
	case sub.stopping:
		sub.stopDraining()
	case sub.inbox != nil:
		sub.fault(errDisconnected)
	}
}

// stopDraining: without a connection nothing more arrives.
func (sub *subscription) stopDraining() {
	if sub.drained != nil {
		sub.returnAll()
	}
}
