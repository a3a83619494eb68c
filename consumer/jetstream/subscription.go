package jetstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
)

const (
	// signsPerWait is how many signs of progress fit into one AckWait: one may
	// be lost and one late before the message is delivered again.
	signsPerWait = 3
	// firstRetry and lastRetry bound the delay before fetching starts again
	// after a fault. The first attempt is made at once.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// subscription reads one durable. Its fields belong to the goroutine of run;
// others only use settled, and extend and settle a delivery under its mutex.
type subscription struct {
	s       *Subscriber
	topic   string
	values  context.Context // of Subscribe, without its end
	ctx     context.Context // ends when fetching is to stop
	cancel  context.CancelFunc
	unhook  func() bool // frees what ties ctx to the Subscriber
	out     chan *message.Message
	settled chan *delivery
	log     watermill.LoggerAdapter
	ackWait time.Duration

	inFlight map[*delivery]struct{} // fetched and not settled
	queue    []*delivery            // of these, those nobody took yet

	inbox *inbox        // nil while there is none
	bound chan bindDone // nil unless the durable is being looked up
	retry *time.Timer   // runs while waiting to look it up
	delay time.Duration // the next such wait
	quiet *time.Timer   // runs out when the server forgot the request
	beat  *time.Ticker  // signs of progress

	status chan nats.Status
	conn   <-chan nats.Status // status, nil once the connection is closed

	stopping bool
	drained  chan struct{} // while stopping: closed when nothing more arrives
}

type bindDone struct {
	durable *durable
	err     error
}

var errQuiet = errors.New("the server forgot the request for messages")

func newSubscription(ctx context.Context, s *Subscriber, topic string, d *durable) *subscription {
	sub := &subscription{
		s: s, topic: topic, values: context.WithoutCancel(ctx),
		out:      make(chan *message.Message),
		settled:  make(chan *delivery, s.cfg.InFlight),
		log:      s.cfg.Logger.With(s.logFields(topic, d)),
		ackWait:  d.ackWait,
		inFlight: map[*delivery]struct{}{},
		retry:    stoppedTimer(),
		quiet:    stoppedTimer(),
		beat:     time.NewTicker(signInterval(d.ackWait)),
		status:   s.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED),
	}
	sub.conn = sub.status
	sub.ctx, sub.cancel = context.WithCancel(ctx)
	sub.unhook = context.AfterFunc(s.stop, sub.cancel)
	sub.open(d)
	return sub
}

