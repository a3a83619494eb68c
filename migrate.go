package oncemill

import (
	"context"
	"database/sql"

	"github.com/oncemill/oncemill/internal/schema"
)

// SchemaVersion is the version of the database schema that this code needs.
// It only grows.
func SchemaVersion() int { return schema.Version() }

// MigrateConfig says which schema to migrate. The zero value is the schema
// "oncemill" with a lock wait of 30 s.
type MigrateConfig = schema.Config

// Beginner starts a transaction with options: *pgxpool.Pool and *pgx.Conn do.
type Beginner = schema.Beginner

// NotReadyError says why a database cannot be used by this version of the
// code (old schema, missing right, old server) and what to run.
type NotReadyError = schema.NotReadyError

// Migrate creates the schema or brings it to [SchemaVersion], in one
// transaction. It needs a role that owns the schema, or may create it.
//
// Any number of processes may call it at once: one works, the others wait for
// it, at most MigrateConfig.LockWait. A process killed half-way leaves nothing
// behind. A schema that is newer than the code is an error.
func Migrate(ctx context.Context, db Beginner, cfg MigrateConfig) error {
	return schema.Migrate(ctx, db, cfg)
}

// MigrateSQL is [Migrate] for database/sql over pgx/stdlib.
func MigrateSQL(ctx context.Context, db *sql.DB, cfg MigrateConfig) error {
	return schema.MigrateSQL(ctx, db, cfg)
}

// MigrationSQL returns the statements that take a schema from version from to
// version to, for people's own migration tools: to be run in one transaction,
// by one process. The first form is from 0 (nothing there) to
// [SchemaVersion]. An empty name is the schema "oncemill".
func MigrationSQL(name string, from, to int) (string, error) {
	n, err := schema.ParseName(name)
	if err != nil {
		return "", err
	}
	return schema.Statements(n, from, to)
}

// Grants returns the statements that give role all that it needs at run time:
// USAGE on the schema, rights on rows, no DDL.
func Grants(name, role string) ([]string, error) {
	n, err := schema.ParseName(name)
	if err != nil {
		return nil, err
	}
	return schema.Grants(n, role), nil
}
