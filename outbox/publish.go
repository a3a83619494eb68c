package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// publisher publishes on a NATS connection and hands each message its
// acknowledgement. nats.go's asynchronous publish makes a timer, a random
// token, a future and map entries for each message, none of which a relay
// needs: all wait equally long, so that one timer and a queue do. It never
// sends twice. Safe for concurrent use.
type publisher struct {
	nc      *nats.Conn
	timeout time.Duration

	mu     sync.Mutex
	prefix string // of the subjects of answers; empty before the first publish
	// waiting holds the messages without an answer and those answered behind
	// one; the first has the token first.
	waiting []waiting
	first   uint64
	timer   bool // runs
}

// waiting is a message that was published; done is nil when it was answered.
type waiting struct {
	done  func(error)
	until time.Time
}

// publish sends msg and calls done once: with nil when a stream stored it, or
// what is known otherwise.
func (p *publisher) publish(msg *nats.Msg, done func(error)) {
	token, reply, err := p.expect(done)
	if err != nil {
		done(err)
		return
	}
	msg.Reply = reply
	if err := p.nc.PublishMsg(msg); err != nil {
		p.answer(token, err)
	}
}

// expect makes room for an answer.
func (p *publisher) expect(done func(error)) (token uint64, reply string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prefix == "" {
		prefix := p.nc.NewInbox() + "."
		if _, err := p.nc.Subscribe(prefix+"*", p.received); err != nil {
			return 0, "", err
		}
		go p.watch(p.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED))
		p.prefix = prefix
	}
	token = p.first + uint64(len(p.waiting))
	p.waiting = append(p.waiting, waiting{done, time.Now().Add(p.timeout)})
	if !p.timer {
		p.timer = true
		time.AfterFunc(p.timeout, p.expire)
	}
	return token, p.prefix + strconv.FormatUint(token, 36), nil
}

// received takes an answer from the broker, or from whoever gave it.
func (p *publisher) received(msg *nats.Msg) {
	token, err := strconv.ParseUint(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:], 36, 64)
	if err != nil {
		return
	}
	p.answer(token, ackError(msg))
}

// answer calls done of a message that has no answer yet.
func (p *publisher) answer(token uint64, err error) {
	p.mu.Lock()
	var done func(error)
	if i := token - p.first; i < uint64(len(p.waiting)) {
		done, p.waiting[i].done = p.waiting[i].done, nil
		p.trim()
	}
	p.mu.Unlock()
	if done != nil {
		done(err)
	}
}

// trim drops what was answered from the head of the queue.
func (p *publisher) trim() {
	n := 0
	for n < len(p.waiting) && p.waiting[n].done == nil {
		n++
	}
	p.waiting, p.first = p.waiting[n:], p.first+uint64(n)
}

// expire ends the wait of those that waited long enough, and sets the timer
// for the next one.
func (p *publisher) expire() {
	now := time.Now()
	p.fail(errNoAnswer, func(w waiting) bool { return !w.until.After(now) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer = len(p.waiting) > 0; p.timer {
		time.AfterFunc(time.Until(p.waiting[0].until), p.expire)
	}
}

// watch fails all that waits when the connection is lost: their answers are,
// too.
func (p *publisher) watch(status <-chan nats.Status) {
	for s := range status {
		p.fail(nats.ErrDisconnected, func(waiting) bool { return true })
		if s == nats.CLOSED {
			return
		}
	}
}

// fail answers with err, from the oldest message on, while they match.
func (p *publisher) fail(err error, match func(waiting) bool) {
	p.mu.Lock()
	var failed []func(error)
	for i := range p.waiting {
		if !match(p.waiting[i]) {
			break
		}
		if p.waiting[i].done != nil {
			failed = append(failed, p.waiting[i].done)
			p.waiting[i].done = nil
		}
	}
	p.trim()
	p.mu.Unlock()
	for _, done := range failed {
		done(err)
	}
}

var (
	errNoAnswer = errors.New("no answer in time")
	errNotAnAck = errors.New("not an acknowledgement of a stream")
	errNoStream = errors.New("no responders")
)

// ackError returns nil if msg says that a stream stored the message
// (JetStream's PubAck, ADR-22).
func ackError(msg *nats.Msg) error {
	if isPlainAck(msg.Data) {
		return nil
	}
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		return errNoStream
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
	}
	switch err := json.Unmarshal(msg.Data, &ack); {
	case err != nil:
		return errNotAnAck
	case ack.Error != nil:
		return ack.Error
	case ack.Stream == "" || ack.Seq == 0:
		return errNotAnAck
	}
	return nil
}

// isPlainAck recognises the usual acknowledgement, {"stream":"…","seq":…} and
// perhaps "duplicate", without decoding it. What it does not know may
// still be one.
func isPlainAck(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	if !ok {
		return false
	}
	name := bytes.IndexByte(rest, '"')
	if name <= 0 {
		return false
	}
	if rest, ok = bytes.CutPrefix(rest[name:], []byte(`","seq":`)); !ok {
		return false
	}
	digits := len(rest) - len(bytes.TrimLeft(rest, "0123456789"))
	if digits == 0 || rest[0] == '0' {
		return false
	}
	end := string(rest[digits:])
	return end == `}` || end == `,"duplicate": true}`
}
