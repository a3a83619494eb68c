package outbox

import (
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

// Notify tells relays that messages were committed: those built on this
// Outbox, and others through Config.Wake. It does not block and costs little;
// without it, relays find the messages when they next poll.
func (o *Outbox) Notify() { o.bell.ring() }

// bell wakes the relays that listen.
type bell struct {
	conn    *nats.Conn
	subject string

	mu        sync.Mutex
	listeners map[*Relay]struct{}
	rang      time.Time
	pending   bool
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

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for r := range b.listeners {
		r.Notify()
	}
	if b.conn == nil || b.pending {
		return
	}
	if wait := wakeGap - time.Since(b.rang); wait > 0 {
		b.pending = true
		time.AfterFunc(wait, b.ringOut)
		return
	}
	b.publish()
}

func (b *bell) ringOut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = false
	b.publish()
}

// publish may fail: polling is the net.
func (b *bell) publish() {
	b.rang = time.Now()
	_ = b.conn.Publish(b.subject, nil)
}
