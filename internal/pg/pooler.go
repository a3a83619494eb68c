package pg

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolerError says that the connections go through a pooler, such as PgBouncer
// in transaction mode, in a way in which their exec mode cannot work:
// statements would fail with 26000 or 42P05 now and then.
type PoolerError struct{ Mode pgx.QueryExecMode }

func (e *PoolerError) Error() string {
	return fmt.Sprintf("exec mode %q needs prepared statements, and the pooler between this process and PostgreSQL does not keep them from one transaction to the next; "+
		"set pgx's DefaultQueryExecMode to QueryExecModeExec (in the connection URL: default_query_exec_mode=exec), or with PgBouncer 1.21 or later its max_prepared_statements", e.Mode)
}

// CheckPooler returns a *PoolerError if the pool's exec mode does not work with
// the pooler that it goes through. Without a pooler it costs one round trip,
// with an exec mode that prepares nothing none. It needs two connections for
// a moment; a pool of one is not checked.
func CheckPooler(ctx context.Context, pool *pgxpool.Pool) error {
	cfg := pool.Config()
	if !prepares(cfg.ConnConfig.DefaultQueryExecMode) || cfg.MaxConns < 2 {
		return nil
	}
	return pool.AcquireFunc(ctx, func(a *pgxpool.Conn) error {
		return probe(ctx, a.Conn(), func(second func(*pgx.Conn) error) error {
			return pool.AcquireFunc(ctx, func(b *pgxpool.Conn) error { return second(b.Conn()) })
		})
	})
}

// CheckPoolerSQL is CheckPooler for database/sql over pgx/stdlib.
func CheckPoolerSQL(ctx context.Context, db *sql.DB) error {
	if db.Stats().MaxOpenConnections == 1 {
		return nil
	}
	return withConn(ctx, db, func(a *pgx.Conn) error {
		if !prepares(a.Config().DefaultQueryExecMode) {
			return nil
		}
		return probe(ctx, a, func(second func(*pgx.Conn) error) error { return withConn(ctx, db, second) })
	})
}

// withConn calls f with the pgx connection under one of database/sql. Other
// drivers have none.
func withConn(ctx context.Context, db *sql.DB, f func(*pgx.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // It gives the connection back.
	return conn.Raw(func(driver any) error {
		if over, ok := driver.(interface{ Conn() *pgx.Conn }); ok {
			return f(over.Conn())
		}
		return nil
	})
}

// prepares tells whether statements that were prepared in one round trip are
// executed in another one.
func prepares(mode pgx.QueryExecMode) bool {
	return mode == pgx.QueryExecModeCacheStatement || mode == pgx.QueryExecModeDescribeExec
}

// probe looks for a pooler before it uses a second connection.
func probe(ctx context.Context, a *pgx.Conn, withSecond func(func(b *pgx.Conn) error) error) error {
	mode := a.Config().DefaultQueryExecMode
	pooled, err := isPooled(ctx, a)
	if err != nil || !pooled {
		return err
	}
	if mode == pgx.QueryExecModeDescribeExec {
		// The statement without a name, which it uses, is kept by no pooler
		// that gives out servers per transaction.
		return &PoolerError{mode}
	}
	return withSecond(func(b *pgx.Conn) error {
		bounded, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		err := share(bounded, a, b)
		switch {
		case isStatementLost(err):
			return &PoolerError{mode}
		case bounded.Err() != nil && ctx.Err() == nil:
			return nil // the pooler has no second server to spare: not known
		}
		return err
	})
}

// isStatementLost tells whether a prepared statement is missing or in the way.
func isStatementLost(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && (pgErr.Code == "26000" || pgErr.Code == "42P05")
}

// isPooled tells whether the process that answers is another one than that
// which the connection was made to: poolers send cancel keys of their own.
func isPooled(ctx context.Context, c *pgx.Conn) (bool, error) {
	pid, err := backend(ctx, c)
	return pid != c.PgConn().PID(), err
}

// backend returns the process that answers.
func backend(ctx context.Context, q interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}) (pid uint32, err error) {
	err = q.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid, err
}

const (
	// probeTimeout bounds the wait for a second server of the pooler.
	probeTimeout = 2 * time.Second
	// probeRounds is how often another server is asked for: a pooler that gives
	// out servers per transaction does so in the first round when nobody else
	// uses it.
	probeRounds = 5
)

// share fails with 42P05 or 26000 if statements of a and b get to servers that
// don't know what was prepared there, or know it from the other.
//
// Names are new for each probe: servers keep what earlier ones prepared.
func share(ctx context.Context, a, b *pgx.Conn) error {
	both, own := "oncemill_"+rand.Text(), "oncemill_"+rand.Text()
	for _, c := range []*pgx.Conn{a, b} {
		// 42P05 if both get the same server, as is usual.
		if _, err := c.Prepare(ctx, both, `SELECT 1`); err != nil {
			return err
		}
	}
	home, err := prepare(ctx, a, own)
	for range probeRounds {
		if err != nil {
			return err
		}
		var moved bool
		if moved, err = elsewhere(ctx, a, own, home); moved || err != nil {
			return err
		}
		// While b has a server, likely the one that a had last, a gets another.
		err = pgx.BeginFunc(ctx, b, func(pgx.Tx) error {
			moved, err = elsewhere(ctx, a, own, home)
			return err
		})
		if moved {
			return err
		}
	}
	return errors.Join(err, a.Deallocate(ctx, both), a.Deallocate(ctx, own), b.Deallocate(ctx, both))
}

// prepare prepares a statement and returns the server that has it now.
func prepare(ctx context.Context, c *pgx.Conn, name string) (home uint32, err error) {
	err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		if _, err := tx.Prepare(ctx, name, `SELECT 1`); err != nil {
			return err
		}
		home, err = backend(ctx, tx)
		return err
	})
	return home, err
}

// elsewhere executes the prepared statement if it gets another server than
// home, and tells whether it did.
func elsewhere(ctx context.Context, c *pgx.Conn, name string, home uint32) (moved bool, err error) {
	err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		now, err := backend(ctx, tx)
		if err != nil || now == home {
			return err
		}
		moved = true
		_, err = tx.Exec(ctx, name)
		return err
	})
	return moved, err
}
