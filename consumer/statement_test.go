package consumer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatementsThatAreRefused(t *testing.T) {
	for _, query := range []string{
		"COMMIT", "commit", "  \n\tCommit;", "END", "ABORT", "ROLLBACK", "ROLLBACK WORK", "rollback and chain", "BEGIN", "START TRANSACTION",
		"PREPARE TRANSACTION 'x'",
		"PREPARE p AS SELECT 1", "/* a */ prepare p (int) AS SELECT $1", "EXECUTE p(1)", "SELECT 1; EXECUTE p", "DEALLOCATE ALL", "DEALLOCATE PREPARE p", "LOAD 'auto_explain'", "DISCARD PLANS",
		"DECLARE c CURSOR WITH HOLD FOR SELECT 1", "declare c binary insensitive no scroll cursor -- kept\n with hold for select 1", `DECLARE "cursor" CURSOR WITH/**/HOLD FOR SELECT 1`, "SELECT 1; DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT 1",
		"CREATE TEMP TABLE t (a int)", "create temporary table t (a int) on commit delete rows", "CREATE LOCAL TEMP TABLE IF NOT EXISTS t AS SELECT 1", "CREATE GLOBAL TEMPORARY TABLE t ()",
		"CREATE TEMP TABLE t (a text DEFAULT 'ON COMMIT DROP')", "CREATE TEMP TABLE t (a int) /* ON COMMIT DROP */", "CREATE TEMP TABLE t (a int); CREATE TEMP TABLE u (a int) ON COMMIT DROP",
		"CREATE TEMP SEQUENCE s", "CREATE TEMP VIEW v AS SELECT 1", "CREATE OR REPLACE TEMP VIEW v AS SELECT 1", "CREATE OR REPLACE LOCAL TEMPORARY VIEW v AS SELECT 1",
		"/* a */ COMMIT", "/* /* nested */ */ COMMIT", "-- line\nCOMMIT", "-- line\r COMMIT",
		"INSERT INTO t VALUES (1); COMMIT", "SELECT 1;;COMMIT", "SELECT ';'; COMMIT", "SELECT $$;$$; COMMIT", "SELECT $a$ $$ ; $a$; COMMIT",
		`SELECT ";"; COMMIT`, `SELECT ''';'; COMMIT`, `SELECT E'\';'; COMMIT`, "SELECT $1; COMMIT", "SELECT a$b; COMMIT", "SELECT 1 FROM a, b, c, d, e; COMMIT",
		"SET search_path = other", "SET SESSION x.y = 1", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET ROLE r", `SET "search_path" = other`, "RESET ALL", "DISCARD ALL", "LISTEN c", "UNLISTEN *",
		"SET LOCAL synchronous_commit = off", "SET LOCAL synchronous_commit TO 'off'", "set local synchronous_commit to local", `SET LOCAL "synchronous_commit" = false`,
	} {
		var refused *StatementError
		require.ErrorAs(t, checkStatement(query), &refused, "%q", query)
		require.NotEmpty(t, refused.Remedy)
	}
}

func TestStatementsThatPass(t *testing.T) {
	for _, query := range []string{
		"", ";", "SELECT 1", "SELECT 'COMMIT'", "SELECT '; COMMIT'", "SELECT $$; COMMIT$$", "SELECT $a$; COMMIT; $a$", `SELECT "; COMMIT"`, `SELECT E'\'; COMMIT'`,
		"-- ; COMMIT", "/* ; COMMIT */ SELECT 1", "UPDATE t SET a = 1 WHERE b = 'COMMIT'", "SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK TO SAVEPOINT a", "ROLLBACK WORK TO a", "RELEASE a",
		"SET LOCAL search_path = other", "SET CONSTRAINTS ALL DEFERRED", "SET LOCAL synchronous_commit = on", "SET LOCAL synchronous_commit TO remote_apply",
		"INSERT INTO t (commit) VALUES ($1) RETURNING id", "SELECT CASE WHEN a THEN b END", "WITH x AS (SELECT 1) SELECT * FROM x",
		"DECLARE c CURSOR FOR SELECT 1", "DECLARE c CURSOR WITHOUT HOLD FOR SELECT 1", "DECLARE c CURSOR FOR WITH hold AS (SELECT 1) SELECT * FROM hold", "DECLARE c CURSOR FOR SELECT 'CURSOR WITH HOLD'",
		"CREATE TEMP TABLE t (a int) ON COMMIT DROP", "create temporary table t on /* a */ commit\ndrop as select ';'", "CREATE TEMP TABLE t (a text DEFAULT ';') ON COMMIT DROP; INSERT INTO t VALUES (1)", "CREATE LOCAL TEMP TABLE t () ON COMMIT DROP",
		"CREATE TABLE temp (a int)", "CREATE UNLOGGED TABLE t (a int)", "CREATE OR REPLACE FUNCTION temp() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$", "INSERT INTO temp SELECT ''", "EXPLAIN SELECT 1", "COPY t FROM STDIN",
		"SELECT 'unterminated", "/* unterminated", "$tag$ unterminated", "$",
	} {
		require.NoError(t, checkStatement(query), "%q", query)
	}
}

// Each statement of a handler is looked at, so that the look must be cheap.
func TestTheCheckDoesNotAllocate(t *testing.T) {
	for _, query := range []string{
		"-- name: Insert :exec\nINSERT INTO public.effects (key, body) VALUES ($1, $2) ON CONFLICT DO NOTHING", "SELECT 'a;b', E'\\'' FROM t; SELECT 2",
		"SET LOCAL statement_timeout = 5", "DECLARE c CURSOR FOR SELECT 1", "CREATE TEMP TABLE t (a int) ON COMMIT DROP",
	} {
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = checkStatement(query) }), "%q", query)
	}
}

func BenchmarkCheckStatement(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = checkStatement("INSERT INTO public.effects (operation, key, body) VALUES ($1, $2, $3)")
	}
}

func FuzzCheckStatement(f *testing.F) {
	f.Add("SELECT $a$ ; $a$ /* /* */ */ -- \n; COMMIT")
	f.Fuzz(func(_ *testing.T, query string) { _ = checkStatement(query) })
}
