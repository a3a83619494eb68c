package jetstream

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
)

// confirmAttempts is how often a confirmed ack is sent within one AckWait: often
// enough to get over a restart of the server soon, seldom enough for a slow one.
const confirmAttempts = 8

// await settles d when its handler has acked or nacked it. It runs in a
// goroutine of its own: a Watermill message can only be waited for.
func (sub *subscription) await(d *delivery) {
	select {
	case <-d.msg.Acked():
		d.cancel()
		sub.ack(d)
	case <-d.msg.Nacked():
		d.cancel()
		sub.nack(d)
	case <-sub.s.drop.Done():
		d.cancel()
		return
	}
	sub.s.count.inFlight.Add(-1)
	sub.settled <- d
}

func (sub *subscription) ack(d *delivery) {
	body, counter, doing := bodyAck, &sub.s.count.acked, "acking a message"
	if _, terminate := d.info.Disposition(); terminate {
		body, counter, doing = bodyTerm, &sub.s.count.terminated, "terminating a message"
	}
	var err error
	if sub.s.cfg.AckConfirm {
		err = sub.confirm(d, body)
	} else {
		err = d.settle(sub.s.nc, body)
	}
	if err != nil {
		sub.settleFailed(d, doing, err)
		return
	}
	counter.Add(1)
}

// confirm sends body until the server answers, for one AckWait at most. The
// message stays in progress meanwhile.
func (sub *subscription) confirm(d *delivery, body string) error {
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(sub.s.drop, d.wait/confirmAttempts)
		_, err := sub.s.nc.RequestWithContext(ctx, d.reply, []byte(body))
		if err != nil && !sub.s.nc.IsClosed() {
			<-ctx.Done() // that nobody answers is known at once: wait, don't spin
		}
		cancel()
		if err == nil || attempt == confirmAttempts || sub.s.drop.Err() != nil || sub.s.nc.IsClosed() {
			return err
		}
	}
}

func (sub *subscription) nack(d *delivery) {
	if d.lapsed() {
		// By now somebody else may work on it: a nack would take it away.
		sub.s.count.lapsed.Add(1)
		return
	}
	if err := d.settle(sub.s.nc, nackBody(d)); err != nil {
		sub.settleFailed(d, "nacking a message", err)
		return
	}
	sub.s.count.nacked.Add(1)
}

func nackBody(d *delivery) string {
	delay, _ := d.info.Disposition()
	if delay == 0 {
		return bodyNack
	}
	return fmt.Sprintf(`%s {"delay": %d}`, bodyNack, delay.Nanoseconds())
}

// giveBack nacks a message that nobody took.
func (sub *subscription) giveBack(d *delivery) {
	d.cancel()
	if err := d.settle(sub.s.nc, bodyNack); err != nil {
		sub.settleFailed(d, "returning a message", err)
		return
	}
	sub.s.count.returned.Add(1)
}

func (sub *subscription) settleFailed(d *delivery, doing string, err error) {
	sub.s.count.failed.Add(1)
	sub.log.Error("Failed "+doing+"; it will be delivered again", err,
		watermill.LogFields{"stream": d.info.Stream, "sequence": d.info.Sequence})
}
