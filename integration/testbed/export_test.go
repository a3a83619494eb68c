package testbed

import "context"

// GuardPID is the process id of the guard of this process.
func GuardPID() int {
	theGuard.mu.Lock()
	defer theGuard.mu.Unlock()
	return theGuard.cmd.Process.Pid
}

// What the guard has to know of a server.
func (p *Postgres) Dir() string  { return p.dir }
func (n *NATS) Dir() string      { return n.dir }
func (n *NATS) PID() int         { return n.engine.(*natsChild).server.pid() }
func (b *PgBouncer) Dir() string { return b.dir }
func (b *PgBouncer) PID() int    { return b.proc.pid() }

// CheckLeaksNow looks once.
func (db *DB) CheckLeaksNow(ctx context.Context) error { return db.checkLeaks(ctx, 0) }

// Settle clears directories away as the guard does that knows no pids.
func Settle(dirs ...string) error {
	led := ledger{pids: map[int]string{}, dirs: map[string]bool{}}
	for _, dir := range dirs {
		led.apply("dir " + dir)
	}
	return led.settle()
}

// The parts that have tests of their own.
var (
	Alive    = alive
	IsCommit = isCommit
)
