package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
)

func jsonFingerprint(t *testing.T, opts ...dedup.JSONOption) *dedup.Fingerprinter {
	t.Helper()
	f, err := dedup.JSONFingerprint(opts...)
	require.NoError(t, err)
	return f
}

// TestPayloadsOfOneKey has C20, C21 and C27: each operation says what of a
// payload counts. The first event runs; the later ones are duplicates or
// conflicts.
func TestPayloadsOfOneKey(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	svc := s.open(s.wiring(), options{consumer: func(cfg *consumer.Config) {
		cfg.Concurrency = 1
		cfg.Operations = map[string]consumer.Operation{
			"canonical": {Fingerprint: jsonFingerprint(t)},
			"volatile":  {Fingerprint: jsonFingerprint(t, dedup.ExcludePaths("/sent_at"))},
			"named":     {Fingerprint: jsonFingerprint(t, dedup.IncludePaths("/amount"))},
		}
	}})
	for _, operation := range []string{"raw", "canonical", "volatile", "named"} {
		svc.handle(operation, operation, svc.effect)
	}
	s.start(svc)
	for name, tc := range map[string]struct {
		operation string
		first     string
		duplicate []string
		conflict  []string
	}{
		"C15 member order":       {"canonical", `{"a":1,"b":{"c":2,"d":3}}`, []string{` {"b" : {"d":3,"c":2}, "a":1}`}, []string{`{"a":2,"b":{"c":2,"d":3}}`}},
		"C15 raw bytes":          {"raw", `{"a":1,"b":2}`, []string{`{"a":1,"b":2}`}, []string{`{"b":2,"a":1}`}},
		"C17 large integers":     {"canonical", `{"account":9007199254740993}`, nil, []string{`{"account":9007199254740992}`}},
		"C20 duplicate names":    {"canonical", `{"amount":100}`, nil, []string{`{"amount":1,"amount":100}`, `{"amount":100,"amount":1}`}},
		"C21 volatile path":      {"volatile", `{"amount":5,"sent_at":"10:00:00"}`, []string{`{"amount":5,"sent_at":"10:00:07"}`}, []string{`{"amount":6,"sent_at":"10:00:00"}`}},
		"C21 paths are exact":    {"volatile", `{"order":{"sent_at":"10:00:00"}}`, nil, []string{`{"order":{"sent_at":"10:00:07"}}`}},
		"C27 only what is named": {"named", `{"amount":10,"note":"a"}`, []string{`{"amount":10,"note":"b"}`}, []string{`{"amount":11,"note":"a"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			before := svc.consumer.Stats()
			send := func(attempt, body string) {
				s.publish(tc.operation, body, "event_id", name, "attempt", attempt)
				s.settled(tc.operation)
			}
			send("1", tc.first)
			for _, body := range tc.duplicate {
				send("2", body) // metadata does not count
			}
			for _, body := range tc.conflict {
				send("1", body)
				send("2", body) // held once
			}
			after := svc.consumer.Stats()
			require.EqualValues(t, 1, after.Done-before.Done)
			require.EqualValues(t, len(tc.duplicate), after.Duplicates-before.Duplicates)
			require.Equal(t, tc.conflict, s.texts(`SELECT convert_from(payload, 'UTF8') FROM oncemill.held WHERE reason = 'conflict' AND key = $1 AND seen = 2 ORDER BY first_at`, name))
			require.Equal(t, []string{tc.first}, s.texts(`SELECT convert_from(body, 'UTF8') FROM public.effects WHERE key = $1`, name))
		})
	}
}

// C27: the conflict is seen, too, by the loser of a race, who learns of the
// other payload from its insert.
func TestC27_ConflictWhileTheFirstIsProcessed(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	release := make(chan struct{})
	svc := s.open(s.wiring(), options{consumer: func(cfg *consumer.Config) { cfg.Inbox.LockWait = bound }})
	svc.handle("charge", "new", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		<-release
		return svc.effect(ctx, tx, msg)
	})
	s.start(svc)
	s.publish("new", `{"amount":10}`, "event_id", "r1")
	s.eventually("the first is claimed", func() bool { return s.info("charge").NumAckPending == 1 && svc.pool.Stat().AcquiredConns() > 0 })
	s.publish("new", `{"amount":11}`, "event_id", "r1")
	s.db.WaitForLockWaiters(t, 1)
	close(release)
	s.settled("charge")
	requireOutcomes(t, consumer.Stats{Done: 1, Dead: 1}, svc.consumer.Stats())
	require.Equal(t, []string{"conflict"}, s.reasons())
	require.Equal(t, 1, s.effects())
}

func gzipped(t *testing.T, level int, at time.Time) string {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, level)
	require.NoError(t, err)
	z.ModTime = at
	_, err = z.Write([]byte(strings.Repeat(`{"amount":1}`, 100)))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.String()
}

func randomBytes(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{22}).Read(b)
	return string(b)
}

// C22: payloads are bytes, whatever they are labelled.
func TestC22_BinaryPayloads(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	svc := s.open(s.wiring(), options{consumer: func(cfg *consumer.Config) {
		cfg.Concurrency = 1
		cfg.Fingerprint = jsonFingerprint(t)
		cfg.Operations = map[string]consumer.Operation{"settle": {Key: keys.LogicalID()}}
	}})
	svc.handle("charge", "new", svc.effect)
	svc.handle("settle", "commands", refuse)
	s.start(svc)
	payloads := map[string]string{
		"gzip":     gzipped(t, gzip.BestSpeed, time.Unix(1, 0)),
		"protobuf": "\x08\x96\x01\x12\x07testing\x1a\x03\x00\xff\xfe",
		"random":   randomBytes(64 << 10),
		"empty":    "",
		"nul":      "\x00",
	}
	for id, body := range payloads {
		for range 2 {
			s.publish("new", body, "event_id", id, "content-type", "application/json")
		}
	}
	again := gzipped(t, gzip.BestCompression, time.Unix(2, 0))
	s.publish("new", again, "event_id", "gzip", "content-type", "application/json")
	s.settled("charge")
	s.requireCommands(len(payloads))
	s.settled("settle")

	stats := svc.consumer.Stats()
	require.EqualValues(t, len(payloads), stats.Done)
	require.EqualValues(t, len(payloads), stats.Duplicates)
	var commands, dead, effects []string
	for _, m := range s.stored("commands") {
		commands = append(commands, string(m.Data()))
	}
	for _, h := range s.held() {
		if h.Reason == "conflict" {
			require.Equal(t, again, string(h.Payload))
			continue
		}
		dead = append(dead, string(h.Payload))
	}
	for id, body := range payloads {
		require.Equal(t, 1, s.count(`SELECT count(*) FROM public.effects WHERE key = $1 AND body = $2`, id, []byte(body)), id)
		effects = append(effects, body)
	}
	require.ElementsMatch(t, effects, commands, "through the outbox")
	require.ElementsMatch(t, effects, dead, "through the dead letters")
}

// refuse is a handler that fails for good.
func refuse(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
	return nil, dedup.Permanent(errors.New("refused"))
}

func sign(body []byte) string {
	mac := hmac.New(sha256.New, []byte("secret of the webhook"))
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil))
}

// C24: a signature over the bytes verifies at every hop.
func TestC24_SignedBytesSurviveEveryHop(t *testing.T) {
	t.Parallel()
	const body = `{"z":1,"a":{"y":1e2},"n":"\u0000"}`
	s := newStack(t)
	svc := s.open(s.wiring(), options{consumer: func(cfg *consumer.Config) {
		cfg.Operations = map[string]consumer.Operation{"settle": {Key: keys.LogicalID(), Fingerprint: jsonFingerprint(t)}}
	}})
	svc.handle("charge", "new", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		out, err := svc.effect(ctx, tx, msg)
		if err == nil {
			out[0].Metadata.Set("X-Signature", msg.Metadata.Get("X-Signature"))
		}
		return out, err
	})
	svc.handle("settle", "commands", refuse)
	s.start(svc)
	s.publish("new", body, "event_id", "k", "X-Signature", sign([]byte(body)))
	s.settled("charge")
	s.requireCommands(1)
	s.settled("settle")

	command := s.stored("commands")[0]
	require.Equal(t, body, string(command.Data()))
	require.Equal(t, sign(command.Data()), command.Headers().Get("X-Signature"))
	require.Len(t, s.held(), 1)
	dead := s.held()[0]
	require.Equal(t, body, string(dead.Payload))
	require.Equal(t, sign(dead.Payload), dead.Metadata["X-Signature"])

	// A copy of the command is owned by its held row, and no conflict.
	s.publish("commands", body, "Oncemill-Id", command.Headers().Get("Oncemill-Id"), "X-Signature", sign([]byte(body)))
	s.settled("settle")
	require.EqualValues(t, 1, svc.consumer.Stats().Held)
	require.Len(t, s.held(), 1)
}
