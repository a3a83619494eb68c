package outbox

import "github.com/oncemill/oncemill/internal/schema"

// sizeConstraint refuses a message over outbox_settings.max_payload.
const sizeConstraint = "outbox_queue_size_check"

// writeSQL writes messages and their queue rows, in the order of the arrays.
// The lane is a function of the ordering key's hash, else of the id; a message
// over the broker's limit (size 0 is not checked) gets lane -1, which
// outbox_queue_size_check refuses. Locks: none but those of the inserts; it
// reads the one row of outbox_settings.
const writeSQL = `
WITH message AS (
	INSERT INTO {{schema}}.outbox (topic, logical_id, ordering_key, key_hash, header, payload)
	SELECT r.topic, r.logical_id, nullif(r.ordering_key, ''),
		CASE WHEN r.ordering_key <> '' THEN r.key_hash END, r.header, r.payload
	FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::bytea[])
		WITH ORDINALITY AS r(topic, logical_id, ordering_key, key_hash, header, payload, n)
	ORDER BY r.n
	RETURNING id, key_hash
), largest AS (
	SELECT max(size) AS size FROM unnest($7::bigint[]) AS size
)` + writeQueue

// writeOneSQL is writeSQL for one message. Without arrays its generic plan is
// as cheap as any, so that PostgreSQL plans it once and not with every call.
const writeOneSQL = `
WITH message AS (
	INSERT INTO {{schema}}.outbox (topic, logical_id, ordering_key, key_hash, header, payload)
	VALUES ($1::text, $2::text, nullif($3::text, ''), CASE WHEN $3::text <> '' THEN $4::bigint END, $5::bytea, $6::bytea)
	RETURNING id, key_hash
), largest AS (
	SELECT $7::bigint AS size
)` + writeQueue

// writeQueue is the second half of both. It returns the lanes, one bit each.
const writeQueue = `, queued AS (
	INSERT INTO {{schema}}.outbox_queue (lane, id, xid, key_hash)
	SELECT (SELECT CASE
			WHEN (SELECT size FROM largest) > coalesce(max_payload, 1048576) THEN -1
			ELSE (coalesce(m.key_hash, m.id) & 9223372036854775807) % lanes
		END FROM {{schema}}.outbox_settings),
		m.id, pg_current_xact_id(), m.key_hash
	FROM message m
	RETURNING lane
)
SELECT bit_or(1::bigint << lane::int) FROM queued`

// readTail is the second half of both reads: the messages of a page, looked up
// by id (OFFSET 0 keeps the planner from a merge join, which would wade
// through sent messages). A message beyond the byte budget $6 comes without
// its columns and ends the page; the first one always comes. The first line
// has no row: it says what is true of the whole page.
const readTail = `
), filled AS (
	SELECT p.*, o.broker_id, o.created_at, o.topic, o.logical_id, o.ordering_key, o.header, o.payload,
		sum(coalesce(octet_length(o.header) + octet_length(o.payload), 0)) OVER (ORDER BY p.id)
			- coalesce(octet_length(o.header) + octet_length(o.payload), 0) AS before
	FROM page p
	LEFT JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE p.sendable AND o.id = p.id OFFSET 0) o ON true
)
SELECT s.cur::text, coalesce((SELECT b.id::text FROM {{schema}}.outbox_boot b), ''), (SELECT upto FROM part),
	0::bigint AS id, NULL::bigint, 0, 0::smallint, NULL::float8, false, false, false, '', 'epoch'::timestamptz, '', '', '', NULL::bytea, NULL::bytea
FROM snap s
UNION ALL
SELECT '', '', NULL, f.id, f.key_hash, f.round, f.attempts, f.due_in, f.parked, f.skip, f.before >= $6::bigint,
	coalesce(f.broker_id::text, ''), coalesce(f.created_at, 'epoch'), coalesce(f.topic, ''), coalesce(f.logical_id, ''), coalesce(f.ordering_key, ''),
	CASE WHEN f.before < $6::bigint THEN f.header END, CASE WHEN f.before < $6::bigint THEN f.payload END
FROM filled f
ORDER BY id`

