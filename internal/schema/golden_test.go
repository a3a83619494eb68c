package schema_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/schema"
)

var update = flag.Bool("update", false, "write testdata/schema.golden")

// describe lists columns, constraints and indexes as the catalogs have them,
// one a line.
const describe = `SELECT line FROM (
    SELECT c.relname AS name, 1 AS kind, a.attnum::text AS place,
        format('%s.%s %s%s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN ' NOT NULL' END,
            ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), CASE a.attidentity WHEN 'a' THEN ' IDENTITY' END) AS line
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'oncemill'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT c.relname, 2, k.conname, format('%s CONSTRAINT %s %s', c.relname, k.conname, pg_get_constraintdef(k.oid))
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid WHERE c.relnamespace = 'oncemill'::regnamespace AND k.contype <> 'n'
    UNION ALL
    SELECT tablename, 3, indexname, indexdef FROM pg_indexes WHERE schemaname = 'oncemill'
) AS all_lines ORDER BY name, kind, lpad(place, 64)`

func TestTheFinalSchemaIsTheGoldenOne(t *testing.T) {
	db := testbed.NewDB(t)
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{}))
	rows, err := db.Pool.Query(t.Context(), describe)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	got := strings.Join(lines, "\n") + "\n"
	const file = "testdata/schema.golden"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "a migration that is meant: go test ./internal/schema -update")
}
