package testbed

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection through a proxy: a client's and one to the server.
// Each direction is read by one goroutine and written by another, with a queue
// between them, so that latency does not cost throughput.
type link struct {
	id             int
	client, server net.Conn

	once    sync.Once
	closing chan struct{} // closed by cut
	ended   chan struct{} // closed when nothing of the link runs any more
}

// source is where a direction's bytes come from.
type source interface {
	// next returns bytes to pass on, none being allowed. With a fault it
	// also returns io.EOF: the link is cut on the fault's behalf once
	// everything before has been written.
	next() (data []byte, cutFor *Fault, err error)
}

// queueLength bounds what one direction holds while it is stalled, in packets
// of up to 32 KiB or one message.
const queueLength = 256

type packet struct {
	data   []byte
	cutFor *Fault
	due    time.Time
}

// abandon gives back the shot of a fault that can no longer strike here.
func (p packet) abandon() {
	if p.cutFor != nil {
		p.cutFor.giveBack()
	}
}

func newLink(client, server net.Conn) *link {
	return &link{client: client, server: server, closing: make(chan struct{}), ended: make(chan struct{})}
}

// cut closes both sides at once. What is queued is lost.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.closing)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// run passes bytes until both directions have ended.
func (l *link) run(fromClient, fromServer source, valves [2]*valve) {
	var both sync.WaitGroup
	both.Go(func() { l.pass(fromClient, l.server, valves[ToServer]) })
	both.Go(func() { l.pass(fromServer, l.client, valves[ToClient]) })
	both.Wait()
	l.cut()
}

// pass moves one direction's bytes and then its end of file.
func (l *link) pass(src source, dst net.Conn, v *valve) {
	queue := make(chan packet, queueLength)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(queue)
		if err := l.read(src, queue, v); !errors.Is(err, io.EOF) {
			l.cut()
		}
	})
	if !l.write(dst, queue, v) {
		l.cut()
	}
	for p := range queue { // what a cut left behind
		p.abandon()
	}
	reader.Wait()
}

func (l *link) read(src source, queue chan<- packet, v *valve) error {
	for {
		data, cutFor, err := src.next()
		if len(data) > 0 || cutFor != nil {
			p := packet{data: data, cutFor: cutFor, due: v.due()}
			select {
			case queue <- p:
			case <-l.closing:
				p.abandon()
				return net.ErrClosed
			}
		}
		if err != nil {
			return err
		}
	}
}

// write returns true when it has passed on everything and the end of file.
func (l *link) write(dst net.Conn, queue <-chan packet, v *valve) bool {
	for p := range queue {
		if !l.waitUntil(p.due) || !v.pass(l.closing) {
			p.abandon()
			return false
		}
		if !v.dropping() {
			if _, err := dst.Write(p.data); err != nil {
				p.abandon()
				return false
			}
		}
		if p.cutFor != nil {
			l.cut()
			p.cutFor.fire()
			return false
		}
	}
	half, ok := dst.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// waitUntil is false when the link was cut before.
func (l *link) waitUntil(due time.Time) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.closing:
		return false
	}
}

// rawSource passes on whatever it reads.
type rawSource struct{ conn net.Conn }

func (s *rawSource) next() ([]byte, *Fault, error) {
	buf := make([]byte, 32<<10)
	n, err := s.conn.Read(buf)
	return buf[:n], nil, err
}

// valve is the state of one direction, shared by all links of a proxy.
type valve struct {
	mu    sync.Mutex
	flow  chan struct{} // closed while bytes may pass
	delay time.Duration
	drop  bool
}

func newValve() *valve {
	v := &valve{flow: make(chan struct{})}
	close(v.flow)
	return v
}

func (v *valve) stall() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.flowing() {
		v.flow = make(chan struct{})
	}
}

func (v *valve) resume() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.flowing() {
		close(v.flow)
	}
}

// flowing needs the lock.
func (v *valve) flowing() bool {
	select {
	case <-v.flow:
		return true
	default:
		return false
	}
}

// pass waits while the direction is stalled; it is false when closing came.
func (v *valve) pass(closing <-chan struct{}) bool {
	v.mu.Lock()
	flow := v.flow
	v.mu.Unlock()
	select {
	case <-flow:
		return true
	case <-closing:
		return false
	}
}

func (v *valve) setDelay(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.delay = d
}

// due is when bytes that were read now may be written.
func (v *valve) due() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.delay == 0 {
		return time.Time{}
	}
	return time.Now().Add(v.delay)
}

func (v *valve) setDrop(drop bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop = drop
}

func (v *valve) dropping() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.drop
}
