package testbed

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// pgSession is one link's state of the protocol. The client's side announces
// the faults that strike after a statement; the server's side counts the
// ReadyForQuery messages to find the answer to it.
type pgSession struct {
	proxy *PostgresProxy
	link  *link

	// Only the client's side uses these.
	statements, portals map[string]string // name to SQL text

	mu       sync.Mutex
	asked    int    // messages sent that are answered by ReadyForQuery
	answered int    // ReadyForQuery messages received
	pending  *Fault // strikes when the answer to batch is complete
	batch    int
}

// session is the opener of a PostgresProxy.
func (p *PostgresProxy) session(l *link) (fromClient, fromServer source) {
	s := &pgSession{proxy: p, link: l, statements: map[string]string{}, portals: map[string]string{}}
	return &pgClientSource{session: s, r: bufio.NewReaderSize(l.client, 64<<10)},
		&pgServerSource{session: s, r: bufio.NewReaderSize(l.server, 64<<10)}
}

// expectAnswer notes a message that the server answers by ReadyForQuery.
func (s *pgSession) expectAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
}

// strikeAfter looks for a fault that strikes after a statement, before that is
// sent. Its answer is the next ReadyForQuery that will be asked for. One at a
// time: whatever follows it meets a connection that is cut or held.
func (s *pgSession) strikeAfter(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		return
	}
	if f := s.proxy.strike(after, sql); f != nil {
		s.pending, s.batch = f, s.asked+1
	}
}

// withheld says which fault, if any, wants the answers that arrive now.
func (s *pgSession) withheld() *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil && s.answered == s.batch-1 {
		return s.pending
	}
	return nil
}

// answerComplete notes a ReadyForQuery and takes the pending fault off if this
// is its answer.
func (s *pgSession) answerComplete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered++
	if s.pending != nil && s.answered == s.batch {
		s.pending = nil
	}
}

// abandon gives the pending fault's shot back: the server went away without
// an answer.
func (s *pgSession) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		s.pending.giveBack()
		s.pending = nil
	}
}

// pgClientSource reads a client's messages.
type pgClientSource struct {
	session *pgSession
	r       *bufio.Reader
	started bool

	held *heldMessage // met a fault; what preceded it goes first
}

type heldMessage struct {
	msg   pgMessage
	fault *Fault
}

func (c *pgClientSource) next() ([]byte, *Fault, error) {
	if !c.started {
		data, err := c.startup()
		return data, nil, err
	}
	if c.held != nil {
		return c.strike()
	}
	var out []byte
	for {
		msg, err := readMessage(c.r)
		if err != nil {
			return out, nil, err
		}
		if sql, is := c.statement(msg); is {
			if f := c.session.proxy.strike(before, sql); f != nil {
				c.held = &heldMessage{msg: msg, fault: f}
				return out, nil, nil
			}
		}
		out = append(out, c.forward(msg)...)
		if !messageBuffered(c.r) {
			return out, nil, nil
		}
	}
}

// strike does what the fault of the held message wants. What preceded it has
// been queued by then.
func (c *pgClientSource) strike() ([]byte, *Fault, error) {
	held := c.held
	c.held = nil
	if held.fault.act == cutLink {
		return nil, held.fault, io.EOF
	}
	if !held.fault.hold(c.session.link.closing) {
		return nil, nil, net.ErrClosed
	}
	return c.forward(held.msg), nil, nil
}

// startup passes the first packet on. Requests for encryption are refused on
// the server's behalf. A CancelRequest needs no more than being passed on.
func (c *pgClientSource) startup() ([]byte, error) {
	for {
		packet, err := readStartup(c.r)
		if err != nil {
			return nil, err
		}
		switch binary.BigEndian.Uint32(packet[4:]) {
		case sslRequest, gssRequest:
			if _, err := c.session.link.client.Write([]byte{'N'}); err != nil {
				return nil, err
			}
		case cancelRequest:
			return packet, io.EOF
		default:
			c.started = true
			c.session.expectAnswer()
			return packet, nil
		}
	}
}

// statement is the SQL text that a message has the server execute.
func (c *pgClientSource) statement(m pgMessage) (string, bool) {
	switch m.kind() {
	case msgQuery:
		sql, _ := cutString(m.body())
		return sql, true
	case msgExecute:
		portal, _ := cutString(m.body())
		return c.session.portals[portal], true
	}
	return "", false
}

// forward notes what a message means for the session and returns its bytes.
func (c *pgClientSource) forward(m pgMessage) []byte {
	s := c.session
	sql, executes := c.statement(m)
	if executes {
		s.strikeAfter(sql)
	}
	s.proxy.note(s.link.id, m.kind(), sql)
	switch m.kind() {
	case msgQuery, msgSync, msgFunctionCall:
		s.expectAnswer()
	case msgParse:
		name, rest := cutString(m.body())
		s.statements[name], _ = cutString(rest)
	case msgBind:
		portal, rest := cutString(m.body())
		name, _ := cutString(rest)
		s.portals[portal] = s.statements[name]
	case msgClose:
		s.closeNamed(m.body())
	}
	return m
}

// closeNamed forgets what a Close message closes: 'S' a statement, 'P' a portal.
func (s *pgSession) closeNamed(body []byte) {
	if len(body) == 0 {
		return
	}
	name, _ := cutString(body[1:])
	if body[0] == 'S' {
		delete(s.statements, name)
	} else {
		delete(s.portals, name)
	}
}

// pgServerSource reads a server's messages.
type pgServerSource struct {
	session *pgSession
	r       *bufio.Reader

	withheld       []byte // answers that a fault keeps from the client
	failed, commit bool   // what the withheld answers say
}

func (v *pgServerSource) next() ([]byte, *Fault, error) {
	var out []byte
	for {
		msg, err := readMessage(v.r)
		if err != nil {
			v.session.abandon()
			return append(out, v.withheld...), nil, err
		}
		fault := v.session.withheld()
		if fault == nil {
			out = append(out, msg...)
		} else {
			v.withhold(msg)
		}
		if msg.kind() == msgReadyForQuery {
			v.session.answerComplete()
			if fault != nil {
				data, cutFor, err := v.settle(fault)
				return append(out, data...), cutFor, err
			}
			return out, nil, nil // a hold on the next batch must not hold this
		}
		if !messageBuffered(v.r) {
			return out, nil, nil
		}
	}
}

func (v *pgServerSource) withhold(m pgMessage) {
	v.withheld = append(v.withheld, m...)
	switch m.kind() {
	case msgErrorResponse:
		v.failed = true
	case msgCommandComplete:
		tag, _ := cutString(m.body())
		v.commit = v.commit || tag == "COMMIT"
	}
}

// settle decides what becomes of the withheld answers of a complete batch. If
// the statement was not executed the client gets them.
func (v *pgServerSource) settle(f *Fault) ([]byte, *Fault, error) {
	answers, executed := v.withheld, !v.failed && (v.commit || !f.commits)
	v.withheld, v.failed, v.commit = nil, false, false
	switch {
	case !executed:
		f.giveBack()
		return answers, nil, nil
	case f.act == cutLink:
		return nil, f, io.EOF
	case !f.hold(v.session.link.closing):
		return nil, nil, net.ErrClosed
	}
	return answers, nil, nil
}
