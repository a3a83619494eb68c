package outbox

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// answers collects what the sink says, from any goroutine.
type answers struct {
	mu   sync.Mutex
	list []answer
	bell chan struct{}
}

type answer struct {
	row *row
	err error
}

func (a *answers) put(r *row, err error) {
	a.mu.Lock()
	a.list = append(a.list, answer{r, err})
	a.mu.Unlock()
	ring(a.bell)
}

func (a *answers) takeAll() []answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.list
	a.list = nil
	return list
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

func (l *lane) takeAnswers(now time.Time) {
	for _, a := range l.answers.takeAll() {
		if !l.win.answered(a.row) {
			continue
		}
		if a.err == nil {
			l.relay.stats.sent.Add(1)
			l.win.confirm(a.row)
			l.mark(now, func(m *marks) { m.sent = append(m.sent, a.row) })
			continue
		}
		l.judge(now, a.row, asSendError(a.err))
	}
}

// judge decides what becomes of a row that was not confirmed.
func (l *lane) judge(now time.Time, r *row, e *SendError) {
	cfg := &l.relay.cfg
	f := failure{row: r, reason: e.Reason}
	switch e.Outcome {
	case Unsendable:
		f.charge, f.park = 1, true
	case Rejected:
		f.charge = 1
		f.park = r.attempts+1 >= cfg.MaxAttempts
		f.delay = backoff(r.attempts, cfg.Backoff, cfg.MaxBackoff)
	default:
		l.relay.stats.inDoubt.Add(1)
		if l.sendAgain(now, r) {
			return
		}
		f.delay = jitter(doubtDelay)
	}
	l.relay.stats.failed.Add(1)
	l.relay.warn("outbox: message not sent", slog.Int64("id", r.id), slog.Bool("parked", f.park), slog.String("reason", cleanReason(e.Reason)))
	l.win.block(r)
	l.mark(now, func(m *marks) { m.failed = append(m.failed, f) })
}

// sendAgain keeps a row in doubt in memory, and its key waiting. While the
// sink is away it counts nothing.
func (l *lane) sendAgain(now time.Time, r *row) bool {
	if l.relay.cfg.Sink.Ready() == nil {
		r.doubts++
	}
	if r.doubts >= maxDoubts {
		return false
	}
	l.again = append(l.again, doubtful{r, now.Add(readyDelay)})
	return true
}

// backoff is the wait before the next attempt, after so many before.
func backoff(attempts int, first, most time.Duration) time.Duration {
	d := first
	for range min(attempts, 40) {
		if d *= 2; d >= most {
			d = most
			break
		}
	}
	return jitter(min(d, most))
}

// jitter spreads d by a fifth to both sides.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
