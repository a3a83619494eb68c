package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// CreateDatabase makes an empty database of that name.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	if err := p.exec(ctx, "CREATE DATABASE "+quote(name)); err != nil {
		return fmt.Errorf("testbed: creating database %q: %w", name, err)
	}
	return nil
}

// DropDatabase removes a database and ends the connections to it. One that is
// not there is no error.
func (p *Postgres) DropDatabase(ctx context.Context, name string) error {
	if err := p.exec(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("testbed: dropping database %q: %w", name, err)
	}
	return nil
}

// exec runs statements one by one as superuser in the maintenance database.
func (p *Postgres) exec(ctx context.Context, statements ...string) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return execAll(ctx, conn, statements)
}

func execAll(ctx context.Context, conn *pgx.Conn, statements []string) error {
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// DB is one database of its own on a server, with a pool as superuser whose
// search_path is empty, so that SQL which forgets to name its schema fails.
type DB struct {
	Name   string
	URL    string // superuser, over TCP
	Pool   *pgxpool.Pool
	Server *Postgres

	roles []string // dropped with the database
}

// OpenDB creates a database of a fresh name and a pool on it.
func (p *Postgres) OpenDB(ctx context.Context) (*DB, error) {
	name := "om_" + randomHex(6)
	if err := p.CreateDatabase(ctx, name); err != nil {
		return nil, err
	}
	db := &DB{Name: name, URL: p.URLFor(name, ""), Server: p}
	pool, err := NewPool(ctx, db.URL, nil)
	if err != nil {
		return nil, errors.Join(err, p.DropDatabase(ctx, name))
	}
	db.Pool = pool
	return db, nil
}

// Close closes the pool and drops the database and the roles made for it. Call
// CheckLeaks before: a pool with a connection that was never given back does
// not close.
func (db *DB) Close(ctx context.Context) error {
	ctx, cancel := bounded(ctx, stopBound)
	defer cancel()
	closed := make(chan struct{})
	go func() { db.Pool.Close(); close(closed) }()
	err := db.Server.DropDatabase(ctx, db.Name) // ends what the pool still holds
	for _, role := range db.roles {
		err = errors.Join(err, db.Server.exec(ctx, "DROP ROLE IF EXISTS "+quote(role)))
	}
	select {
	case <-closed:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("testbed: closing the pool of %s: a connection was never released: %w", db.Name, ctx.Err()))
	}
}

// NewPool opens a pool with an empty search_path. tune may change the
// configuration; nil leaves it.
func NewPool(ctx context.Context, connURL string, tune func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(connURL)
	if err != nil {
		return nil, errors.New("testbed: opening a pool: not a connection URL")
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = ""
	if tune != nil {
		tune(cfg)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("testbed: opening a pool: %w", err)
	}
	return pool, nil
}

// RoleLogin is a login without any right but to connect to its database.
type RoleLogin struct {
	Name string
	URL  string
}

// AddRole makes a role that may connect and nothing else: no superuser, no
// CREATE, no TEMP, nothing in the schema public. What PUBLIC could do in this
// database is revoked for that. Grants are the caller's.
func (db *DB) AddRole(ctx context.Context) (RoleLogin, error) {
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return RoleLogin{}, fmt.Errorf("testbed: adding a role: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	name, password := "om_role_"+randomHex(6), randomHex(12)
	err = execAll(ctx, conn, []string{
		"CREATE ROLE " + quote(name) + " LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD '" + password + "'",
		"REVOKE ALL ON DATABASE " + quote(db.Name) + " FROM PUBLIC",
		"REVOKE ALL ON SCHEMA public FROM PUBLIC",
		"GRANT CONNECT ON DATABASE " + quote(db.Name) + " TO " + quote(name),
	})
	if err != nil {
		return RoleLogin{}, fmt.Errorf("testbed: adding a role: %w", err)
	}
	db.roles = append(db.roles, name)
	u, err := url.Parse(db.URL)
	if err != nil {
		return RoleLogin{}, errors.New("testbed: adding a role: not a connection URL")
	}
	u.User = url.UserPassword(name, password)
	return RoleLogin{Name: name, URL: u.String()}, nil
}

// AwaitLockWaiters returns when at least n backends of this database wait for
// a lock of another one. Tests use it in place of a pause.
func (db *DB) AwaitLockWaiters(ctx context.Context, n int) error {
	conn, err := db.Server.connect(ctx)
	if err != nil {
		return fmt.Errorf("testbed: looking for lock waiters: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return poll(ctx, fmt.Sprintf("%d backends wait for a lock", n), func() (bool, error) {
		var waiting int
		err := conn.QueryRow(ctx, `
			SELECT count(*) FROM pg_catalog.pg_stat_activity
			WHERE datname = $1 AND wait_event_type = 'Lock'`, db.Name).Scan(&waiting)
		return waiting >= n, err
	})
}

// leakPatience is how long CheckLeaks lets backends finish whose client has
// just gone; on a healthy test nothing is ever waited for.
const leakPatience = 10 * time.Second

// leaksSQL lists sessions of a database that hold a transaction or an advisory
// lock while nobody works for them.
const leaksSQL = `
	SELECT pid, coalesce(state, ''), coalesce(application_name, ''), left(query, 200)
	FROM pg_catalog.pg_stat_activity a
	WHERE datname = $1 AND backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid()
	  AND (state LIKE 'idle in transaction%'
	    OR EXISTS (SELECT 1 FROM pg_catalog.pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory'))
	ORDER BY pid`

type leak struct {
	PID                int32
	State, Application string
	Query              string
}

// CheckLeaks fails when a connection was not given back to the pool, when a
// session is idle in a transaction, or when one holds an advisory lock. It
// waits a few seconds for these to end.
func (db *DB) CheckLeaks(ctx context.Context) error {
	return db.checkLeaks(ctx, leakPatience)
}

func (db *DB) checkLeaks(ctx context.Context, patience time.Duration) error {
	conn, err := db.Server.connect(ctx)
	if err != nil {
		return fmt.Errorf("testbed: checking %s for leaks: %w (a test that stops its server starts it again before it ends)", db.Name, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	bound, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var acquired int32
	var leaks []leak
	err = poll(bound, "nothing is leaked", func() (bool, error) {
		acquired = db.Pool.Stat().AcquiredConns()
		rows, err := conn.Query(ctx, leaksSQL, db.Name)
		if err != nil {
			return false, err
		}
		leaks, err = pgx.CollectRows(rows, pgx.RowToStructByPos[leak])
		return acquired == 0 && len(leaks) == 0, err
	})
	if err != nil {
		return fmt.Errorf("%w: %d connections not given back to the pool, sessions with a transaction or an advisory lock: %+v", err, acquired, leaks)
	}
	return nil
}
