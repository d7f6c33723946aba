-- Delivery: destinations, the outbox, what of it is due, the send log; pixels and webhooks.
--
-- Two tables carry a message. `outbox` has its body and its end, in daily partitions that are dropped, not deleted from.
-- `outbox_due` is narrow and holds only what is still to be sent: one index, by destination first, so that one dead destination
-- never fills the head that all others are claimed from. Neither has a unique key: rows are born in a batch's transaction, whose
-- fence and positions make them exact, and an id is a digest of its cause.

-- Whoever a message goes to: a pixel, a webhook, later a mailbox or a template. A destination's number is never reused.
CREATE TABLE destinations (
    destination_no integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id   integer NOT NULL REFERENCES workspaces,
    channel        text NOT NULL,
    -- The id of what it stands for: `px_…`, `wh_…`.
    ref            text NOT NULL,
    -- Paused: nothing is claimed for it, nothing of it ends. `code` is a name from a closed list, `reason` is for people.
    paused_code    text,
    paused_reason  text,
    paused_by      text,
    paused_at      timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (channel, ref)
);
CREATE INDEX destinations_of ON destinations (workspace_id, destination_no);

-- Channels an operator has paused; `*` holds everything (`millrace up --after-restore`).
CREATE TABLE paused_channels (
    channel   text PRIMARY KEY,
    reason    text NOT NULL,
    paused_by text NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE outbox (
    -- Time-ordered: 48 bits of milliseconds, then a digest of what caused it.
    outbox_id      uuid NOT NULL,
    created_at     timestamptz NOT NULL,
    workspace_id   integer NOT NULL,
    channel        text NOT NULL,
    destination_no integer NOT NULL,
    -- Whom it is about, what it may be cancelled by, what makes a second one the same.
    subject_key    text,
    scope_key      text,
    dedupe_key     text,
    -- Frozen.
    payload        json NOT NULL,
    -- The record it was born of (topic, partition, offset).
    cause          uuid NOT NULL,
    status         text NOT NULL DEFAULT 'scheduled' CHECK (status IN
        ('scheduled', 'sent', 'failed', 'cancelled', 'suppressed', 'bounced', 'unknown')),
    status_reason  text,
    attempts       smallint NOT NULL DEFAULT 0,
    ended_at       timestamptz
) PARTITION BY RANGE (created_at);
CREATE INDEX outbox_id ON outbox (outbox_id);

CREATE TABLE outbox_due (
    outbox_id      uuid NOT NULL,
    created_at     timestamptz NOT NULL,
    destination_no integer NOT NULL,
    due_at         timestamptz NOT NULL,
    attempts       smallint NOT NULL DEFAULT 0,
    -- Claimed: nobody else sends it before this moment of the database's clock, and only the token's holder ends it.
    lease_until    timestamptz,
    lease_token    uuid,
    -- When it was first sent without an answer, or left to an expired lease: it may have arrived.
    unsure_since   timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000);
CREATE INDEX outbox_due_next ON outbox_due (destination_no, due_at, outbox_id);

-- One row an attempt, and one for each end without one. Never a contact or a secret: `target` is masked, `excerpt` redacted.
CREATE TABLE send_log (
    sent_at        timestamptz NOT NULL,
    outbox_id      uuid NOT NULL,
    workspace_id   integer NOT NULL,
    channel        text NOT NULL,
    destination_no integer NOT NULL,
    attempt        smallint NOT NULL,
    result         text NOT NULL,
    code           text,
    duration_ms    integer,
    target         text,
    excerpt        text
) PARTITION BY RANGE (sent_at);
CREATE INDEX send_log_of ON send_log (outbox_id);

CREATE TABLE pixels (
    pixel_id            text PRIMARY KEY,
    workspace_id        integer NOT NULL REFERENCES workspaces,
    name                text NOT NULL,
    platform            text NOT NULL DEFAULT 'meta' CHECK (platform IN ('meta')),
    -- The provider's id; opaque, leading zeros kept.
    dataset_id          text NOT NULL,
    event_name          text NOT NULL DEFAULT 'Purchase',
    currency            text,
    action_source       text NOT NULL DEFAULT 'website',
    -- {"options": ["LDU"], "country": 1, "state": 1000}; null: nothing is said.
    data_processing     jsonb,
    test_event_code     text,
    access_token_sealed bytea,
    app_secret_sealed   bytea,
    status              text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived')),
    version             bigint NOT NULL DEFAULT 1,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    updated_by          text NOT NULL DEFAULT 'system'
);
CREATE INDEX pixels_listed ON pixels (workspace_id, created_at, pixel_id);

CREATE TABLE webhooks (
    webhook_id             text PRIMARY KEY,
    workspace_id           integer NOT NULL REFERENCES workspaces,
    name                   text NOT NULL,
    url                    text NOT NULL,
    events                 text[] NOT NULL,
    secret_sealed          bytea,
    -- The secret before the last rotation signs beside the new one until then.
    previous_secret_sealed bytea,
    previous_until         timestamptz,
    -- Since when every delivery failed; five days of it disable the endpoint.
    failing_since          timestamptz,
    status                 text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled', 'archived')),
    disabled_reason        text,
    version                bigint NOT NULL DEFAULT 1,
    created_at             timestamptz NOT NULL DEFAULT now(),
    updated_at             timestamptz NOT NULL DEFAULT now(),
    updated_by             text NOT NULL DEFAULT 'system'
);
CREATE INDEX webhooks_listed ON webhooks (workspace_id, created_at, webhook_id);

-- Whatever can be sent to has its destination from its first moment.
CREATE FUNCTION make_destination() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO destinations (workspace_id, channel, ref)
    VALUES (NEW.workspace_id, TG_ARGV[0], to_jsonb(NEW) ->> TG_ARGV[1]) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER destination AFTER INSERT ON pixels
    FOR EACH ROW EXECUTE FUNCTION make_destination('meta', 'pixel_id');
CREATE TRIGGER destination AFTER INSERT ON webhooks
    FOR EACH ROW EXECUTE FUNCTION make_destination('webhook', 'webhook_id');

CREATE TRIGGER configuration_changed AFTER INSERT OR UPDATE OR DELETE ON pixels
    FOR EACH STATEMENT EXECUTE FUNCTION bump_configuration_epoch();
-- A webhook's `failing_since` moves with every failure: that is no configuration.
CREATE TRIGGER configuration_changed AFTER INSERT OR DELETE OR UPDATE OF url, events, status ON webhooks
    FOR EACH STATEMENT EXECUTE FUNCTION bump_configuration_epoch();

-- One row a claim, so that expired leases are found without looking at what is not leased. Kept until they have expired.
CREATE TABLE outbox_leases (
    lease_token    uuid NOT NULL,
    destination_no integer NOT NULL,
    lease_until    timestamptz NOT NULL,
    due_from       timestamptz NOT NULL,
    due_to         timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX outbox_leases_until ON outbox_leases (lease_until);
