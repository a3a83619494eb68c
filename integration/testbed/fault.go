package testbed

import "sync"

// Fault is something that a [PostgresProxy] does at a matching statement, a
// given number of times. Its methods may be called concurrently.
type Fault struct {
	when  moment
	act   action
	match func(sql string) bool
	// commits asks for a COMMIT that the server executed as one, and not as
	// the ROLLBACK of an aborted transaction.
	commits bool

	mu       sync.Mutex
	left     int // shots not taken yet
	unfired  int // shots not fired yet
	fired    int
	done     chan struct{} // closed when unfired is 0
	released chan struct{} // closed by Disarm
}

// moment is when a fault strikes.
type moment int

const (
	before moment = iota // the server has not seen the statement
	after                // the server has executed it; the client has no answer
)

// action is what a fault does.
type action int

const (
	cutLink action = iota
	holdLink
)

func newFault(w moment, a action, n int, match func(string) bool) *Fault {
	return &Fault{when: w, act: a, match: match, left: n, unfired: n, done: make(chan struct{}), released: make(chan struct{})}
}

// Done is closed when the fault has struck as often as it was armed for. For a
// cut, both sides of the connection are closed by then.
func (f *Fault) Done() <-chan struct{} { return f.done }

// Fired is how often the fault has struck.
func (f *Fault) Fired() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

// Disarm lets further statements pass, and those that are held go on.
func (f *Fault) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = 0
	select {
	case <-f.released:
	default:
		close(f.released)
	}
}

// take uses up one shot if the statement matches and one is left.
func (f *Fault) take(w moment, sql string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.when != w || f.left == 0 || !f.match(sql) {
		return false
	}
	f.left--
	return true
}

// giveBack returns a shot whose statement was not executed after all.
func (f *Fault) giveBack() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.released:
	default:
		f.left++
	}
}

func (f *Fault) fire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fired++
	f.unfired--
	if f.unfired == 0 {
		close(f.done)
	}
}

// hold strikes, then waits until the fault is disarmed; it is false when
// closing came first.
func (f *Fault) hold(closing <-chan struct{}) bool {
	f.fire()
	select {
	case <-f.released:
		return true
	case <-closing:
		return false
	}
}
