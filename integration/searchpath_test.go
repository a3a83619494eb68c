package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

// C105: no statement depends on search_path, and no look-alike is touched.
func TestC105_SearchPath(t *testing.T) {
	for name, path := range map[string]string{"empty": "", "look-alikes first": "decoy, public"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStackIn(t, "once_x", testbed.NewDB(t), testbed.NewStream(t, nil))
			decoys := s.makeDecoys()
			opts := in("once_x")
			opts.pool = func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["search_path"] = path }
			svc := s.open(s.wiring(), opts)
			s.wholePath(svc, nothing)
			for _, table := range decoys {
				require.Zero(t, s.count(`SELECT count(*) FROM `+table), table)
			}
		})
	}
}

// makeDecoys makes a schema with an empty copy of every table.
func (s *stack) makeDecoys() []string {
	s.Helper()
	s.exec(`CREATE SCHEMA decoy`)
	var decoys []string
	for _, table := range s.texts(`SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND n.nspname IN ('once_x', 'public')`) {
		var schema, name string
		_, err := fmt.Sscanf(table, "once_x.%s", &name)
		if err != nil {
			_, err = fmt.Sscanf(table, "public.%s", &name)
		}
		require.NoError(s, err, schema)
		decoy := "decoy." + name
		s.exec(`CREATE TABLE ` + decoy + ` (LIKE ` + table + ` INCLUDING ALL)`)
		decoys = append(decoys, decoy)
	}
	require.Contains(s, decoys, "decoy.inbox")
	require.Contains(s, decoys, "decoy.effects")
	return decoys
}

// C105: what a handler does to search_path does not reach the next message.
func TestC105_HandlersDoNotLeakTheirSearchPath(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.exec(`CREATE SCHEMA decoy`)
	svc := s.open(s.wiring(), options{pool: func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["search_path"] = "public" }})
	var refused error
	svc.handle("set", "set", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		_, refused = tx.Exec(ctx, `/* mine */ SET search_path = decoy`)
		return nil, dedup.Permanent(refused)
	})
	svc.handle("local", "local", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = decoy`); err != nil {
			return nil, err
		}
		return svc.effect(ctx, tx, msg)
	})
	svc.handle("fails", "fails", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = decoy`); err != nil {
			return nil, err
		}
		return nil, dedup.Permanent(errors.New("failed"))
	})
	s.start(svc)
	for i := range 20 {
		id := fmt.Sprintf("k%d", i)
		for _, subject := range []string{"set", "local", "fails"} {
			s.publish(subject, id, "event_id", id)
		}
	}
	s.settled("set", "local", "fails")
	var statement *consumer.StatementError
	require.ErrorAs(t, refused, &statement)
	require.Equal(t, 20, s.effects())
	require.Len(t, s.held(), 40)

	// Every connection that the pool has is as it was.
	conns := svc.pool.AcquireAllIdle(t.Context())
	require.NotEmpty(t, conns)
	for _, conn := range conns {
		var path string
		require.NoError(t, conn.QueryRow(t.Context(), `SHOW search_path`, pgx.QueryExecModeSimpleProtocol).Scan(&path))
		require.Equal(t, "public", path)
		conn.Release()
	}
}
