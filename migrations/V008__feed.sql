-- The sidecar feed: shards, their feed tokens, where each feed stands, and frames counted by kind.

-- A shard's id is chosen by its operator and never reused in its workspace; it is part of keys in the log.
CREATE TABLE shards (
    shard_id     text NOT NULL CHECK (shard_id ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    workspace_id integer NOT NULL REFERENCES workspaces,
    name         text NOT NULL,
    -- The module whose frames it sends.
    module       text NOT NULL,
    -- The frames' protocol number that the feed takes; another one is refused with both numbers.
    protocol     integer NOT NULL CHECK (protocol BETWEEN 1 AND 1000000),
    status       text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived')),
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    updated_by   text NOT NULL DEFAULT 'system',
    PRIMARY KEY (workspace_id, shard_id)
);
CREATE INDEX shards_listed ON shards (workspace_id, created_at, shard_id);

-- Feed tokens: `ft_` and 12 characters base-32, then a secret of which the SHA-256 alone is kept.
CREATE TABLE shard_tokens (
    token_id        text PRIMARY KEY,
    workspace_id    integer NOT NULL,
    shard_id        text NOT NULL,
    name            text NOT NULL,
    secret_digest   bytea NOT NULL,
    -- The secret before the last rotation, still good until `previous_until`.
    previous_digest bytea,
    previous_until  timestamptz,
    revoked_at      timestamptz,
    created_by      text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    updated_by      text NOT NULL DEFAULT 'system',
    version         bigint NOT NULL DEFAULT 1,
    FOREIGN KEY (workspace_id, shard_id) REFERENCES shards
);
CREATE INDEX shard_tokens_listed ON shard_tokens (workspace_id, shard_id, created_at, token_id);

-- The doors hold both as configuration.
CREATE TRIGGER configuration_changed AFTER INSERT OR UPDATE OR DELETE ON shards
    FOR EACH STATEMENT EXECUTE FUNCTION bump_configuration_epoch();
CREATE TRIGGER configuration_changed AFTER INSERT OR UPDATE OR DELETE ON shard_tokens
    FOR EACH STATEMENT EXECUTE FUNCTION bump_configuration_epoch();

-- Where a shard's feed stands. `seq`: everything up to it is in the log. It is written behind the acknowledgements (once a
-- second and at the end of a feed), so that a crash makes a sidecar replay some more than it must, which is harmless.
-- `session` rises with each hello: a feed that meets another number has been taken over.
CREATE TABLE shard_feeds (
    workspace_id integer NOT NULL,
    shard_id     text NOT NULL,
    session      bigint NOT NULL,
    boot         text NOT NULL,
    seq          bigint NOT NULL,
    connected    boolean NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, shard_id),
    FOREIGN KEY (workspace_id, shard_id) REFERENCES shards
) WITH (fillfactor = 50);

-- Frames by kind: those that a module maps went to the log, the others were kept for nothing. Kinds are a sender's words: at
-- most 200 a shard, the rest is counted under ''.
CREATE TABLE shard_frames (
    workspace_id integer NOT NULL,
    shard_id     text NOT NULL,
    kind         text NOT NULL,
    mapped       bigint NOT NULL DEFAULT 0,
    unmapped     bigint NOT NULL DEFAULT 0,
    refused      bigint NOT NULL DEFAULT 0,
    last_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, shard_id, kind),
    FOREIGN KEY (workspace_id, shard_id) REFERENCES shards
) WITH (fillfactor = 50);
