package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

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
		err := share(ctx, a, b)
		if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && (pgErr.Code == "26000" || pgErr.Code == "42P05") {
			// They believe in statements that are not there.
			return errors.Join(&PoolerError{mode}, a.Close(ctx), b.Close(ctx))
		}
		return err
	})
}

// isPooled tells whether the process that answers is another one than that
// which the connection was made to: poolers send cancel keys of their own.
func isPooled(ctx context.Context, c *pgx.Conn) (bool, error) {
	var pid uint32
	err := c.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid != c.PgConn().PID(), err
}

// probeName is the name of the prepared statement of the probe.
const probeName = "oncemill_pooler_probe"

// share prepares one statement on both connections and executes it there in
// turns. Poolers give out the server that was last in use: if they don't know
// of prepared statements the second connection finds the name taken (42P05).
// If it got another server, the first one will get that, too, while the second
// has the first's (26000).
func share(ctx context.Context, a, b *pgx.Conn) error {
	for _, c := range []*pgx.Conn{a, b} {
		if _, err := c.Prepare(ctx, probeName, `SELECT 1`); err != nil {
			return err
		}
	}
	for range 10 {
		err := pgx.BeginFunc(ctx, b, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, probeName)
			if err == nil {
				_, err = a.Exec(ctx, probeName)
			}
			return err
		})
		if err != nil {
			return err
		}
		a, b = b, a
	}
	return errors.Join(a.Deallocate(ctx, probeName), b.Deallocate(ctx, probeName))
}
