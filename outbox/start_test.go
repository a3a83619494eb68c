package outbox_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
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

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// lines returns the lines that contain all parts.
func (l *logged) lines(parts ...string) (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		missing := false
		for _, part := range parts {
			missing = missing || !strings.Contains(line, part)
		}
		if !missing {
			list = append(list, line)
		}
	}
	return list
}

// C54: a relay that starts compares the streams' windows with how it sends
// again, for the AckTimeout of its sink.
func TestC54_RelayWarnsOfShortWindowsWhenItStarts(t *testing.T) {
	db := newDB(t)
	window := func(d time.Duration) *testbed.Stream {
		return testbed.NewStream(t, func(c *jetstream.StreamConfig) { c.Duplicates = d })
	}
	// Three answers of 3 s are awaited, then 6 s and a poll.
	short, alsoShort, enough := window(15*time.Second), window(14*time.Second), window(16*time.Second)
	var log logged
	cfg := relayConfig(newSink(t, short.Conn, outbox.JetStreamConfig{AckTimeout: 3 * time.Second}))
	cfg.Logger = log.logger()
	run(t, newRelay(t, db, cfg))
	for _, s := range []*testbed.Stream{short, alsoShort} {
		eventually(t, "it warns", func() bool {
			return len(log.lines("level=WARN", "stream "+s.Name+":", "set Duplicates to 16s or more")) == 1
		})
	}
	require.Empty(t, log.lines(enough.Name))
}

// A broker that does not list its streams stops nothing and is no warning.
func TestC54_RelayStartsWithoutAListOfStreams(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	write(t, db, newOutbox(t, outbox.Config{}), s.Subject("a"), newMessage("x"))
	var log logged
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{Domain: "nowhere"}))
	cfg.Logger = log.logger()
	stop := run(t, newRelay(t, db, cfg))
	drained(t, db)
	require.Equal(t, 1, count(t, s))
	eventually(t, "it says so", func() bool { return len(log.lines("level=DEBUG", "streams were not checked")) == 1 })
	stop()
	require.Empty(t, log.lines("level=WARN"))
}

func TestRelayWarnsOfASmallPool(t *testing.T) {
	db := newDB(t)
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	for _, tc := range []struct {
		pool, connections int
		warned            bool
	}{{1, 2, true}, {2, 2, true}, {3, 2, false}, {3, 3, true}} {
		pool, err := testbed.NewPool(t.Context(), db.URL, func(c *pgxpool.Config) { c.MaxConns = int32(tc.pool) })
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		std := openSQL(t, db)
		std.SetMaxOpenConns(tc.pool)
		for name, open := range map[string]func(outbox.RelayConfig) (*outbox.Relay, error){
			"pgx": func(cfg outbox.RelayConfig) (*outbox.Relay, error) { return outbox.NewRelay(pool, cfg) },
			"sql": func(cfg outbox.RelayConfig) (*outbox.Relay, error) { return outbox.NewRelaySQL(std, cfg) },
		} {
			var log logged
			cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{Domain: "nowhere"}))
			cfg.Connections, cfg.Logger = tc.connections, log.logger()
			relay, err := open(cfg)
			require.NoError(t, err)
			for i := range 20 {
				write(t, db, o, s.Subject("a"), keyed(fmt.Sprint(i), "k"))
			}
			stop := run(t, relay)
			drained(t, db) // a small pool is slower, and works
			eventually(t, "the start is over", func() bool { return len(log.lines("streams were not checked")) == 1 })
			stop()
			want := 0
			if tc.warned {
				want = 1
			}
			require.Len(t, log.lines(fmt.Sprintf("the pool has %d connections, fewer than RelayConfig.Connections (%d)", tc.pool, tc.connections),
				fmt.Sprintf("give the pool %d or more", tc.connections+1)), want, "%s %+v", name, tc)
			require.Len(t, log.lines("level=WARN"), want, "%s %+v", name, tc)
		}
	}
}
