package outbox

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logGap is the least time between two lines of a relay's log, so that an
// outage or a heap of bad rows does not fill the disk.
const logGap = time.Second

// limiter drops what comes too soon, and counts it.
type limiter struct {
	mu      sync.Mutex
	last    time.Time
	dropped int
}

func (l *limiter) allow(now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last) < logGap {
		l.dropped++
		return 0, false
	}
	dropped, l.dropped, l.last = l.dropped, 0, now
	return dropped, true
}

func (r *Relay) warn(msg string, attrs ...slog.Attr) {
	dropped, ok := r.log.allow(time.Now())
	if !ok {
		return
	}
	attrs = append(attrs, slog.String("relay", r.cfg.Owner), slog.Int("dropped", dropped))
	r.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn, msg, attrs...)
}

// warnError logs an error of the database: its message, never its detail,
// which quotes values.
func (r *Relay) warnError(err error) {
	r.warn("outbox: relay", slog.String("error", cleanReason(err.Error())))
}
