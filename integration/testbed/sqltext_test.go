package testbed_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestIsCommit(t *testing.T) {
	for _, sql := range []string{
		"commit", "COMMIT", " End ", "commit;", "BEGIN; SELECT 1; COMMIT AND CHAIN", "/* a */ commit", "-- a\ncommit",
		"SELECT 'it''s'; commit", "SELECT $a$ x; $a$; commit", `SELECT "a;b"; commit`,
	} {
		require.True(t, testbed.IsCommit(sql), sql)
	}
	for _, sql := range []string{
		"", ";", "committed", "SELECT commit", "SELECT '; commit; '", "-- ; commit", "/* ; commit */ SELECT 1",
		"DO $$ BEGIN NULL; END; COMMIT; $$", `SELECT "; commit"`, "ROLLBACK", "SELECT $1; SELECT $2", "SELECT $a$; commit",
	} {
		require.False(t, testbed.IsCommit(sql), sql)
	}
}
