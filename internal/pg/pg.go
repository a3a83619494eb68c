// Package pg lets one piece of code run on pgx and on database/sql (over
// pgx/stdlib), in whatever transaction the caller owns.
package pg

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Rows is what *sql.Rows and pgx.Rows have in common.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// DB runs statements. Arguments are the types that pgx encodes natively.
type DB interface {
	// Exec returns the number of rows affected.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	Query(ctx context.Context, query string, args ...any) (Rows, error)
}

// Pgx is what pgx.Tx, *pgx.Conn, *pgxpool.Pool and *pgxpool.Conn share.
type Pgx interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

// SQL is what *sql.Tx, *sql.DB and *sql.Conn share.
type SQL interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// FromPgx returns a DB on q.
func FromPgx(q Pgx) DB { return pgxDB{q} }

// FromSQL returns a DB on q.
func FromSQL(q SQL) DB { return sqlDB{q} }

// QueryRow scans the only row of a query into dest; no row is sql.ErrNoRows.
func QueryRow(ctx context.Context, db DB, query string, args []any, dest ...any) error {
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err below has the error that counts.
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return sql.ErrNoRows
	}
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	_ = rows.Close()
	return rows.Err()
}

// Each calls scan for each row of a query.
func Each(ctx context.Context, db DB, query string, args []any, scan func(Rows) error) error {
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err below has the error that counts.
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

type pgxDB struct{ q Pgx }

func (d pgxDB) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := d.q.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (d pgxDB) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	rows, err := d.q.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgxRows{rows}, nil
}

type pgxRows struct{ pgx.Rows }

func (r pgxRows) Close() error {
	r.Rows.Close()
	return r.Err()
}

type sqlDB struct{ q SQL }

func (d sqlDB) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := d.q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (d sqlDB) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	return d.q.QueryContext(ctx, query, args...)
}