// readColumns are what a page holds of outbox_queue.
const readColumns = `q.id, q.key_hash, q.round, q.attempts, (q.parked_at IS NOT NULL) AS parked, (q.skip IS TRUE) AS skip,
		CASE WHEN q.due_at > clock_timestamp() THEN extract(epoch FROM q.due_at - clock_timestamp())::float8 END AS due_in,
		(q.parked_at IS NULL AND q.skip IS NOT TRUE AND (q.due_at IS NULL OR q.due_at <= clock_timestamp())) AS sendable`

// readWhere keeps a page to one generation: what the snapshot $3 shows and the
// snapshot $2 did not. A row that failed before is in whatever $3 shows: if it
// was driven again between two pages its xid is new, and those behind it in
// its key, which are in, must not overtake it. Rows of blocked keys ($7) stay
// out, but for the rows that block them ($8): those may have been driven again.
const readWhere = `
		((SELECT prev FROM snap) IS NULL OR NOT pg_visible_in_snapshot(q.xid, (SELECT prev FROM snap)))
		AND (q.reason IS NOT NULL OR pg_visible_in_snapshot(q.xid, (SELECT cur FROM snap)))
		AND ((q.key_hash = ANY($7::bigint[])) IS NOT TRUE OR q.id = ANY($8::bigint[]))`

// readSnap names the two snapshots. Without $3 the generation begins now: the
// statement's own snapshot is then its end.
const readSnap = `
WITH snap AS MATERIALIZED (
	SELECT nullif($2::text, '')::pg_snapshot AS prev,
		coalesce(nullif($3::text, '')::pg_snapshot, pg_current_snapshot()) AS cur
)`

// readByIDSQL reads a page of a generation in id order, after id $4, at most
// $5 rows. It looks at a part of the lane: from its first id on, $9 ids for
// each lane; if there are more rows beyond that part, it returns its last id. So
// a page costs the same in any backlog: without statistics, as in a queue that
// was empty when it was last analyzed, the planner sorts all rows that it is
// let. Index: outbox_queue_pkey.
const readByIDSQL = readSnap + `, first AS MATERIALIZED (
	SELECT min(id) AS id FROM {{schema}}.outbox_queue WHERE lane = $1::smallint AND id > $4::bigint
), part AS MATERIALIZED (
	SELECT f.id, CASE WHEN (SELECT min(q.id) FROM {{schema}}.outbox_queue q WHERE q.lane = $1::smallint AND q.id > f.upto) IS NOT NULL THEN f.upto END AS upto
	FROM (SELECT id, id + $9::bigint * (SELECT lanes FROM {{schema}}.outbox_settings) - 1 AS upto FROM first) f
), page AS MATERIALIZED (
	SELECT ` + readColumns + `
	FROM {{schema}}.outbox_queue q
	WHERE q.lane = $1::smallint AND q.id >= (SELECT id FROM part)
		AND q.id <= coalesce((SELECT upto FROM part), 9223372036854775807) AND` + readWhere + `
	ORDER BY q.lane, q.id
	LIMIT $5::int` + readTail

// readByXIDSQL reads the first page of a generation by what can be in it: rows
// of transactions that were running at $2, or began later. A transaction that
// has been writing for long costs one probe. Index: outbox_queue_xid_idx.
const readByXIDSQL = readSnap + `, part AS (
	SELECT NULL::bigint AS upto WHERE $9::bigint > 0
), candidate AS MATERIALIZED (
	SELECT * FROM {{schema}}.outbox_queue
	WHERE lane = $1::smallint AND xid >= (SELECT pg_snapshot_xmax(prev) FROM snap)
	UNION ALL
	SELECT * FROM {{schema}}.outbox_queue
	WHERE lane = $1::smallint AND xid = ANY(ARRAY(SELECT pg_snapshot_xip(prev) FROM snap))
), page AS MATERIALIZED (
	SELECT ` + readColumns + `
	FROM candidate q
	WHERE q.id > $4::bigint AND` + readWhere + `
	ORDER BY q.id
	LIMIT $5::int` + readTail

