package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
)

func migrated(t *testing.T) *testbed.DB {
	t.Helper()
	db := testbed.NewDB(t)
	require.NoError(t, schema.Migrate(t.Context(), db.Pool, schema.Config{}))
	return db
}

func TestEveryStatementPreparesOnAnEmptySearchPath(t *testing.T) {
	db := migrated(t)
	conn, err := db.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	v := reflect.ValueOf(expand(schema.Name{}))
	for i := range v.NumField() {
		query := v.Field(i).String()
		require.NotEmpty(t, query, v.Type().Field(i).Name)
		if strings.HasPrefix(query, "LOCK") {
			continue // is not a statement that can be prepared
		}
		_, err := conn.Conn().Prepare(t.Context(), fmt.Sprint("s", i), query)
		require.NoError(t, err, v.Type().Field(i).Name)
	}
}

// Both reads must take what they need from the index, whatever else is queued
// or was sent.
func TestReadsUseTheirIndexes(t *testing.T) {
	db := migrated(t)
	_, err := db.Pool.Exec(t.Context(), `WITH m AS (INSERT INTO oncemill.outbox (topic, logical_id, header, payload)
		SELECT 'ord.x', g::text, '', decode(repeat('00', 256), 'hex') FROM generate_series(1, 50000) g RETURNING id)
		INSERT INTO oncemill.outbox_queue (lane, id, xid) SELECT id % 4, id, pg_current_xact_id() FROM m WHERE id > 20000`)
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `ANALYZE oncemill.outbox, oncemill.outbox_queue`)
	require.NoError(t, err)
	var before string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT pg_current_snapshot()::text`).Scan(&before))
	_, err = db.Pool.Exec(t.Context(), `UPDATE oncemill.outbox_queue SET xid = pg_current_xact_id() WHERE id > 49900`)
	require.NoError(t, err)

	s := expand(schema.Name{})
	// Two tables have one row each.
	withoutSingles := strings.NewReplacer("Seq Scan outbox_boot", "", "Seq Scan outbox_settings", "").Replace
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		nodes := explain(t, db, mode, s.readByID, "1, '', '', 0, 500, 1000000, '{}', '{}', 1000")
		require.Contains(t, nodes, "outbox_queue_pkey", mode)
		require.NotContains(t, withoutSingles(nodes), "Seq Scan", mode)
		require.NotContains(t, nodes, "Merge Join", mode)
		nodes = explain(t, db, mode, s.readByXID, "1, '"+before+"', '', 0, 500, 1000000, '{}', '{}', 1000")
		require.Contains(t, nodes, "outbox_queue_xid_idx", mode)
		require.NotContains(t, withoutSingles(nodes), "Seq Scan", mode)
		require.NotContains(t, nodes, "outbox_queue_pkey", mode)
	}
	reader := newReader(t, db, &s)
	reader.prev = before
	rows, more, err := reader.next(t.Context(), readRequest{rows: 500, bytes: 1 << 20})
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, rows, 25)
}

// newReader returns the reader of lane 1 that knows the database.
func newReader(t *testing.T, db *testbed.DB, s *statements) *reader {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), s.boot)
	require.NoError(t, err)
	rd := &reader{db: pg.FromPgx(db.Pool), sql: s, lane: 1}
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT id::text FROM oncemill.outbox_boot`).Scan(&rd.boot))
	return rd
}

// Statistics are wrong where it matters: the queue was empty when it was
// analyzed last, and now a backlog waits. A page and a mark must not look at
// all of it.
func TestAPageAndAMarkCostTheSameInAnyBacklog(t *testing.T) {
	db := migrated(t)
	_, err := db.Pool.Exec(t.Context(), `ANALYZE oncemill.outbox_queue`)
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `INSERT INTO oncemill.outbox_queue (lane, id, xid) SELECT g % 4, g, pg_current_xact_id() FROM generate_series(1, 100000) g`)
	require.NoError(t, err)
	s := expand(schema.Name{})
	ids := make([]string, 500)
	for i := range ids {
		ids[i] = fmt.Sprint(4*(i+1000) + 1)
	}
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		for query, args := range map[string]string{
			s.readByID: "1, '', '', 4000, 500, 1000000, '{}', '{}', 1000",
			s.markSent: "1, '{" + strings.Join(ids, ",") + "}', 0",
		} {
			plan := explainJSON(t, db, mode, query, "ANALYZE, ", args)
			require.LessOrEqual(t, looked(plan), 1100.0, "rows that one scan of the queue looked at, %s: %s", mode, query)
		}
	}
}

