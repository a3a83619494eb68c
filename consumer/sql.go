package consumer

// setReadWrite must come before any other statement of its transaction.
const setReadWrite = `SET TRANSACTION READ WRITE`

// holdMessage keeps a message that is held; another delivery of a message
// that is kept already is counted. It raises synchronous_commit when it is
// off, as a claim does (a message without key makes none): the message must not
// be acked before a crash cannot lose it any more.
// Locks: the row it inserts or updates. Index: held_pkey.
const holdMessage = `INSERT INTO {{schema}}.held AS h (id, inbox_id, state, reason, error, attempts, seen, first_at, last_at,
    scope, operation, key, fingerprint_version, fingerprint, topic, message_uuid, metadata, header, payload,
    stream, sequence, published_at)
VALUES ($1::text::uuid, $2::text::uuid, $3::smallint, $4::text, $5::text, $6::integer, 1, clock_timestamp(), clock_timestamp(),
    $7::text, $8::text, $9::text, $10::integer, $11::bytea, $12::text, $13::bytea, $14::bytea, $15::bytea, $16::bytea,
    $17::text, $18::text::numeric, $19::timestamptz)
ON CONFLICT (id) DO UPDATE SET seen = h.seen + 1, last_at = clock_timestamp()
RETURNING CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END`