// adoptSQL gives rows from the future of this cluster (a dump of another one
// was restored) an xid of its present, so that snapshots can show them.
// Index: outbox_queue_xid_idx.
const adoptSQL = `
UPDATE {{schema}}.outbox_queue SET xid = pg_current_xact_id()
WHERE lane = $1::smallint AND xid >= pg_snapshot_xmax(pg_current_snapshot())`

// bootSQL names the time since the last crash of the database, if it has no
// name yet.
const bootSQL = `INSERT INTO {{schema}}.outbox_boot DEFAULT VALUES ON CONFLICT DO NOTHING`

// markSentSQL deletes queue rows of messages that were sent. It needs no
// fence, whoever sent them, and no waiting for the disk: a mark that a crash
// loses is a copy with the same broker id. A mark of an earlier round, which
// came late, leaves a row alone that was republished since: what was stored
// then may be lost. The rows are looked up one by one (OFFSET 0), whatever the
// statistics say: from id = ANY the planner makes a scan of the whole lane.
// Index: outbox_queue_pkey.
const markSentSQL = `
DELETE FROM {{schema}}.outbox_queue
WHERE lane = $1::smallint AND round = $3::int AND ctid = ANY(ARRAY(
		SELECT q.at FROM unnest($2::bigint[]) AS sent (id)
		CROSS JOIN LATERAL (SELECT ctid AS at FROM {{schema}}.outbox_queue WHERE lane = $1::smallint AND id = sent.id OFFSET 0) q))
	AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'`

// deleteSentSQL is markSentSQL that deletes the messages as well, those whose
// queue rows went. It says how many, as markSentSQL does. Index:
// outbox_queue_pkey, outbox_pkey.
const deleteSentSQL = `
WITH marked AS (` + markSentSQL + `
	RETURNING id
)
DELETE FROM {{schema}}.outbox WHERE ctid = ANY(ARRAY(
	SELECT o.at FROM marked
	CROSS JOIN LATERAL (SELECT ctid AS at FROM {{schema}}.outbox WHERE id = marked.id OFFSET 0) o))`

// markFailedSQL records failures, only while the lane's fence is ours: the
// share lock on the lane row makes a taker wait. It returns 1 if it was.
const markFailedSQL = `
WITH held AS MATERIALIZED (
	SELECT FROM {{schema}}.outbox_lane WHERE lane = $1::smallint AND fence = $2::bigint FOR SHARE
), failed AS (
	UPDATE {{schema}}.outbox_queue q SET
		attempts = least(q.attempts + f.charge, 32767),
		reason = f.reason,
		due_at = CASE WHEN NOT f.park THEN clock_timestamp() + f.delay * interval '1 microsecond' END,
		parked_at = CASE WHEN f.park THEN clock_timestamp() END
	FROM unnest($3::bigint[], $4::int[], $5::bigint[], $6::bool[], $7::text[]) AS f(id, charge, delay, park, reason)
	WHERE q.lane = $1::smallint AND q.id = f.id AND EXISTS (SELECT FROM held)
)
SELECT count(*) FROM held`

// beatSQL says that a relay can send, for $2 microseconds. It returns how many
// relays can, this one included, and how many lanes there are.
const beatSQL = `
WITH beat AS (
	INSERT INTO {{schema}}.outbox_relay (owner, expires_at)
	VALUES ($1::text, clock_timestamp() + $2::bigint * interval '1 microsecond')
	ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at
)
SELECT (SELECT count(*) FROM {{schema}}.outbox_relay WHERE owner <> $1::text AND expires_at > clock_timestamp()) + 1,
	(SELECT count(*) FROM {{schema}}.outbox_lane)`

