package consumer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatementsThatAreRefused(t *testing.T) {
	for _, query := range []string{
		"COMMIT", "commit", "  \n\tCommit;", "END", "ABORT", "ROLLBACK", "ROLLBACK WORK", "rollback and chain", "BEGIN", "START TRANSACTION",
		"PREPARE TRANSACTION 'x'",
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
		"INSERT INTO t (commit) VALUES ($1) RETURNING id", "SELECT CASE WHEN a THEN b END", "WITH x AS (SELECT 1) SELECT * FROM x", "PREPARE p AS SELECT 1", "SELECT 'unterminated", "/* unterminated", "$tag$ unterminated", "$",
	} {
		require.NoError(t, checkStatement(query), "%q", query)
	}
}

func FuzzCheckStatement(f *testing.F) {
	f.Add("SELECT $a$ ; $a$ /* /* */ */ -- \n; COMMIT")
	f.Fuzz(func(_ *testing.T, query string) { _ = checkStatement(query) })
}
