package main

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Who is compared does the same: a message that comes again has no effect.
func TestEveryWayBooksADuplicateOnce(t *testing.T) {
	env, err := newEnv(t.Context(), tiny)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, env.NATS.Close())
		require.NoError(t, env.Postgres.Close())
	})
	for name, way := range map[string]handlerOn{
		"pgx-minimal": pgxMinimal, "pgx-message": pgxMessage, "pgx-pipelined": pgxPipelined, "pgx-group": pgxGroup,
		"oncemill-handler": oncemillHandler, "oncemill-grouped": oncemillGrouped, "oncemill-queue": oncemillQueue, "oncemill-set": oncemillSet,
		"watermill-deduplicator": watermillDeduplicator, "river": riverPeer, "dbos": dbosPeer,
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, env.database(t.Context(), 8, func(_ string, pool *pgxpool.Pool) error {
				require.NoError(t, makeInboxTables(t.Context(), pool))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				h, err := way(ctx, pool)
				require.NoError(t, err)
				msg := newEvent()
				for range 2 {
					_, err := deliver(ctx, h, msg)
					require.NoError(t, err)
				}
				return booked(ctx, pool, 1)
			}))
		})
	}
}
