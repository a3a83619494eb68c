package schema

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/internal/pg"
)

// DefaultLockWait bounds how long a process waits for another one that is
// migrating the same schema.
const DefaultLockWait = 30 * time.Second

//go:embed migrations/*.sql
var files embed.FS

// migrations in order; migration i has version i+1.
var migrations = mustLoad()

type migration struct{ name, sql string }

func mustLoad() []migration {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil || len(names) == 0 {
		panic(fmt.Sprintf("schema: embedded migrations: %v", err))
	}
	slices.Sort(names)
	ms := make([]migration, len(names))
	for i, name := range names {
		base := strings.TrimSuffix(strings.TrimPrefix(name, "migrations/"), ".sql")
		if !strings.HasPrefix(base, fmt.Sprintf("%04d_", i+1)) {
			panic("schema: migration " + name + " breaks the numbering")
		}
		b, err := files.ReadFile(name)
		if err != nil {
			panic(fmt.Sprintf("schema: %v", err))
		}
		ms[i] = migration{base, string(b)}
	}
	return ms
}

// Version is the schema version this code needs.
func Version() int { return len(migrations) }

// Statements returns the migrations after version from, up to and including
// version to, ready to be run in one transaction by people's own tools.
func Statements(name Name, from, to int) (string, error) {
	if from < 0 || to > Version() || from > to {
		return "", fmt.Errorf("migrations from %d to %d: want 0 <= from <= to <= %d", from, to, Version())
	}
	var b strings.Builder
	if from == 0 && to > 0 {
		b.WriteString(name.Expand("CREATE SCHEMA IF NOT EXISTS {{schema}};\n" + createVersions + ";\n"))
	}
	for v := from; v < to; v++ {
		m := migrations[v]
		fmt.Fprintf(&b, "\n-- version %d\n%s", v+1, name.Expand(m.sql))
		fmt.Fprintf(&b, "\n"+name.Expand("INSERT INTO {{schema}}.schema_migration (version, name) VALUES (%d, '%s');\n"), v+1, m.name)
	}
	return b.String(), nil
}

// Beginner starts a transaction: *pgxpool.Pool and *pgx.Conn do.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Config says which schema to migrate.
type Config struct {
	// Schema is the schema's name, DefaultName if empty.
	Schema string
	// LockWait bounds the wait for another process that is migrating, and for
	// locks that the migrations need. 0 means DefaultLockWait.
	LockWait time.Duration
}

// Migrate brings the schema to Version in one transaction. Any number of
// processes may call it at once: one works, the others wait for it.
func Migrate(ctx context.Context, db Beginner, cfg Config) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("migrate: begin: %w", err)
	}
	if err := run(ctx, pg.FromPgx(tx), cfg); err != nil {
		_ = tx.Rollback(context.WithoutCancel(ctx))
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("migrate: commit: %w", err)
	}
	return nil
}

// MigrateSQL is Migrate for database/sql.
func MigrateSQL(ctx context.Context, db *sql.DB, cfg Config) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("migrate: begin: %w", err)
	}
	// database/sql has no option for it, and the role's default may be another.
	_, err = tx.ExecContext(ctx, `SET TRANSACTION READ WRITE`)
	if err == nil {
		err = run(ctx, pg.FromSQL(tx), cfg)
	}
	if err != nil {
		_ = tx.Rollback()
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("migrate: commit: %w", err)
	}
	return nil
}

func run(ctx context.Context, tx pg.DB, cfg Config) error {
	name, err := ParseName(cfg.Schema)
	if err != nil {
		return err
	}
	if err := lock(ctx, tx, name, cfg.LockWait); err != nil {
		return err
	}
	if err := ensureSchema(ctx, tx, name); err != nil {
		return err
	}
	var current int
	if err := pg.QueryRow(ctx, tx, name.Expand(selectVersion), nil, &current); err != nil {
		return fmt.Errorf("migrate: read version of schema %s: %w", name.Quoted(), err)
	}
	if current > Version() {
		return fmt.Errorf("migrate: schema %s has version %d, this code knows %d: deploy the newer code", name.Quoted(), current, Version())
	}
	for v := current; v < Version(); v++ {
		m := migrations[v]
		if _, err := tx.Exec(ctx, name.Expand(m.sql)); err != nil {
			return fmt.Errorf("migrate: schema %s: %s: %w", name.Quoted(), m.name, err)
		}
		if _, err := tx.Exec(ctx, name.Expand(insertVersion), v+1, m.name); err != nil {
			return fmt.Errorf("migrate: schema %s: record %s: %w", name.Quoted(), m.name, err)
		}
	}
	return nil
}

// lock takes the migration lock of the schema for the rest of the
// transaction. It is taken before the schema is created: concurrent CREATE
// SCHEMA IF NOT EXISTS statements fail each other with 23505.
func lock(ctx context.Context, tx pg.DB, name Name, wait time.Duration) error {
	if wait <= 0 {
		wait = DefaultLockWait
	}
	if _, err := tx.Exec(ctx, setLockTimeout, fmt.Sprintf("%dms", max(wait.Milliseconds(), 1))); err != nil {
		return fmt.Errorf("migrate: bound the wait for locks: %w", err)
	}
	_, err := tx.Exec(ctx, takeLock, lockKey(name))
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "55P03" {
		return fmt.Errorf("migrate: another process has been migrating schema %s for more than %s: wait for it or end it, then start again: %w", name.Quoted(), wait, err)
	}
	if err != nil {
		return fmt.Errorf("migrate: wait for other migrating processes: %w", err)
	}
	return nil
}

func lockKey(name Name) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("oncemill migrate\x00" + name.String()))
	return int64(h.Sum64()) // The bits matter, not the sign.
}

// ensureSchema creates the schema only when it is missing: CREATE SCHEMA IF
// NOT EXISTS fails for a role without the right to create one, even if the
// schema is there.
func ensureSchema(ctx context.Context, tx pg.DB, name Name) error {
	for _, step := range []struct{ exists, create, what string }{
		{schemaExists, createSchema, "create schema"},
		{versionsExist, createVersions, "create the version table of schema"},
	} {
		var exists bool
		if err := pg.QueryRow(ctx, tx, step.exists, []any{name.String()}, &exists); err != nil {
			return fmt.Errorf("migrate: look for schema %s: %w", name.Quoted(), err)
		}
		if exists {
			continue
		}
		if _, err := tx.Exec(ctx, name.Expand(step.create)); err != nil {
			return fmt.Errorf("migrate: %s %s: %w", step.what, name.Quoted(), err)
		}
	}
	return nil
}