func signInterval(ackWait time.Duration) time.Duration {
	return max(ackWait/signsPerWait, time.Millisecond)
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// run is the life of the subscription. One goroutine does it all: what takes
// time (looking up the durable, waiting for handlers, confirmed acks) is done
// elsewhere and reported to it.
func (sub *subscription) run() {
	defer sub.end()
	stop := sub.ctx.Done()
	for !sub.finished() {
		out, head := sub.head()
		select {
		case nm := <-sub.arrivals():
			sub.receive(nm)
		case out <- head:
			sub.handOut()
		case d := <-sub.settled:
			delete(sub.inFlight, d)
		case now := <-sub.beat.C:
			sub.extendAll(now)
		case <-sub.quiet.C:
			sub.fault(errQuiet)
		case <-sub.retry.C:
			sub.lookUp()
		case done := <-sub.bound:
			sub.rebound(done)
		case status, ok := <-sub.conn:
			sub.connection(status, ok)
		case <-stop:
			stop = nil
			sub.shutDown()
		case <-sub.drained:
			sub.returnAll()
		case <-sub.s.drop.Done():
			return
		}
		sub.pull()
	}
}

func (sub *subscription) finished() bool {
	return sub.stopping && sub.drained == nil && len(sub.inFlight) == 0
}

func (sub *subscription) end() {
	if !sub.stopping { // Close does not wait at all
		sub.shutDown()
	}
	sub.returnAll()
	sub.cancel()
	sub.unhook()
	sub.beat.Stop()
	sub.s.nc.RemoveStatusListener(sub.status)
}

// arrivals is the channel of the inbox, nil if there is none.
func (sub *subscription) arrivals() <-chan *nats.Msg {
	if sub.inbox == nil {
		return nil
	}
	return sub.inbox.ch
}

// head is the message to hand out next and where to; nil if there is none.
func (sub *subscription) head() (chan<- *message.Message, *message.Message) {
	if len(sub.queue) == 0 || sub.stopping {
		return nil, nil
	}
	return sub.out, sub.queue[0].msg
}

func (sub *subscription) handOut() {
	d := sub.queue[0]
	sub.queue[0] = nil
	sub.queue = sub.queue[1:]
	sub.s.running.Go(func() { sub.await(d) })
}

func (sub *subscription) receive(nm *nats.Msg) {
	meta, fault := sub.inbox.classify(nm)
	if fault != nil {
		sub.fault(fault)
		return
	}
	sub.delay = 0
	sub.quiet.Reset(2 * sub.inbox.heartbeat())
	if meta != nil {
		sub.accept(sub.newDelivery(nm, meta))
	}
}

func (sub *subscription) accept(d *delivery) {
	sub.s.count.fetched.Add(1)
	if d.info.DecodeErr != nil {
		sub.s.count.undecoded.Add(1)
	}
	sub.s.count.inFlight.Add(1)
	sub.inFlight[d] = struct{}{}
	sub.queue = append(sub.queue, d)
}

// extendAll sends signs of progress. Without a connection they would only pile
// up.
func (sub *subscription) extendAll(now time.Time) {
	if !sub.s.nc.IsConnected() {
		return
	}
	for d := range sub.inFlight {
		sub.extend(d, now)
	}
}

// pull asks for messages if there is room and none are still to come.
func (sub *subscription) pull() {
	if sub.inbox == nil || sub.stopping {
		return
	}
	asked := sub.inbox.asked
	if err := sub.inbox.pull(sub.s.nc, sub.s.cfg.InFlight-len(sub.inFlight)); err != nil {
		sub.fault(err)
		return
	}
	switch {
	case sub.inbox.asked == 0:
		sub.quiet.Stop()
	case asked == 0:
		sub.quiet.Reset(2 * sub.inbox.heartbeat())
	}
}

// shutDown stops fetching. Messages under way still arrive; the drain ends with
// a round trip, after which none can come.
func (sub *subscription) shutDown() {
	sub.stopping = true
	close(sub.out)
	sub.retry.Stop()
	sub.quiet.Stop()
	if sub.inbox == nil || !sub.s.nc.IsConnected() {
		sub.returnAll()
		return
	}
	drained := make(chan struct{})
	once := sync.OnceFunc(func() { close(drained) }) // nats.go may call it again
	sub.inbox.sub.SetClosedHandler(func(string) { once() })
	if sub.inbox.sub.Drain() != nil {
		sub.returnAll()
		return
	}
	sub.drained = drained
}

// returnAll gives back what nobody took, when no more can come: while a request
// is at the server it would only come here again.
func (sub *subscription) returnAll() {
	sub.drained = nil
	sub.closeInbox()
	for _, d := range sub.queue {
		sub.giveBack(d)
		sub.s.count.inFlight.Add(-1)
		delete(sub.inFlight, d)
	}
	sub.queue = nil
}

// closeInbox takes what has arrived and drops the rest.
func (sub *subscription) closeInbox() {
	in := sub.inbox
	if in == nil {
		return
	}
	_ = in.sub.Unsubscribe() // fails only if it is gone already
	for {
		select {
		case nm := <-in.ch:
			if meta, _ := in.classify(nm); meta != nil {
				sub.accept(sub.newDelivery(nm, meta))
			}
		default:
			sub.inbox = nil
			return
		}
	}
}