// leaveSQL takes back what beatSQL said, and clears away relays long gone.
const leaveSQL = `
DELETE FROM {{schema}}.outbox_relay
WHERE owner = $1::text OR expires_at < clock_timestamp() - interval '1 day'`

// acquireSQL takes up to $3 lanes that nobody holds.
const acquireSQL = `
UPDATE {{schema}}.outbox_lane l
SET fence = fence + 1, owner = $1::text, expires_at = clock_timestamp() + $2::bigint * interval '1 microsecond'
FROM (
	SELECT lane FROM {{schema}}.outbox_lane WHERE expires_at <= clock_timestamp()
	ORDER BY lane LIMIT $3::int FOR UPDATE SKIP LOCKED
) free
WHERE l.lane = free.lane
RETURNING l.lane, l.fence`

// renewSQL renews the lanes $3 whose fence is still $4.
const renewSQL = `
UPDATE {{schema}}.outbox_lane l
SET expires_at = clock_timestamp() + $2::bigint * interval '1 microsecond'
FROM unnest($3::int[], $4::bigint[]) AS mine(lane, fence)
WHERE l.lane = mine.lane AND l.fence = mine.fence AND l.owner = $1::text
RETURNING l.lane`

// releaseSQL gives a lane back, if it is still ours.
const releaseSQL = `
UPDATE {{schema}}.outbox_lane SET owner = '', expires_at = '-infinity'
WHERE owner = $1::text AND lane = $2::smallint AND fence = $3::bigint`

const storeMaxPayloadSQL = `
UPDATE {{schema}}.outbox_settings SET max_payload = $1::int WHERE max_payload IS DISTINCT FROM $1::int`

// lockQueueSQL keeps writers out, until the transaction ends.
const lockQueueSQL = `LOCK TABLE {{schema}}.outbox_queue IN SHARE ROW EXCLUSIVE MODE`

const queueEmptySQL = `SELECT NOT EXISTS (SELECT FROM {{schema}}.outbox_queue)`

const setLanesSQL = `
WITH lane AS (
	INSERT INTO {{schema}}.outbox_lane (lane) SELECT generate_series(0, $1::int - 1) ON CONFLICT DO NOTHING
)
UPDATE {{schema}}.outbox_settings SET lanes = $1::smallint`

// lanesOf probes every lane for an id: outbox_queue_pkey starts with the lane.
const lanesOf = `lane = ANY(ARRAY(SELECT lane FROM {{schema}}.outbox_lane))`

// redriveSQL and skipSQL give rows a new xid, so that the relay which holds
// the lane reads them as if they were new. The reason stays, or is set: it
// tells such rows from those that no generation had yet (see readWhere).
const redriveSQL = `
UPDATE {{schema}}.outbox_queue
SET xid = pg_current_xact_id(), attempts = 0, due_at = NULL, parked_at = NULL, skip = NULL
WHERE ` + lanesOf + ` AND id = ANY($1::bigint[]) AND reason IS NOT NULL`

const skipSQL = `
UPDATE {{schema}}.outbox_queue
SET xid = pg_current_xact_id(), skip = true, due_at = NULL, parked_at = NULL, reason = coalesce(reason, 'given up by an operator')
WHERE ` + lanesOf + ` AND id = ANY($1::bigint[])`

// failingSQL lists rows that failed, parked ones first. It scans the queue.
const failingSQL = `
SELECT q.id, o.topic, o.logical_id, coalesce(o.ordering_key, ''), q.reason, q.attempts, o.created_at, q.parked_at, q.due_at
FROM {{schema}}.outbox_queue q JOIN {{schema}}.outbox o ON o.id = q.id
WHERE q.reason IS NOT NULL AND q.skip IS NOT TRUE AND (q.parked_at IS NOT NULL OR NOT $2::bool)
ORDER BY q.parked_at, q.id
LIMIT $1::int`

