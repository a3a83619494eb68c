package outbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// RelayConfig configures a Relay. Only Sink is required.
type RelayConfig struct {
	// Outbox names the tables; its Notify wakes this relay. nil: the default
	// configuration.
	Outbox *Outbox
	// Sink is where messages are sent.
	Sink Sink
	// Owner names this relay in the tables, for people; a random suffix makes
	// it unique. Empty: host name and process id.
	Owner string
	// Lease is how long a lane stays with a relay that died; it is renewed
	// every third of it, or every Poll if that is sooner. 0 means 10 s; at
	// least 100 ms.
	Lease time.Duration
	// Poll is how often rows are looked for without a wake-up. 0 means 1 s.
	Poll time.Duration
	// Connections is how many statements of all lanes run at a time. 0 means
	// 2: one reads while another one marks, and a relay is bound by the broker
	// before it is bound by them.
	Connections int
	// Window is how many messages of a lane may be unacknowledged. 0 means 1024.
	Window int
	// Batch is how many rows one statement reads or marks. 0 means 500.
	Batch int
	// MaxBytes bounds headers and payloads that a lane has in memory, one
	// message excepted. 0 means 16 MiB.
	MaxBytes int
	// MaxAttempts is after how many rejections a row is parked. 0 means 50,
	// which the other defaults stretch over more than three hours.
	MaxAttempts int
	// Backoff is the delay after the first rejection; it doubles up to
	// MaxBackoff. Each is jittered by a fifth. 0 means 1 s and 5 min.
	Backoff, MaxBackoff time.Duration
	// DeleteSent deletes messages as soon as they are confirmed, in place of
	// keeping them until a Purger does. Republish then finds nothing to send
	// again: only for sinks that confirm what is on disk (JetStream with
	// sync_interval: always, or replicas on machines that fail one by one).
	// All relays of an outbox should agree. Default: keep them.
	DeleteSent bool
	// StopWait bounds the wait for answers that are under way when the relay
	// stops. 0 means 2 s.
	StopWait time.Duration
	// Logger gets failures, at most one a second. nil: slog.Default().
	Logger *slog.Logger
}

// maxRows bounds the rows that a lane has in memory.
func (c *RelayConfig) maxRows() int { return c.Window + 2*c.Batch }

func (c *RelayConfig) setDefaults() {
	if c.Outbox == nil {
		c.Outbox = defaultOutbox
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Owner == "" {
		host, _ := os.Hostname()
		c.Owner = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	c.Owner += "/" + rand.Text()[:8]
	defaultTo(&c.Lease, 10*time.Second)
	defaultTo(&c.Poll, time.Second)
	defaultTo(&c.Connections, 2)
	defaultTo(&c.Window, 1024)
	defaultTo(&c.Batch, 500)
	defaultTo(&c.MaxBytes, 16<<20)
	defaultTo(&c.MaxAttempts, 50)
	defaultTo(&c.Backoff, time.Second)
	defaultTo(&c.MaxBackoff, 5*time.Minute)
	defaultTo(&c.StopWait, 2*time.Second)
}

func defaultTo[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *RelayConfig) validate() error {
	if c.Sink == nil {
		return errors.New("outbox: RelayConfig.Sink: missing; see JetStream and WatermillPublisher")
	}
	if c.Lease < 100*time.Millisecond {
		return fmt.Errorf("outbox: RelayConfig.Lease: %s is shorter than 100ms", c.Lease)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Poll", int64(c.Poll)}, {"Connections", int64(c.Connections)}, {"Window", int64(c.Window)}, {"Batch", int64(c.Batch)},
		{"MaxBytes", int64(c.MaxBytes)}, {"MaxAttempts", int64(c.MaxAttempts)}, {"Backoff", int64(c.Backoff)},
		{"MaxBackoff", int64(c.MaxBackoff)}, {"StopWait", int64(c.StopWait)},
	} {
		if f.value < 0 {
			return fmt.Errorf("outbox: RelayConfig.%s: must not be negative", f.name)
		}
	}
	return nil
}
