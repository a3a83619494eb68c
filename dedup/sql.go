package dedup

// Claim statements. They run one after the other in the caller's READ
// COMMITTED transaction; each takes its own snapshot, so that the second sees
// a row that made the first one insert nothing.
const (
	// claimInsert claims one key and returns a row if it did. It waits for a
	// live rival with the same key at most as long as the lock bound, which it
	// sets before it inserts (CASE fixes the order) and puts back afterwards,
	// so that it does not leak into the caller's statements. 55P03 = the rival
	// is still there. It raises synchronous_commit when it is off: a duplicate
	// must not be acked against a row that a crash can lose.
	// Locks: the row it inserts. Index: inbox_pkey.
	claimInsert = `INSERT INTO {{schema}}.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
VALUES (CASE WHEN set_config('oncemill.lock_timeout', current_setting('lock_timeout'), true) IS NOT NULL
        THEN CASE WHEN set_config('lock_timeout', $7::text, true) IS NOT NULL THEN $1::text::uuid END END,
    1, $2::integer, $3::bytea, greatest($4::timestamptz, clock_timestamp()), $5::text, $6::text)
ON CONFLICT (id) DO NOTHING
RETURNING pg_current_xact_id()::text, clock_timestamp(), (SELECT h.floor FROM {{schema}}.horizon h WHERE h.operation = $6::text),
    set_config('lock_timeout', current_setting('oncemill.lock_timeout'), true),
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END`

	// claimRead reads the row that made claimInsert return nothing, and puts
	// the lock bound back. Index: inbox_pkey.
	claimRead = `SELECT i.state, i.fingerprint_version, i.fingerprint, i.result,
    set_config('lock_timeout', current_setting('oncemill.lock_timeout'), true)
FROM (SELECT) AS one LEFT JOIN {{schema}}.inbox i ON i.id = $1::text::uuid`

	// claimLook is claimRead outside of the claim. A standby, which may lag or be
	// left behind by a failover, has no answer. Index: inbox_pkey.
	claimLook = `SELECT i.state, i.fingerprint_version, i.fingerprint, i.result, NULL::text
FROM {{schema}}.inbox i WHERE i.id = $1::text::uuid AND NOT pg_is_in_recovery()`

	// claimAssert fails with 22012 unless it runs in the transaction of the
	// claim, with its commit still durable, and the floor of the operation is
	// not beyond the event: the insert's snapshot may be older than a purge
	// that made room for it. It is the last statement before COMMIT in the same
	// pipeline, so that a lost claim is never committed.
	claimAssert = `SELECT 1 / (coalesce(pg_current_xact_id_if_assigned()::text = $1::text, false)
    AND current_setting('synchronous_commit') <> 'off'
    AND NOT EXISTS (SELECT FROM {{schema}}.horizon h WHERE h.operation = $2::text AND h.floor > $3::timestamptz))::integer`

	// claimMany is claimInsert for a set. The rows go in by id, so that two
	// sets that share keys wait for each other and do not deadlock.
	claimMany = `INSERT INTO {{schema}}.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
SELECT u.id::uuid, 1, u.version, u.fingerprint, greatest(u.at, clock_timestamp()), u.scope, u.operation
FROM set_config('oncemill.lock_timeout', current_setting('lock_timeout'), true) AS before,
    LATERAL set_config('lock_timeout', CASE WHEN before IS NOT NULL THEN $7::text END, true) AS bound,
    unnest($1::text[], $2::integer[], $3::bytea[], $4::timestamptz[], $5::text[], $6::text[])
        AS u (id, version, fingerprint, at, scope, operation)
ORDER BY u.id::uuid
ON CONFLICT (id) DO NOTHING
RETURNING id::text`

	// claimGroup is claimMany for one scope and operation. It returns one row:
	// the ids that went in, or NULL if all did, and what claimInsert returns. The
	// lock bound is put back when the last row is in: the aggregate has seen it.
	claimGroup = `WITH fresh AS (
    INSERT INTO {{schema}}.inbox (id, state, fingerprint_version, fingerprint, at, scope, operation)
    SELECT u.id::uuid, 1, u.version, u.fingerprint, greatest(u.at, clock_timestamp()), $5::text, $6::text
    FROM set_config('oncemill.lock_timeout', current_setting('lock_timeout'), true) AS before,
        LATERAL set_config('lock_timeout', CASE WHEN before IS NOT NULL THEN $7::text END, true) AS bound,
        unnest($1::text[], $2::integer[], $3::bytea[], $4::timestamptz[]) AS u (id, version, fingerprint, at)
    ORDER BY u.id::uuid
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT CASE WHEN f.n < cardinality($1::text[]) THEN f.ids END,
    coalesce(pg_current_xact_id_if_assigned()::text, ''), clock_timestamp(),
    (SELECT h.floor FROM {{schema}}.horizon h WHERE h.operation = $6::text),
    set_config('lock_timeout', CASE WHEN f.n >= 0 THEN current_setting('oncemill.lock_timeout') END, true),
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
FROM (SELECT count(*) AS n, coalesce(array_agg(id::text), '{}') AS ids FROM fresh) f`

	// unclaim takes back fresh claims of this transaction. Index: inbox_pkey.
	unclaim = `DELETE FROM {{schema}}.inbox WHERE id = ANY($1::text[]::uuid[]) AND state = 1`

	// claimReadMany is claimRead, and what claimInsert returns, for a set, one
	// row per member in its order. LIMIT keeps the look-ups apart, each by index:
	// a join might read the whole table, if its plan was made when that was
	// small. Index: inbox_pkey.
	claimReadMany = `SELECT i.state, i.fingerprint_version, i.fingerprint, i.result,
    set_config('lock_timeout', current_setting('oncemill.lock_timeout'), true),
    coalesce(pg_current_xact_id_if_assigned()::text, ''), clock_timestamp(), h.floor, NULL::text,
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (id, operation, place)
LEFT JOIN LATERAL (SELECT r.* FROM {{schema}}.inbox r WHERE r.id = u.id::uuid LIMIT 1) i ON true
LEFT JOIN {{schema}}.horizon h ON h.operation = u.operation
ORDER BY u.place`
)

