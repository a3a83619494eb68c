package outbox_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/outbox"
)

// C106: a relay as its own process does not start on a database that is not
// ready, says what to run, and needs no right on what is not the outbox's.
func TestC106_RelayChecksWhatItNeeds(t *testing.T) {
	db := newDB(t)
	role := db.NewRole(t)
	for _, grant := range schema.Grants(schema.Name{}, role.Name) {
		if !strings.Contains(grant, `."inbox"`) && !strings.Contains(grant, `."horizon"`) && !strings.Contains(grant, `."held"`) {
			exec(t, db, grant)
		}
	}
	pool, err := testbed.NewPool(t.Context(), role.URL, nil)
	require.NoError(t, err)
	defer pool.Close()
	s := testbed.NewStream(t, nil)
	relay, err := outbox.NewRelay(pool, relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{})))
	require.NoError(t, err)
	require.NoError(t, relay.Check(t.Context()))

	exec(t, db, `REVOKE DELETE ON oncemill.outbox_queue FROM "`+role.Name+`"`)
	var refused *outbox.NotReadyError
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	require.ErrorAs(t, relay.Run(ctx), &refused)
	require.Equal(t, `run GRANT DELETE ON "oncemill"."outbox_queue" TO "`+role.Name+`"`, refused.Remedy)
	require.Zero(t, scalar[int](t, db, `SELECT count(*) FROM oncemill.outbox_relay`), "it did nothing")
	exec(t, db, strings.TrimPrefix(refused.Remedy, "run "))

	exec(t, db, `DELETE FROM oncemill.schema_migration WHERE version = (SELECT max(version) FROM oncemill.schema_migration)`)
	require.ErrorAs(t, relay.Run(ctx), &refused)
	require.Contains(t, refused.Remedy, "oncemill.Migrate")
}

// A database that is away at the start is waited for.
func TestRelayWaitsForTheDatabase(t *testing.T) {
	db := newDB(t)
	proxy := testbed.NewPostgresProxy(t, db.URL)
	pool, err := testbed.NewPool(t.Context(), proxy.URL(), func(c *pgxpool.Config) { c.MaxConns = 10 })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	proxy.Down()
	s := testbed.NewStream(t, nil)
	o := newOutbox(t, outbox.Config{})
	require.NoError(t, o.Write(t.Context(), db.Pool, s.Subject("a"), newMessage("x")))
	cfg := relayConfig(newSink(t, s.Conn, outbox.JetStreamConfig{}))
	warned := make(signal, 1)
	cfg.Logger = slog.New(warned)
	relay, err := outbox.NewRelay(pool, cfg)
	require.NoError(t, err)
	run(t, relay)
	eventually(t, "it says that the database is away", func() bool { return len(warned) > 0 })
	proxy.Up()
	eventually(t, "sent", func() bool { return count(t, s) == 1 })
}

// signal is a log handler that tells of records.
type signal chan struct{}

func (s signal) Enabled(context.Context, slog.Level) bool { return true }

func (s signal) Handle(context.Context, slog.Record) error {
	select {
	case s <- struct{}{}:
	default:
	}
	return nil
}

func (s signal) WithAttrs([]slog.Attr) slog.Handler { return s }
func (s signal) WithGroup(string) slog.Handler      { return s }
