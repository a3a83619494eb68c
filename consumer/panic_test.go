package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/outbox"
)

// C43: runtime.Goexit shows in the log like a panic.
func TestC43_GoexitIsLoggedWithItsStack(t *testing.T) {
	b := newBench(t)
	var log bytes.Buffer
	c := b.consumer(b.Pool, func(cfg *consumer.Config) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	h := c.Handler("charge", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
		leave()
		return nil, nil
	})
	require.True(t, deliver(t, h, event("canary", "canary")).nacked)
	require.Equal(t, consumer.Stats{Failed: 1}, c.Stats())
	require.Contains(t, log.String(), "level=ERROR")
	require.Contains(t, log.String(), "operation=charge")
	require.Contains(t, log.String(), "runtime.Goexit")
	require.Contains(t, log.String(), "consumer_test.leave", "the stack")
	require.NotContains(t, log.String(), "canary")
}

func leave() { runtime.Goexit() }

// The Router would log the panic's value.
func TestC43_APanicInAFunctionOfTheConfigIsLikeAHandlers(t *testing.T) {
	b := newBench(t)
	for name, tune := range map[string]func(*consumer.Config){
		"Key": func(cfg *consumer.Config) {
			cfg.Key = keys.New("mine", func(*message.Message) (string, error) { panic("canary") })
		},
		"ScopeFrom": func(cfg *consumer.Config) {
			cfg.Scope, cfg.ScopeFrom = "", func(*message.Message) (string, error) { panic(errors.New("canary")) }
		},
		"EventTime": func(cfg *consumer.Config) {
			cfg.EventTime = func(*message.Message) (time.Time, error) { panic("canary") }
		},
		"OrderingKey": func(cfg *consumer.Config) {
			box, err := outbox.New(outbox.Config{OrderingKey: func(string, *message.Message) string { panic("canary") }})
			require.NoError(t, err)
			cfg.Outbox = box
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := b.consumer(b.Pool, func(cfg *consumer.Config) {
				tune(cfg)
				cfg.Concurrency = 1
				cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			h := to(t, "out", c.Handler("charge", func(context.Context, consumer.Tx, *message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage("", nil)}, nil
			}))
			for range 2 { // the slot and the connection are free again
				got := deliver(t, h, event(name, "canary"))
				require.True(t, got.nacked)
				var p *consumer.PanicError
				require.ErrorAs(t, got.err, &p)
				require.True(t, p.Config)
				require.NotContains(t, got.err.Error(), "canary")
			}
			require.Equal(t, consumer.Stats{Failed: 2}, c.Stats())
			require.Zero(t, b.Pool.Stat().AcquiredConns())
			require.Empty(t, b.held(), "not permanent")
			require.Contains(t, log.String(), "level=ERROR")
			require.Contains(t, log.String(), "APanicInAFunctionOfTheConfig", "the stack")
			require.NotContains(t, log.String(), "canary")
		})
	}
}