// backlogSQL scans the queue; the oldest row is found by its id.
const backlogSQL = `
SELECT count(*), count(q.parked_at),
	coalesce((SELECT extract(epoch FROM clock_timestamp() - o.created_at)::float8 FROM {{schema}}.outbox o
		WHERE o.id = min(q.id) FILTER (WHERE q.parked_at IS NULL)), 0)
FROM {{schema}}.outbox_queue q`

// republishStartSQL refuses a start ($1) before the horizon ($2 microseconds
// back): it returns no row then. Else it returns the round's number and the time.
const republishStartSQL = `
UPDATE {{schema}}.outbox_settings SET rounds = rounds + 1
WHERE $1::timestamptz >= clock_timestamp() - $2::bigint * interval '1 microsecond'
RETURNING rounds, clock_timestamp()`

// republishSQL queues messages again that were written in [$3, $4), looking at
// $2 ids after $1; those that are queued only get the round, so that a late
// mark of an earlier one does not take them away. It returns the last id looked
// at, 0 at the end of the table, and the number that was not queued before.
// With rounds it tells Purgers, in the same snapshot, that what they saw is no
// longer so. Locks: outbox_settings. Index: outbox_pkey.
const republishSQL = `
WITH told AS (
	UPDATE {{schema}}.outbox_settings SET rounds = rounds + 1
), seen AS MATERIALIZED (
	SELECT id, key_hash, created_at FROM {{schema}}.outbox WHERE id > $1::bigint ORDER BY id LIMIT $2::int
), queued AS (
	INSERT INTO {{schema}}.outbox_queue (lane, id, xid, key_hash, round)
	SELECT (coalesce(s.key_hash, s.id) & 9223372036854775807) % (SELECT lanes FROM {{schema}}.outbox_settings),
		s.id, pg_current_xact_id(), s.key_hash, $5::int
	FROM seen s
	WHERE s.created_at >= $3::timestamptz AND s.created_at < $4::timestamptz
	ORDER BY s.id
	ON CONFLICT (lane, id) DO UPDATE SET round = excluded.round
	RETURNING xmax = 0 AS fresh
)
SELECT coalesce((SELECT max(id) FROM seen), 0), (SELECT count(*) FILTER (WHERE fresh) FROM queued)`

// isQueued tells whether the message o is queued, by a probe of each lane:
// without OFFSET 0 the planner may scan the queue for every message. Index:
// outbox_queue_pkey.
const isQueued = `EXISTS (SELECT FROM {{schema}}.outbox_lane l
			CROSS JOIN LATERAL (SELECT FROM {{schema}}.outbox_queue q WHERE q.lane = l.lane AND q.id = o.id OFFSET 0) q)`

// lookSQL writes down which of the next $1 messages, behind those that were
// looked at before, are not queued: they were sent, or skipped. It returns how
// many it looked at, and the time. Of two Purgers that look at once one writes.
// Index: outbox_sent_pkey, outbox_pkey.
const lookSQL = `
WITH done AS (
	SELECT coalesce((SELECT last_id FROM {{schema}}.outbox_sent ORDER BY first_id DESC LIMIT 1), 0) AS id
), seen AS MATERIALIZED (
	SELECT o.id, ` + isQueued + ` AS queued
	FROM {{schema}}.outbox o WHERE o.id > (SELECT id FROM done) ORDER BY o.id LIMIT $1::int
), page AS (
	INSERT INTO {{schema}}.outbox_sent (first_id, last_id, seen_at, xid, rounds, ids)
	SELECT (SELECT id + 1 FROM done), max(id), clock_timestamp(), pg_current_xact_id(), (SELECT rounds FROM {{schema}}.outbox_settings),
		coalesce(range_agg(int8range(id, id, '[]')) FILTER (WHERE NOT queued), '{}')
	FROM seen HAVING count(*) > 0
	ON CONFLICT DO NOTHING
)
SELECT count(*), clock_timestamp() FROM seen`

