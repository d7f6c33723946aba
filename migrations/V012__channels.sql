-- Channels of notifications: the mail transport of a workspace, addresses that get no mail, in-app notifications, push endpoints.

-- How a workspace mails. One a workspace; off until it is configured and enabled.
CREATE TABLE mail_transports (
    workspace_id    integer PRIMARY KEY REFERENCES workspaces,
    -- `mt_…`: the destination's reference, what its password is sealed for.
    transport_id    text NOT NULL UNIQUE,
    enabled         boolean NOT NULL DEFAULT false,
    host            text NOT NULL,
    port            integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    -- `tls` from the first byte, `starttls` demanded before anything else, `none`.
    security        text NOT NULL CHECK (security IN ('tls', 'starttls', 'none')),
    username        text,
    password_sealed bytea,
    sender_name     text,
    sender_address  text NOT NULL,
    reply_to        text,
    -- What generic bodies show: the brand's name, its one accent colour, and where site-relative links lead.
    brand_name      text NOT NULL,
    brand_accent    text NOT NULL DEFAULT '#2f5d8a' CHECK (brand_accent ~ '^#[0-9a-f]{6}$'),
    site_url        text,
    -- Behind the @ of every Message-ID. Set once: a message that is tried again after the sender changed keeps its id.
    message_domain  text NOT NULL,
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    updated_by      text NOT NULL DEFAULT 'system'
);
CREATE TRIGGER destination AFTER INSERT ON mail_transports
    FOR EACH ROW EXECUTE FUNCTION make_destination('email', 'transport_id');

-- Addresses that get no mail but transactional one. By SHA-256 of the address as `users.email_folded` folds it, beside a mask for
-- people (`d***@example.com`); never swept, an operator may lift one by its id or by the address.
CREATE TABLE suppressions (
    suppression_id text NOT NULL UNIQUE,
    workspace_id   integer NOT NULL REFERENCES workspaces,
    address_hash   bytea NOT NULL CHECK (length(address_hash) = 32),
    address_masked text NOT NULL,
    reason         text NOT NULL CHECK (reason IN ('hard_bounce', 'complaint', 'manual')),
    -- For people: what the server said, redacted, or what the operator wrote.
    detail         text,
    -- Null: a server's refusal, not a person.
    created_by     text,
    -- The message whose refusal it was.
    outbox_id      uuid,
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, address_hash)
);
CREATE INDEX suppressions_listed ON suppressions (workspace_id, created_at, suppression_id);

-- The inbox of a user. One an event and user, however many rules tell of it.
CREATE TABLE user_notifications (
    notification_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id    integer NOT NULL,
    user_id         text NOT NULL,
    dedupe_key      text NOT NULL,
    -- The outbox row that it came from.
    outbox_id       uuid NOT NULL,
    trigger_id      text NOT NULL,
    scope           text NOT NULL DEFAULT '',
    title           text NOT NULL,
    body            text NOT NULL DEFAULT '',
    -- Site-relative: begins with one slash.
    url             text CHECK (url ~ '^/([^/\\]|$)'),
    created_at      timestamptz NOT NULL,
    read_at         timestamptz,
    UNIQUE (workspace_id, user_id, dedupe_key)
);

-- Endpoints of UnifiedPush and ntfy. Whoever holds one can wake the device: never shown whole but to its owner.
CREATE TABLE push_subscriptions (
    subscription_id text PRIMARY KEY,
    workspace_id    integer NOT NULL REFERENCES workspaces,
    user_id         text NOT NULL,
    endpoint        text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (workspace_id, user_id, endpoint)
);

-- The destination that a workspace's in-app notifications (`inapp`) or pushes (`push`) go through; made when first asked for, so
-- that a workspace without either has none.
CREATE FUNCTION notification_destination(workspace integer, channel_name text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE found integer;
BEGIN
    SELECT destination_no INTO found FROM destinations WHERE channel = channel_name AND ref = channel_name || ':' || workspace;
    IF found IS NULL THEN
        INSERT INTO destinations (workspace_id, channel, ref) VALUES (workspace, channel_name, channel_name || ':' || workspace)
        ON CONFLICT (channel, ref) DO UPDATE SET ref = excluded.ref RETURNING destination_no INTO found;
    END IF;
    RETURN found;
END $$;
