-- The gates of engagement: what has fired, why somebody was not told, and what keeps them from being told twice.
--
-- Keys are 16-byte digests in narrow, undated tables (one index each): they are written for every message, and PostgreSQL's CPU is
-- what there is least of. Positions of firings are record ids (topic number, partition, offset) as uuid: of two of one subject the
-- later one is greater.

-- What has fired, by the day it was accepted: digests read it, `rules explain` reads it, and a withdrawn one is in no digest.
CREATE TABLE firings (
    firing_pos   uuid NOT NULL,
    accepted_at  timestamptz NOT NULL,
    workspace_id integer NOT NULL,
    firing_id    text NOT NULL,
    trigger_id   text NOT NULL,
    module       text NOT NULL,
    shard        text NOT NULL,
    subject      text NOT NULL,
    scope        text NOT NULL,
    dedupe       text NOT NULL,
    owner        text,
    recipients   text[],
    vars         json NOT NULL,
    at           timestamptz NOT NULL,
    -- How many users it was passed on for.
    notices      integer NOT NULL,
    withdrawn_at timestamptz,
    withdrawn_by text
) PARTITION BY RANGE (accepted_at);
CREATE INDEX firings_id ON firings (firing_id);

-- What gates 1 to 4 said of a firing, by rule. `gate` 0: it passed, for `reached` users.
CREATE TABLE firing_rules (
    firing_pos   uuid NOT NULL,
    accepted_at  timestamptz NOT NULL,
    rule_id      text NOT NULL,
    rule_version bigint NOT NULL,
    gate         smallint NOT NULL,
    reason       text NOT NULL,
    reached      integer NOT NULL,
    -- The audience had more than is ever reached.
    capped       boolean NOT NULL
) PARTITION BY RANGE (accepted_at);
CREATE INDEX firing_rules_of ON firing_rules (firing_pos);

-- What gates 5 to 8 refused, by the day of the refusal. Bounded: kept for days, and so many a batch.
CREATE TABLE refusals (
    firing_pos   uuid NOT NULL,
    refused_at   timestamptz NOT NULL,
    user_id      text NOT NULL,
    rule_id      text NOT NULL,
    channel      text NOT NULL,
    gate         smallint NOT NULL,
    reason       text NOT NULL
) PARTITION BY RANGE (refused_at);
CREATE INDEX refusals_of ON refusals (firing_pos);

-- Gate 0. Key: workspace, rule, shard, subject. What a rule wants told because of an older firing is called off.
CREATE TABLE cancel_marks (
    key        uuid PRIMARY KEY,
    firing_pos uuid NOT NULL,
    marked_at  timestamptz NOT NULL
) WITH (fillfactor = 80);

-- Gate 6. Key: workspace, rule. 61 counters, one a minute of the wall clock, the first of them of `minute` (since 1970), the next of
-- the minute before: every rolling hour lies within them.
CREATE TABLE rule_hours (
    key    uuid PRIMARY KEY,
    minute integer NOT NULL,
    counts integer[] NOT NULL
) WITH (fillfactor = 50);

-- Gate 7. Key: workspace, rule, user, shard, subject, channel. Stream time.
CREATE TABLE cooldowns (
    key      uuid PRIMARY KEY,
    fired_at timestamptz NOT NULL
) WITH (fillfactor = 80);

-- Gate 8. Key: workspace, rule, user, channel, dedupe key.
CREATE TABLE sent_keys (
    key       uuid PRIMARY KEY,
    outbox_id uuid NOT NULL,
    sent_at   timestamptz NOT NULL
);

-- A message to a person. `cancel_key` is the key of its mark.
ALTER TABLE outbox ADD COLUMN firing_pos uuid, ADD COLUMN cancel_key uuid, ADD COLUMN rule_id text, ADD COLUMN user_id text;
-- The message that must have ended before this one is claimed: of the same transaction, so of the same `created_at`.
ALTER TABLE outbox_due ADD COLUMN after uuid;
