package testbed

import (
	"slices"
	"sync"
)

// PostgresProxy is a [Proxy] that understands the PostgreSQL protocol, version
// 3, simple and extended: it counts round trips, keeps the statements, and
// strikes at chosen ones. It passes all bytes on unchanged and in order. It
// does not speak TLS: clients are told that the server has none.
//
// A statement is the text of a simple Query, which may hold several, or an
// Execute of the portal whose text came with Parse.
type PostgresProxy struct {
	*Proxy

	mu     sync.Mutex
	faults []*Fault
	log    []Statement
	counts Counts
}

// Statement is one that a client had sent to the server.
type Statement struct {
	Link int // which connection, counted from 1
	SQL  string
}

// Counts says what clients sent since the last Reset.
type Counts struct {
	Queries    int // simple Query messages
	Executes   int // Execute messages
	Syncs      int // Sync messages
	Flushes    int // Flush messages
	Statements int // Queries + Executes
}

// RoundTrips is the number of times that clients asked for all answers: each
// simple Query and each Sync is one.
func (c Counts) RoundTrips() int { return c.Queries + c.Syncs }

// logLength bounds the statements that are kept, for long runs with a proxy.
const logLength = 10_000

// StartPostgresProxy starts a proxy in front of the server in serverURL, such
// as [DB.URL].
func StartPostgresProxy(serverURL string) (*PostgresProxy, error) {
	p := &PostgresProxy{}
	var err error
	p.Proxy, err = startProxy(serverURL, p.session)
	return p, err
}

// CutBeforeCommit cuts the connections of the next n COMMITs before the server
// sees them: they are not executed. What precedes the COMMIT in a pipeline is
// passed on, so that the server has run it when it finds the client gone.
func (p *PostgresProxy) CutBeforeCommit(n int) *Fault {
	return p.arm(newFault(before, cutLink, n, isCommit))
}

// CutAfterCommit cuts the connections of the next n COMMITs after the server
// has executed them and before the client has any answer to the batch (up to
// Sync) that they came in. A COMMIT that fails, or that the server turns into
// a ROLLBACK, is answered and does not count.
func (p *PostgresProxy) CutAfterCommit(n int) *Fault {
	f := newFault(after, cutLink, n, isCommit)
	f.commits = true
	return p.arm(f)
}

// CutBefore is like CutBeforeCommit for the next n statements that match.
// match must not call the proxy.
func (p *PostgresProxy) CutBefore(n int, match func(sql string) bool) *Fault {
	return p.arm(newFault(before, cutLink, n, match))
}

// CutAfter is like CutAfterCommit for the next n statements that match. A
// batch that the server answers with an error does not count.
func (p *PostgresProxy) CutAfter(n int, match func(sql string) bool) *Fault {
	return p.arm(newFault(after, cutLink, n, match))
}

// HoldBefore holds the next n statements that match, and what follows them on
// their connections, before the server sees them, until the fault is disarmed.
func (p *PostgresProxy) HoldBefore(n int, match func(sql string) bool) *Fault {
	return p.arm(newFault(before, holdLink, n, match))
}

// HoldAfter holds the answers to the next n statements that match, which the
// server has executed, until the fault is disarmed.
func (p *PostgresProxy) HoldAfter(n int, match func(sql string) bool) *Fault {
	return p.arm(newFault(after, holdLink, n, match))
}

func (p *PostgresProxy) arm(f *Fault) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// strike finds the fault for a statement: the one armed first that matches.
func (p *PostgresProxy) strike(w moment, sql string) *Fault {
	p.mu.Lock()
	faults := slices.Clone(p.faults)
	p.mu.Unlock()
	for _, f := range faults {
		if f.take(w, sql) {
			return f
		}
	}
	return nil
}

// Counts is what clients sent since the last Reset.
func (p *PostgresProxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Statements are the texts sent since the last Reset, in the order in which
// they came, the first 10 000 of them.
func (p *PostgresProxy) Statements() []Statement {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

// Reset clears Counts and Statements.
func (p *PostgresProxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts, p.log = Counts{}, nil
}

// note enters a message that is passed on to the server.
func (p *PostgresProxy) note(linkID int, kind byte, sql string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch kind {
	case msgQuery:
		p.counts.Queries++
	case msgExecute:
		p.counts.Executes++
	case msgSync:
		p.counts.Syncs++
		return
	case msgFlush:
		p.counts.Flushes++
		return
	default:
		return
	}
	p.counts.Statements++
	if len(p.log) < logLength {
		p.log = append(p.log, Statement{Link: linkID, SQL: sql})
	}
}