// looked returns the most rows that a scan in the plan looked at.
func looked(node any) (most float64) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			most = max(most, looked(child))
		}
	case map[string]any:
		if kind, ok := n["Node Type"].(string); ok && strings.HasSuffix(kind, "Scan") && kind != "CTE Scan" {
			removed, _ := n["Rows Removed by Filter"].(float64)
			most = (n["Actual Rows"].(float64) + removed) * n["Actual Loops"].(float64)
		}
		for _, child := range n {
			most = max(most, looked(child))
		}
	}
	return most
}

// A rescan after an outage: what is left of the lane lies far apart, and each
// page looks at more of it.
func TestReaderGoesOnOverGaps(t *testing.T) {
	db := migrated(t)
	_, err := db.Pool.Exec(t.Context(), `INSERT INTO oncemill.outbox_queue (lane, id, xid) SELECT 1, g * 100000, pg_current_xact_id() FROM generate_series(1, 40) g`)
	require.NoError(t, err)
	s := expand(schema.Name{})
	reader := newReader(t, db, &s)
	var ids []int64
	pages := 0
	for more := true; more; pages++ {
		var rows []*row
		rows, more, err = reader.next(t.Context(), readRequest{rows: 10, bytes: 4000})
		require.NoError(t, err)
		for _, r := range rows {
			ids = append(ids, r.id)
		}
	}
	require.Len(t, ids, 40)
	require.IsIncreasing(t, ids)
	require.Less(t, pages, 20)
}

// explain returns the scans and joins of a plan, one per line.
func explain(t *testing.T, db *testbed.DB, mode, query, args string) string {
	t.Helper()
	var out strings.Builder
	walkPlan(explainJSON(t, db, mode, query, "", args), &out)
	return out.String()
}