const (
	// setResult stores the answer of a done row, in the claim's transaction.
	setResult = `UPDATE {{schema}}.inbox SET result = $2::bytea WHERE id = $1::text::uuid AND state = 1`

	// lookup reads one row without claiming.
	lookup = `SELECT state, fingerprint_version, fingerprint, at, result FROM {{schema}}.inbox WHERE id = $1::text::uuid`

	// hold turns the caller's fresh claim into a held one.
	hold = `UPDATE {{schema}}.inbox SET state = $2::smallint WHERE id = $1::text::uuid AND state = 1`
)

// Retention statements. Each runs in a transaction of its own.
const (
	// raiseFloor makes known, before any row goes, up to where rows of the
	// operation may be missing, and returns that time.
	raiseFloor = `INSERT INTO {{schema}}.horizon AS h (operation, floor)
VALUES ($1::text, clock_timestamp() - $2::bigint * interval '1 microsecond')
ON CONFLICT (operation) DO UPDATE SET floor = greatest(h.floor, excluded.floor)
RETURNING floor`

	// purgePage looks at one page of rows in id order after a position and
	// deletes the done ones that are older than their operation's floor. It
	// returns the page's last id, its size and how many went.
	// Locks: the rows that go. Index: inbox_pkey, one range.
	purgePage = `WITH page AS (
    SELECT i.id, i.state = 1 AND i.at < u.floor AS over
    FROM {{schema}}.inbox i LEFT JOIN unnest($3::text[], $4::timestamptz[]) AS u (operation, floor) USING (operation)
    WHERE i.id > $1::text::uuid AND i.id <= $5::text::uuid
    ORDER BY i.id
    LIMIT $2::integer
), gone AS (
    DELETE FROM {{schema}}.inbox i USING page p
    WHERE p.over AND i.id = p.id AND i.state = 1
    RETURNING 1
)
SELECT coalesce((SELECT id::text FROM page ORDER BY id DESC LIMIT 1), ''), (SELECT count(*) FROM page), (SELECT count(*) FROM gone)`
)