// purgeSQL takes the page that was looked at longest ago, since $3 and $1
// microseconds or more before $2, deletes the messages that were sent then and are not queued now, and
// looks at the rest again. An empty page goes when all transactions ended that
// were open when it was looked at first, unless it is the last one, where
// lookSQL goes on. It returns when the page was looked at, NULL if there is
// none, for the next $3: index entries of pages that moved are behind it. And
// the number of messages deleted. Locks: the page, skipped if another Purger
// has it. Index: outbox_sent_seen_idx, outbox_pkey.
const purgeSQL = `
WITH page AS MATERIALIZED (
	SELECT * FROM {{schema}}.outbox_sent
	WHERE seen_at >= $3::timestamptz AND seen_at <= $2::timestamptz - $1::bigint * interval '1 microsecond'
	ORDER BY seen_at LIMIT 1 FOR UPDATE SKIP LOCKED
), message AS MATERIALIZED (
	SELECT o.id, o.queued, NOT o.queued AND p.ids @> o.id AND p.rounds = (SELECT rounds FROM {{schema}}.outbox_settings) AS over
	FROM page p CROSS JOIN LATERAL (
		SELECT o.id, ` + isQueued + ` AS queued FROM {{schema}}.outbox o WHERE o.id BETWEEN p.first_id AND p.last_id OFFSET 0
	) o
), gone AS (
	DELETE FROM {{schema}}.outbox o USING message m WHERE o.id = m.id AND m.over RETURNING 1
), empty AS MATERIALIZED (
	SELECT p.first_id FROM page p
	WHERE NOT EXISTS (SELECT FROM message WHERE NOT over) AND p.xid < pg_snapshot_xmin(pg_current_snapshot())
		AND EXISTS (SELECT FROM {{schema}}.outbox_sent s WHERE s.first_id > p.first_id)
), dropped AS (
	DELETE FROM {{schema}}.outbox_sent s USING empty e WHERE s.first_id = e.first_id
), again AS (
	UPDATE {{schema}}.outbox_sent s
	SET seen_at = clock_timestamp(), rounds = (SELECT rounds FROM {{schema}}.outbox_settings),
		ids = coalesce((SELECT range_agg(int8range(id, id, '[]')) FROM message WHERE NOT queued AND NOT over), '{}')
	FROM page p WHERE s.first_id = p.first_id AND NOT EXISTS (SELECT FROM empty)
)
SELECT (SELECT seen_at FROM page), (SELECT count(*) FROM gone)`

// statements are the constants above for one schema.
type statements struct {
	write, writeOne, boot, readByID, readByXID, adopt, markSent, markFailed string
	deleteSent                                                              string
	beat, leave, acquire, renew, release, storeMaxPayload                   string
	lockQueue, queueEmpty, setLanes, redrive, skip, failing                 string
	backlog, republishStart, republish, look, purge                         string
}

func expand(name schema.Name) statements {
	return statements{
		write: name.Expand(writeSQL), writeOne: name.Expand(writeOneSQL), boot: name.Expand(bootSQL), readByID: name.Expand(readByIDSQL), readByXID: name.Expand(readByXIDSQL),
		adopt: name.Expand(adoptSQL), markSent: name.Expand(markSentSQL), deleteSent: name.Expand(deleteSentSQL), markFailed: name.Expand(markFailedSQL),
		beat: name.Expand(beatSQL), leave: name.Expand(leaveSQL), acquire: name.Expand(acquireSQL),
		renew: name.Expand(renewSQL), release: name.Expand(releaseSQL), storeMaxPayload: name.Expand(storeMaxPayloadSQL),
		lockQueue: name.Expand(lockQueueSQL), queueEmpty: name.Expand(queueEmptySQL), setLanes: name.Expand(setLanesSQL),
		redrive: name.Expand(redriveSQL), skip: name.Expand(skipSQL), failing: name.Expand(failingSQL),
		backlog: name.Expand(backlogSQL), republishStart: name.Expand(republishStartSQL),
		republish: name.Expand(republishSQL), look: name.Expand(lookSQL), purge: name.Expand(purgeSQL),
	}
}
