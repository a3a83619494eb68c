package integration

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(line)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// lines returns the lines that contain all parts.
func (l *logged) lines(parts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := slices.Collect(strings.Lines(l.buf.String()))
	return slices.DeleteFunc(lines, func(line string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}

// C67: a service that starts says when its inbox forgets before its stream.
func TestC67_ShortRetentionIsLoggedWhenAServiceStarts(t *testing.T) {
	for name, tc := range map[string]struct {
		retention time.Duration
		lines     int
	}{"shorter": {time.Hour, 1}, "longer": {8 * 24 * time.Hour, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStackOn(t, testbed.NewDB(t), testbed.NewStream(t, func(cfg *natsjs.StreamConfig) { cfg.MaxAge = 7 * 24 * time.Hour }))
			var log logged
			s.serve(options{consumer: func(cfg *consumer.Config) {
				cfg.Inbox, cfg.Logger = dedup.InboxConfig{Retention: tc.retention}, log.logger()
			}})
			require.Len(t, log.lines("level=WARN", `msg="a setting weakens a promise"`, "operation=charge", "setting=Inbox.Retention",
				"keys are remembered for 1h0m0s and the source keeps messages for 168h0m0s", "remedy="), tc.lines)
			require.Len(t, log.lines("Inbox.Retention"), tc.lines)
		})
	}
}
