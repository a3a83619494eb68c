package schema

// Migration statements run in one READ COMMITTED transaction that holds the
// advisory lock of the schema.
const (
	setLockTimeout = `SELECT set_config('lock_timeout', $1, true)`

	// takeLock waits for another migrating process, bounded by lock_timeout.
	takeLock = `SELECT pg_advisory_xact_lock($1)`

	schemaExists  = `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`
	versionsExist = `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = 'schema_migration')`

	createSchema   = `CREATE SCHEMA {{schema}}`
	createVersions = `CREATE TABLE {{schema}}.schema_migration (
    version    integer     NOT NULL,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT schema_migration_pkey PRIMARY KEY (version)
)`

	selectVersion = `SELECT coalesce(max(version), 0) FROM {{schema}}.schema_migration`
	insertVersion = `INSERT INTO {{schema}}.schema_migration (version, name) VALUES ($1, $2)`
)

// Check statements read catalogs only: they work without any right on the
// schema.
const (
	// selectRights lists the tables of the schema with the rights of the
	// current role on each.
	selectRights = `SELECT c.relname::text,
    has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'INSERT'),
    has_table_privilege(c.oid, 'UPDATE'), has_table_privilege(c.oid, 'DELETE')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')`

	// selectAccess returns the role, the server's version and whether the role
	// may use the schema.
	selectAccess = `SELECT current_user::text, current_setting('server_version_num')::integer,
    coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = $1), false),
    EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`
)
