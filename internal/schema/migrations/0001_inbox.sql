-- The inbox: one row per intent whose whole effect is in this database. The
-- claim inserts it in the transaction of the effect, so a visible row is
-- either done or held.
CREATE TABLE {{schema}}.inbox (
    id                  uuid        NOT NULL,
    state               smallint    NOT NULL,
    fingerprint_version integer     NOT NULL,
    at                  timestamptz NOT NULL,
    fingerprint         bytea       NOT NULL,
    scope               text        NOT NULL,
    operation           text        NOT NULL,
    result              bytea,
    CONSTRAINT inbox_pkey PRIMARY KEY (id),
    CONSTRAINT inbox_state_check CHECK (state IN (1, 2, 3)),
    CONSTRAINT inbox_fingerprint_check CHECK (octet_length(fingerprint) = 32)
);

COMMENT ON COLUMN {{schema}}.inbox.id IS 'pure function of (scope, operation, id): time-first for ids that carry their time, else a digest';
COMMENT ON COLUMN {{schema}}.inbox.state IS '1 done, 2 held: parked, 3 held: dead';
COMMENT ON COLUMN {{schema}}.inbox.at IS 'later of the event''s own time and the claim; retention counts from here';

-- Per operation, the time before which done rows may have been purged: an
-- event that is older and has no row is refused, not run again.
CREATE TABLE {{schema}}.horizon (
    operation text        NOT NULL,
    floor     timestamptz NOT NULL,
    CONSTRAINT horizon_pkey PRIMARY KEY (operation)
);

-- Held messages with their exact bytes. One row per (intent), per (intent,
-- fingerprint) for a conflict, per broker position and content for a message
-- without key.
CREATE TABLE {{schema}}.held (
    id                  uuid        NOT NULL,
    inbox_id            uuid,
    state               smallint    NOT NULL,
    reason              text        NOT NULL,
    error               text        NOT NULL,
    attempts            integer     NOT NULL,
    seen                bigint      NOT NULL,
    first_at            timestamptz NOT NULL,
    last_at             timestamptz NOT NULL,
    scope               text,
    operation           text        NOT NULL,
    key                 text,
    fingerprint_version integer,
    fingerprint         bytea,
    topic               text        NOT NULL,
    message_uuid        bytea       NOT NULL,
    metadata            bytea       NOT NULL,
    header              bytea,
    payload             bytea       NOT NULL,
    ordering_key        text,
    stream              text,
    sequence            numeric(20),
    published_at        timestamptz,
    CONSTRAINT held_pkey PRIMARY KEY (id),
    CONSTRAINT held_state_check CHECK (state IN (2, 3)),
    CONSTRAINT held_seen_check CHECK (seen > 0)
);

COMMENT ON COLUMN {{schema}}.held.inbox_id IS 'the held inbox row; null for a conflict and for a message without key';
COMMENT ON COLUMN {{schema}}.held.seen IS 'deliveries that ended in this entry';
COMMENT ON COLUMN {{schema}}.held.metadata IS 'message metadata, length-prefixed (internal/header)';
COMMENT ON COLUMN {{schema}}.held.header IS 'raw broker headers of a message that could not be decoded, length-prefixed';

CREATE INDEX held_inbox_id_idx ON {{schema}}.held (inbox_id) WHERE inbox_id IS NOT NULL;
CREATE INDEX held_first_at_idx ON {{schema}}.held (first_at);
