package dedup

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/schema"
)

func migrated(t *testing.T) (*testbed.DB, *Inbox) {
	t.Helper()
	db := testbed.NewDB(t)
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{Schema: `od"d`}))
	in, err := NewInbox(InboxConfig{Schema: `od"d`})
	require.NoError(t, err)
	return db, in
}

func TestStatementsArePreparedOnAnEmptySearchPath(t *testing.T) {
	db, in := migrated(t)
	require.NoError(t, db.Pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		for i, query := range []string{
			in.sql.claimInsert, in.sql.claimRead, in.sql.claimMany, in.sql.claimReadMany, in.sql.claimGroup, in.sql.claimLook, in.sql.unclaim,
			in.sql.setResult, in.sql.lookup, in.sql.hold, in.sql.raiseFloor, in.sql.purgePage, in.sql.claimAssert,
		} {
			_, err := c.Conn().Prepare(t.Context(), fmt.Sprint("s", i), query)
			require.NoError(t, err, query)
		}
		return nil
	}))
}

var parameter = regexp.MustCompile(`\$\d+`)

// nodes returns the node types of a generic plan, with their index or table,
// each with how often it is there.
func nodes(t *testing.T, tx pgx.Tx, query string) map[string]int {
	t.Helper()
	ctx := context.Background()
	_, err := tx.Exec(ctx, `SET LOCAL plan_cache_mode = force_generic_plan`)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `PREPARE plan AS `+query)
	require.NoError(t, err)
	nulls := ""
	for i := range len(unique(parameter.FindAllString(query, -1))) {
		if i > 0 {
			nulls += ", "
		}
		nulls += "NULL"
	}
	var plan []byte
	require.NoError(t, tx.QueryRow(ctx, `EXPLAIN (FORMAT JSON) EXECUTE plan (`+nulls+`)`).Scan(&plan))
	_, err = tx.Exec(ctx, `DEALLOCATE plan`)
	require.NoError(t, err)
	var roots []map[string]any
	require.NoError(t, json.Unmarshal(plan, &roots))
	found := map[string]int{}
	count(roots[0]["Plan"].(map[string]any), found)
	return found
}

func unique(words []string) map[string]bool {
	set := map[string]bool{}
	for _, w := range words {
		set[w] = true
	}
	return set
}

func count(node map[string]any, found map[string]int) {
	name := node["Node Type"].(string)
	for _, of := range []string{"Index Name", "Relation Name"} {
		if of, ok := node[of].(string); ok {
			name += " " + of
			break
		}
	}
	found[name]++
	children, _ := node["Plans"].([]any)
	for _, child := range children {
		count(child.(map[string]any), found)
	}
}

// The hot statements use the primary key and never read the whole table, at a
// realistic size and when their plan was made for an empty table: servers keep
// it until the table is analyzed, however large it is by then.
func TestPlansOfHotStatements(t *testing.T) {
	for name, rows := range map[string]int{"empty": 0, "realistic": 100_000} {
		t.Run(name, func(t *testing.T) {
			db, in := migrated(t)
			ctx := t.Context()
			if rows > 0 {
				_, err := db.Pool.Exec(ctx, `INSERT INTO "od""d".inbox SELECT gen_random_uuid(), 1, 1, now(), decode(repeat('00', 32), 'hex'), 'acme', 'charge' FROM generate_series(1, $1::int)`, rows)
				require.NoError(t, err)
				_, err = db.Pool.Exec(ctx, `VACUUM ANALYZE "od""d".inbox, "od""d".horizon`)
				require.NoError(t, err)
			}
			tx, err := db.Pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { require.NoError(t, tx.Rollback(ctx)) }()
			for name, query := range map[string]string{
				"claimRead": in.sql.claimRead, "claimReadMany": in.sql.claimReadMany, "claimLook": in.sql.claimLook, "lookup": in.sql.lookup, "unclaim": in.sql.unclaim,
				"purgePage": in.sql.purgePage, "hold": in.sql.hold, "setResult": in.sql.setResult,
			} {
				found := nodes(t, tx, query)
				require.NotZero(t, found["Index Scan inbox_pkey"]+found["Index Only Scan inbox_pkey"]+found["Bitmap Index Scan inbox_pkey"], "%s: %v", name, found)
				require.Zero(t, found["Seq Scan inbox"], "%s: %v", name, found)
			}
		})
	}
}
