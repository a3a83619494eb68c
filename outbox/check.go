package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
)

// CheckJetStream compares the duplicate window of each stream with the longest
// time after which a relay so configured sends a row again that may already be
// stored, while database and broker work: a copy within the window, which
// counts from the first one, is dropped by the broker; one after it is left to
// the consumers. It returns a line for each stream whose window is shorter.
// After an outage of the database or of the relay, or when answers get lost
// for longer than a row is sent again from memory, no window is long enough.
// A relay on a JetStream sink calls it when it starts, and logs the lines.
func CheckJetStream(ctx context.Context, js jetstream.JetStream, relay RelayConfig, sink JetStreamConfig) ([]string, error) {
	relay.setDefaults()
	defaultTo(&sink.AckTimeout, DefaultAckTimeout)
	retry := worstRetry(&relay, sink.AckTimeout)
	var warnings []string
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		if info.Config.Duplicates < retry {
			warnings = append(warnings, fmt.Sprintf("stream %s: its duplicate window of %s is shorter than the %s after which a message may be sent again: copies then reach the consumers; set Duplicates to %s or more",
				info.Config.Name, info.Config.Duplicates, retry, retry))
		}
	}
	if err := streams.Err(); err != nil {
		return nil, fmt.Errorf("outbox: check streams: %w", err)
	}
	return warnings, nil
}

func (s *jetStreamSink) check(ctx context.Context, relay RelayConfig) ([]string, error) {
	return CheckJetStream(ctx, s.js, relay, JetStreamConfig{AckTimeout: s.pub.timeout})
}

// settingsTimeout bounds the look at the streams: a client without the right
// to list them gets no answer.
const settingsTimeout = 10 * time.Second

// warnOfSettings logs the settings that weaken a promise. What cannot be found
// out now, because NATS is away or the client may not ask, is left out.
func (r *Relay) warnOfSettings(ctx context.Context) {
	log := r.cfg.Logger.With("relay", r.cfg.Owner)
	if size, needed := r.poolMax(), r.cfg.Connections+1; size > 0 && size < needed {
		log.WarnContext(ctx, "outbox: relay", "warning", fmt.Sprintf("the pool has %d connections, fewer than RelayConfig.Connections (%d) and one more: leases may run out while lanes keep them all; give the pool %d or more, or lower Connections",
			size, r.cfg.Connections, needed))
	}
	sink, ok := r.cfg.Sink.(interface {
		check(ctx context.Context, relay RelayConfig) ([]string, error)
	})
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	warnings, err := sink.check(ctx, r.cfg)
	if err != nil {
		log.DebugContext(ctx, "outbox: relay: the streams were not checked", "error", cleanReason(err.Error()))
	}
	for _, warning := range warnings {
		log.WarnContext(ctx, "outbox: relay", "warning", warning)
	}
}

// NotReadyError says why the database cannot be used, and what to run: see
// oncemill.NotReadyError, which is the same type.
type NotReadyError = schema.NotReadyError

// PoolerError says that a pooler breaks the pool's exec mode: see
// consumer.PoolerError, which is the same type.
type PoolerError = pg.PoolerError

// refuses tells whether a check found something that waiting does not mend.
func refuses(err error) bool {
	var notReady *NotReadyError
	var pooler *PoolerError
	return errors.As(err, &notReady) || errors.As(err, &pooler)
}

// worstRetry is the longer of two waits, rounded up to seconds: for answers as
// often as a row is sent from memory and then for the next attempt, and for the
// lease of a relay that died.
func worstRetry(relay *RelayConfig, ackTimeout time.Duration) time.Duration {
	putOff := maxDoubts*(ackTimeout+readyDelay) + doubtDelay + doubtDelay/5 + relay.Poll
	takenOver := relay.Lease + min(relay.Lease/3, relay.Poll)
	return (max(putOff, takenOver) + time.Second - 1).Truncate(time.Second)
}