func explainJSON(t *testing.T, db *testbed.DB, mode, query, option, args string) (tree any) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('plan_cache_mode', $1, true)`, mode); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), "PREPARE explained AS "+query); err != nil {
			return err
		}
		defer tx.Exec(t.Context(), "DEALLOCATE explained") //nolint:errcheck // Gone with the database.
		var plan []byte
		if err := tx.QueryRow(t.Context(), "EXPLAIN ("+option+"FORMAT JSON) EXECUTE explained("+args+")").Scan(&plan); err != nil {
			return err
		}
		return json.Unmarshal(plan, &tree)
	}))
	return tree
}

func walkPlan(node any, out *strings.Builder) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			walkPlan(child, out)
		}
	case map[string]any:
		if kind, ok := n["Node Type"]; ok {
			fmt.Fprintln(out, kind, n["Relation Name"], n["Index Name"])
		}
		for _, child := range n {
			walkPlan(child, out)
		}
	}
}

func TestReaderStaysWithinItsBounds(t *testing.T) {
	db := migrated(t)
	o, err := New(Config{})
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `UPDATE oncemill.outbox_settings SET lanes = 1`)
	require.NoError(t, err)
	for _, size := range []int{10, 5000, 10, 10, 9000, 10} {
		row := Row{topic: "ord.x", logicalID: "x", header: []byte{}, payload: make([]byte, size)}
		_, err := o.WriteRows(t.Context(), pg.FromPgx(db.Pool), []Row{row})
		require.NoError(t, err)
	}
	reader := newReader(t, db, &o.sql)
	reader.lane = 0
	var pages [][]int64
	for more := true; more; {
		var rows []*row
		rows, more, err = reader.next(t.Context(), readRequest{rows: 4, bytes: 4000})
		require.NoError(t, err)
		var ids []int64
		for _, r := range rows {
			require.NotEmpty(t, r.Payload)
			ids = append(ids, r.id)
		}
		pages = append(pages, ids)
	}
	require.Equal(t, [][]int64{{1, 2}, {3, 4, 5}, {6}}, pages)
}

// Leases are stamped and judged by one clock, the database's own, and not by
// the start of a transaction.
func TestC69_LeasesAreOnTheDatabasesClock(t *testing.T) {
	db := migrated(t)
	s := expand(schema.Name{})
	require.NoError(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT pg_sleep(0.6)`) // the transaction began long ago
		require.NoError(t, err)
		a := leases{db: pg.FromPgx(tx), sql: &s, owner: "a", lease: 500 * time.Millisecond}
		b := leases{db: pg.FromPgx(tx), sql: &s, owner: "b", lease: time.Hour}
		holds, err := a.acquire(t.Context(), 4)
		require.NoError(t, err)
		require.Len(t, holds, 4)
		stolen, err := b.acquire(t.Context(), 4)
		require.NoError(t, err)
		require.Empty(t, stolen, "a late stamp gives a full lease")

		_, err = tx.Exec(t.Context(), `SELECT pg_sleep(0.6)`)
		require.NoError(t, err)
		taken, err := b.acquire(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, []hold{{lane: holds[0].lane, fence: holds[0].fence + 1}}, taken)
		ours, err := a.renew(t.Context(), holds)
		require.NoError(t, err)
		require.Len(t, ours, 3, "what was not taken can still be renewed")
		require.NoError(t, a.release(t.Context(), holds[0]))
		var owner string
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT owner FROM oncemill.outbox_lane WHERE lane = $1`, holds[0].lane).Scan(&owner))
		require.Equal(t, "b", owner, "a lane of another is not released")
		return nil
	}))
}

// Stored hashes and derived ids must not change with the code.
func TestDerivedValuesArePinned(t *testing.T) {
	require.EqualValues(t, 570153958640793566, keyHash("account-1"))
	const own = "023a5033-3a00-46bf-ae25-81861a4234e4"
	require.Equal(t, own, brokerIDOf(own, 0))
	require.Equal(t, "9112d229-0bb4-823d-b73c-8fc10afea0d3", brokerIDOf(own, 1))
	require.NotEqual(t, brokerIDOf(own, 1), brokerIDOf(own, 2))
}

func TestBackoffGrowsToItsCap(t *testing.T) {
	for attempts, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second} {
		got := backoff(attempts, time.Second, 10*time.Second)
		require.InDelta(t, want, got, float64(want)/5)
	}
	require.LessOrEqual(t, backoff(1<<30, time.Second, time.Minute), 72*time.Second)
}

func TestMarksOfALostLane(t *testing.T) {
	db := migrated(t)
	o, err := New(Config{})
	require.NoError(t, err)
	_, err = o.WriteRows(context.Background(), pg.FromPgx(db.Pool), []Row{{topic: "x", logicalID: "1", header: []byte{}}, {topic: "x", logicalID: "2", header: []byte{}}})
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `UPDATE oncemill.outbox_queue SET lane = 0`)
	require.NoError(t, err)
	mk := marker{db: pg.FromPgx(db.Pool), sql: &o.sql, hold: hold{lane: 0, fence: 7}}
	todo := marks{sent: []*row{{id: 1}}, failed: []failure{{row: &row{id: 2}, charge: 1, reason: "x"}}}
	_, err = mk.write(t.Context(), &todo)
	require.ErrorIs(t, err, errLost)
	var left, attempts int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*), sum(attempts) FROM oncemill.outbox_queue`).Scan(&left, &attempts))
	require.Equal(t, 1, left, "what was sent is marked, whoever holds the lane")
	require.Zero(t, attempts, "a failure is not recorded without the fence")
}
