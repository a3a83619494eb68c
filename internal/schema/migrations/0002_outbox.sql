-- Messages to send, written in the transaction of the effect. A message row
-- is not touched after it was written: what is still to send is a row of
-- outbox_queue, deleted on success.
CREATE TABLE {{schema}}.outbox (
    id           bigint      GENERATED ALWAYS AS IDENTITY,
    broker_id    uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    key_hash     bigint,
    topic        text        NOT NULL,
    logical_id   text        NOT NULL,
    ordering_key text,
    header       bytea       NOT NULL,
    payload      bytea       NOT NULL,
    CONSTRAINT outbox_pkey PRIMARY KEY (id),
    CONSTRAINT outbox_key_check CHECK ((key_hash IS NULL) = (ordering_key IS NULL))
);

COMMENT ON COLUMN {{schema}}.outbox.broker_id IS 'Nats-Msg-Id of the first round; later rounds derive theirs from it';
COMMENT ON COLUMN {{schema}}.outbox.logical_id IS 'Oncemill-Id: the intent and the step, the same on every copy';
COMMENT ON COLUMN {{schema}}.outbox.header IS 'headers to send, length-prefixed (internal/header)';

CREATE TABLE {{schema}}.outbox_queue (
    lane      smallint    NOT NULL,
    attempts  smallint    NOT NULL DEFAULT 0,
    round     integer     NOT NULL DEFAULT 0,
    id        bigint      NOT NULL,
    xid       xid8        NOT NULL,
    key_hash  bigint,
    due_at    timestamptz,
    parked_at timestamptz,
    skip      boolean,
    reason    text,
    CONSTRAINT outbox_queue_pkey PRIMARY KEY (lane, id),
    CONSTRAINT outbox_queue_size_check CHECK (lane >= 0),
    CONSTRAINT outbox_queue_attempts_check CHECK (attempts >= 0),
    CONSTRAINT outbox_queue_parked_check CHECK (parked_at IS NULL OR reason IS NOT NULL)
);

CREATE INDEX outbox_queue_xid_idx ON {{schema}}.outbox_queue (lane, xid);

COMMENT ON COLUMN {{schema}}.outbox_queue.lane IS 'a message over outbox_settings.max_payload gets lane -1, which outbox_queue_size_check refuses';
COMMENT ON COLUMN {{schema}}.outbox_queue.xid IS 'transaction that wrote the row: a read takes what the snapshot before it did not show';
COMMENT ON COLUMN {{schema}}.outbox_queue.round IS '0 for the first sending, then the number of the republish';
COMMENT ON COLUMN {{schema}}.outbox_queue.skip IS 'true: an operator gave it up, the relay deletes the row unsent';

-- One relay sends for a lane at a time; the fence counts its holders.
CREATE TABLE {{schema}}.outbox_lane (
    lane       smallint    NOT NULL,
    fence      bigint      NOT NULL DEFAULT 0,
    owner      text        NOT NULL DEFAULT '',
    expires_at timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT outbox_lane_pkey PRIMARY KEY (lane)
);

-- Relays that can send now: each takes its share of the lanes.
CREATE TABLE {{schema}}.outbox_relay (
    owner      text        NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT outbox_relay_pkey PRIMARY KEY (owner)
);

CREATE TABLE {{schema}}.outbox_settings (
    one         boolean  NOT NULL DEFAULT true,
    lanes       smallint NOT NULL,
    max_payload integer,
    rounds      integer  NOT NULL DEFAULT 0,
    CONSTRAINT outbox_settings_pkey PRIMARY KEY (one),
    CONSTRAINT outbox_settings_one_check CHECK (one),
    CONSTRAINT outbox_settings_lanes_check CHECK (lanes BETWEEN 1 AND 64)
);

COMMENT ON COLUMN {{schema}}.outbox_settings.max_payload IS 'largest message the broker takes, bytes of payload and headers, as a relay last saw it';
COMMENT ON COLUMN {{schema}}.outbox_settings.rounds IS 'grows with each republish, which sends under broker ids of its own, and with each of its batches';

-- PostgreSQL empties an unlogged table when it recovers from a crash, and on a
-- standby that is promoted. A row that is gone tells relays that transaction
-- ids may have been given out again, so that their snapshots say nothing.
CREATE UNLOGGED TABLE {{schema}}.outbox_boot (
    one boolean NOT NULL DEFAULT true,
    id  uuid    NOT NULL DEFAULT gen_random_uuid(),
    CONSTRAINT outbox_boot_pkey PRIMARY KEY (one),
    CONSTRAINT outbox_boot_one_check CHECK (one)
);

-- What a Purger saw sent, page by page: messages have no column for it, since
-- touching them costs more than all the rest of relaying.
CREATE TABLE {{schema}}.outbox_sent (
    first_id bigint         NOT NULL,
    last_id  bigint         NOT NULL,
    seen_at  timestamptz    NOT NULL,
    xid      xid8           NOT NULL,
    rounds   integer        NOT NULL,
    ids      int8multirange NOT NULL,
    CONSTRAINT outbox_sent_pkey PRIMARY KEY (first_id),
    CONSTRAINT outbox_sent_range_check CHECK (first_id <= last_id)
);

CREATE INDEX outbox_sent_seen_idx ON {{schema}}.outbox_sent (seen_at);

COMMENT ON COLUMN {{schema}}.outbox_sent.ids IS 'those from first_id to last_id that were there at seen_at and not queued';
COMMENT ON COLUMN {{schema}}.outbox_sent.xid IS 'transaction that looked first: one that was open then may still add messages to the page';
COMMENT ON COLUMN {{schema}}.outbox_sent.rounds IS 'outbox_settings.rounds at seen_at: after a republish the page says nothing';

INSERT INTO {{schema}}.outbox_settings (lanes) VALUES (4);
INSERT INTO {{schema}}.outbox_lane (lane) SELECT generate_series(0, 3);
