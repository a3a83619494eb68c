package outbox

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/internal/schema"
)

// wakeGap is the least time between two wake-ups sent over NATS.
const wakeGap = time.Millisecond

// WakeSubject is the subject on which relays of other processes are woken.
func (o *Outbox) WakeSubject() string { return o.bell.subject }

func wakeSubject(name schema.Name) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name.String()))
	return fmt.Sprintf("oncemill.wake.%016x", h.Sum64())
}

// Lanes is a set of lanes, one bit each: there are 64 at most.
type Lanes uint64

const allLanes = ^Lanes(0)

func (l Lanes) has(lane int16) bool { return l>>lane&1 == 1 }

// Notify tells relays that messages were committed: those built on this
// Outbox, and others through Config.Wake. It does not block and costs little;
// without it, relays find the messages when they next poll.
func (o *Outbox) Notify() { o.NotifyLanes(allLanes) }

// NotifyLanes is Notify for messages whose lanes are known: no relay looks at
// another one in vain.
func (o *Outbox) NotifyLanes(lanes Lanes) { o.bell.ring(lanes) }

// bell wakes the relays that listen.
type bell struct {
	conn    *nats.Conn
	subject string

	mu        sync.Mutex
	listeners map[*Relay]struct{}
	rang      time.Time
	pending   Lanes // to be published when wakeGap is over
}

func (b *bell) listen(r *Relay) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners == nil {
		b.listeners = make(map[*Relay]struct{})
	}
	b.listeners[r] = struct{}{}
}

func (b *bell) leave(r *Relay) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.listeners, r)
}

func (b *bell) ring(lanes Lanes) {
	if lanes == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for r := range b.listeners {
		r.notify(lanes)
	}
	if b.conn == nil {
		return
	}
	waiting := b.pending != 0
	b.pending |= lanes
	if waiting {
		return
	}
	if wait := wakeGap - time.Since(b.rang); wait > 0 {
		time.AfterFunc(wait, b.ringOut)
		return
	}
	b.publish()
}

func (b *bell) ringOut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.publish()
}

// publish may fail: polling is the net.
func (b *bell) publish() {
	_ = b.conn.Publish(b.subject, binary.BigEndian.AppendUint64(nil, uint64(b.pending)))
	b.rang, b.pending = time.Now(), 0
}

// lanesOfWake is what the data of a wake-up says; anything else wakes all.
func lanesOfWake(data []byte) Lanes {
	if len(data) != 8 {
		return allLanes
	}
	return Lanes(binary.BigEndian.Uint64(data))
}
