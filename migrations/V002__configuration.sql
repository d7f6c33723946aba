-- Configuration: workspaces, networks, offers, campaigns, API keys. Small tables, read whole by the doors; every write bumps
-- configuration_epoch, so that a door knows within its second.

CREATE TABLE configuration_epoch (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL DEFAULT 1
);
INSERT INTO configuration_epoch DEFAULT VALUES;

CREATE FUNCTION bump_configuration_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE configuration_epoch SET epoch = epoch + 1;
    RETURN NULL;
END $$;

-- A workspace's number is never reused, nor is its slug.
CREATE TABLE workspaces (
    workspace_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slug         text NOT NULL UNIQUE CHECK (slug ~ '^[a-z][a-z0-9-]{1,39}$'),
    name         text NOT NULL,
    status       text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived')),
    -- Whether visits keep the client's address beside its hash.
    store_ip     boolean NOT NULL DEFAULT false,
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    updated_by   text NOT NULL DEFAULT 'system'
);

CREATE TABLE networks (
    network_id      text PRIMARY KEY,
    workspace_id    integer NOT NULL REFERENCES workspaces,
    name            text NOT NULL,
    -- SHA-256 of the postback secret, for the doors; the sealed copy is for showing the callback URL again.
    secret_digest   bytea NOT NULL UNIQUE,
    secret_sealed   bytea,
    status_words    jsonb NOT NULL DEFAULT '{}',
    comma_decimals  boolean NOT NULL DEFAULT false,
    currency_signs  boolean NOT NULL DEFAULT false,
    reversals       boolean NOT NULL DEFAULT false,
    status          text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived')),
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    updated_by      text NOT NULL DEFAULT 'system',
    UNIQUE (workspace_id, network_id)
);

CREATE TABLE offers (
    offer_id     text PRIMARY KEY,
    workspace_id integer NOT NULL REFERENCES workspaces,
    name         text NOT NULL,
    -- `{click_id}`, `{ref}`, `{link_id}` and captured parameters are filled, percent-encoded.
    url_template text NOT NULL,
    network_id   text,
    payout       numeric(38, 10),
    currency     text NOT NULL DEFAULT 'USD',
    status       text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived')),
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    updated_by   text NOT NULL DEFAULT 'system',
    FOREIGN KEY (workspace_id, network_id) REFERENCES networks (workspace_id, network_id)
);

-- A campaign's id is its public slug, unique in the deployment. Until routing graphs exist, `routing` is
-- {"offers": [{"offer", "weight"}], "sidecar_offers": [{"offer", "network", "network_offer_id"}], "pixels": [...]}.
CREATE TABLE campaigns (
    campaign_id  text PRIMARY KEY,
    workspace_id integer NOT NULL REFERENCES workspaces,
    name         text NOT NULL,
    ref          text,
    routing      jsonb NOT NULL,
    status       text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'archived')),
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    updated_by   text NOT NULL DEFAULT 'system'
);
CREATE INDEX campaigns_listed ON campaigns (workspace_id, created_at, campaign_id);

CREATE TABLE api_keys (
    -- `rk_` and 12 characters base-32; the secret's SHA-256 beside it.
    key_id        text PRIMARY KEY,
    workspace_id  integer REFERENCES workspaces,
    name          text NOT NULL,
    secret_digest bytea NOT NULL,
    -- The secret before the last rotation, still good until `previous_until`.
    previous_digest bytea,
    previous_until  timestamptz,
    -- As given: the word `full` stays a word and is expanded at each request.
    scopes        text[] NOT NULL,
    cidrs         text[] NOT NULL DEFAULT '{}',
    expires_at    timestamptz,
    revoked_at    timestamptz,
    last_used_at  timestamptz,
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    updated_by    text NOT NULL DEFAULT 'system',
    version       bigint NOT NULL DEFAULT 1
);
CREATE INDEX api_keys_listed ON api_keys (workspace_id, created_at, key_id);

-- Answers of POSTs by idempotency key, kept 24 h, written in the effect's own transaction.
CREATE TABLE idempotency_keys (
    actor       text NOT NULL,
    operation   text NOT NULL,
    key         text NOT NULL,
    body_digest bytea NOT NULL,
    status      smallint NOT NULL,
    -- The stored answer, without its secret.
    answer      jsonb NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (actor, operation, key)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

CREATE TRIGGER configuration_changed AFTER INSERT OR UPDATE OR DELETE ON workspaces
    FOR EACH STATEMENT EXECUTE FUNCTION bump_configuration_epoch();
CREATE TRIGGER configuration_changed AFTER INSERT OR UPDATE OR DELETE ON networks
    FOR EACH STATEMENT EXECUTE FUNCTION bump_configuration_epoch();
CREATE TRIGGER configuration_changed AFTER INSERT OR UPDATE OR DELETE ON offers
    FOR EACH STATEMENT EXECUTE FUNCTION bump_configuration_epoch();
CREATE TRIGGER configuration_changed AFTER INSERT OR UPDATE OR DELETE ON campaigns
    FOR EACH STATEMENT EXECUTE FUNCTION bump_configuration_epoch();
