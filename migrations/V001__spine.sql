-- The spine: topics, ownership, positions, outcomes, dead letters, emits, and the ledger of attribution.
--
-- Rules of this folder: additive; facts are partitioned by day from here on, and what makes a key unique lives in an undated
-- table of narrow, fixed-width keys. A unique index costs the store more than everything else about a row, so facts that need
-- none have none: positions and the epoch make them exact.

-- The catalogue ------------------------------------------------------------------------------------------------------
CREATE TABLE topics (
    topic_no    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL,
    generation  integer NOT NULL,
    log_name    text NOT NULL UNIQUE,
    partitions  integer NOT NULL CHECK (partitions BETWEEN 1 AND 4096),
    -- The log's own id of the topic, where it has one: another id under the same name is another topic.
    log_id      text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    retired_at  timestamptz,
    UNIQUE (name, generation)
);
CREATE UNIQUE INDEX topics_live ON topics (name) WHERE retired_at IS NULL;

-- Who owns a partition of a group. The epoch is the fence: every batch's transaction locks this row under its own epoch.
CREATE TABLE ownership (
    group_name     text NOT NULL,
    partition      integer NOT NULL,
    epoch          bigint NOT NULL DEFAULT 0,
    owner          text NOT NULL DEFAULT '',
    claimed_at     timestamptz,
    -- Set: stopped, and why. `millrace positions set` and `millrace positions resume` clear it.
    stopped_reason text,
    stopped_at     timestamptz,
    PRIMARY KEY (group_name, partition)
) WITH (fillfactor = 50);

CREATE TABLE positions (
    group_name  text NOT NULL,
    partition   integer NOT NULL,
    topic_no    integer NOT NULL REFERENCES topics,
    next_offset bigint NOT NULL DEFAULT 0,
    -- The first position ever, from which outcomes are counted.
    first_offset bigint NOT NULL DEFAULT 0,
    -- Records consumed since then, replays apart: log offsets may have gaps.
    consumed    bigint NOT NULL DEFAULT 0,
    replayed    bigint NOT NULL DEFAULT 0,
    -- Greatest accepted_at so far, in microseconds.
    stream_time bigint NOT NULL DEFAULT 0,
    -- A number of the stream's own that only grows. Attribution: the greatest time (ms) inside any minted click id it has
    -- stored anything about, so that a later one is known to be new without asking.
    mark        bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (group_name, partition, topic_no)
) WITH (fillfactor = 50);

-- Why a position was moved by hand.
CREATE TABLE position_changes (
    changed_at  timestamptz NOT NULL DEFAULT now(),
    group_name  text NOT NULL,
    partition   integer NOT NULL,
    topic_no    integer NOT NULL,
    old_offset  bigint,
    new_offset  bigint NOT NULL,
    reason      text NOT NULL
);

-- Paused groups (an operator's switch; consumers look once a second).
CREATE TABLE paused_groups (
    group_name text PRIMARY KEY,
    paused_at  timestamptz NOT NULL DEFAULT now(),
    reason     text NOT NULL
);

-- Outcomes of records by the coordinates of their first acceptance. The sum over a partition is `positions.consumed`.
CREATE TABLE outcomes (
    group_name text NOT NULL,
    topic_no   integer NOT NULL,
    partition  integer NOT NULL,
    outcome    smallint NOT NULL,
    reason     text NOT NULL,
    n          bigint NOT NULL,
    PRIMARY KEY (group_name, topic_no, partition, outcome, reason)
) WITH (fillfactor = 50);

-- Records that could not be processed or waited too long; whole, so that they can be replayed.
CREATE TABLE dead_letters (
    record_id    uuid PRIMARY KEY,
    group_name   text NOT NULL,
    workspace_id integer,
    topic_no     integer NOT NULL,
    partition    integer NOT NULL,
    "offset"     bigint NOT NULL,
    key          bytea NOT NULL,
    payload      bytea NOT NULL,
    reason       text NOT NULL,
    detail       text,
    accepted_at  timestamptz,
    dead_at      timestamptz NOT NULL DEFAULT now(),
    deaths       integer NOT NULL DEFAULT 1,
    status       text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'replayed', 'discarded')),
    changed_at   timestamptz
);
CREATE INDEX dead_letters_open ON dead_letters (dead_at, record_id) WHERE status = 'open';

-- Records for other topics, born of a batch: frozen in its transaction, numbered per source, relayed in order, deleted once
-- the log has them.
CREATE TABLE emits (
    group_name       text NOT NULL,
    source_partition integer NOT NULL,
    seq              bigint NOT NULL,
    topic_no         integer NOT NULL,
    key              bytea NOT NULL,
    payload          bytea NOT NULL,
    PRIMARY KEY (group_name, source_partition, seq)
);

-- The next number of each source; moved in the emitting transaction.
CREATE TABLE emit_heads (
    group_name       text NOT NULL,
    source_partition integer NOT NULL,
    next_seq         bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (group_name, source_partition)
);

-- The greatest number a receiving partition has seen of each source; moved in the receiving transaction.
CREATE TABLE emit_receipts (
    group_name       text NOT NULL,
    partition        integer NOT NULL,
    source_group     text NOT NULL,
    source_partition integer NOT NULL,
    last_seq         bigint NOT NULL,
    PRIMARY KEY (group_name, partition, source_group, source_partition)
);

-- Daily partitions ---------------------------------------------------------------------------------------------------
-- Makes the partitions of a fact table for the days [from, to]. Advisory-locked by the caller's transaction. Made apart and
-- attached: CREATE … PARTITION OF would lock the parent against every writer, ATTACH lets batches go on.
CREATE FUNCTION make_daily_partitions(parent text, first_day date, last_day date) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    d date := first_day;
    made integer := 0;
    child text;
BEGIN
    WHILE d <= last_day LOOP
        child := parent || '_' || to_char(d, 'YYYYMMDD');
        IF to_regclass(child) IS NULL THEN
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING STORAGE)',
                child, parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child,
                to_char(d, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(d + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
            made := made + 1;
        END IF;
        d := d + 1;
    END LOOP;
    RETURN made;
END $$;

-- The ledger ---------------------------------------------------------------------------------------------------------
-- click_id is null where click_key is the minted id itself: its text follows from the 16 bytes.
CREATE TABLE visits (
    workspace_id integer NOT NULL,
    click_key    uuid NOT NULL,
    visit_id     uuid NOT NULL,
    record_id    uuid NOT NULL,
    accepted_at  timestamptz NOT NULL,
    occurred_at  timestamptz,
    stage        smallint NOT NULL,
    direct       boolean NOT NULL,
    click_id     text,
    campaign_id  text NOT NULL,
    offer_id     text,
    ip           text,
    ip_hash      uuid,
    user_agent   text,
    source_url   text,
    fbp          text,
    fbc          text,
    params       json,
    journey      json
) PARTITION BY RANGE (accepted_at);
CREATE INDEX visits_click ON visits (click_key, workspace_id);

CREATE TABLE clicks (
    workspace_id integer NOT NULL,
    click_key    uuid NOT NULL,
    record_id    uuid NOT NULL,
    accepted_at  timestamptz NOT NULL,
    occurred_at  timestamptz,
    stage        smallint NOT NULL,
    click_id     text,
    campaign_id  text NOT NULL,
    offer_id     text
) PARTITION BY RANGE (accepted_at);
CREATE INDEX clicks_click ON clicks (click_key, workspace_id);

CREATE TABLE conversions (
    workspace_id    integer NOT NULL,
    -- The record id of the postback that booked it.
    conversion_id   uuid NOT NULL,
    click_key       uuid NOT NULL,
    accepted_at     timestamptz NOT NULL,
    occurred_at     timestamptz,
    booked_at       timestamptz NOT NULL,
    click_id        text,
    campaign_id     text NOT NULL,
    visit_id        uuid NOT NULL,
    offer_id        text NOT NULL,
    role            text NOT NULL,
    network_id      text NOT NULL,
    external_id     text,
    txid            text,
    event           text,
    provider_event  text,
    returned_offer  text,
    payout          numeric(38, 10) NOT NULL,
    currency        text NOT NULL,
    status          text NOT NULL CHECK (status IN ('approved', 'pending', 'rejected')),
    status_at       timestamptz NOT NULL,
    email_hash      text,
    phone_hash      text,
    lead_hash       text,
    flags           text NOT NULL DEFAULT '',
    PRIMARY KEY (conversion_id, accepted_at)
) PARTITION BY RANGE (accepted_at);
CREATE INDEX conversions_click ON conversions (click_key, workspace_id);
CREATE INDEX conversions_listed ON conversions (workspace_id, accepted_at, conversion_id);

-- Identities of conversions, unique across all partitions: a 16-byte digest of the encoded key. Undated, never dropped with
-- the facts.
CREATE TABLE conversion_keys (
    key           uuid PRIMARY KEY,
    conversion_id uuid NOT NULL,
    accepted_at   timestamptz NOT NULL
);

-- Every change of a booked conversion.
CREATE TABLE conversion_history (
    workspace_id  integer NOT NULL,
    conversion_id uuid NOT NULL,
    changed_at    timestamptz NOT NULL,
    record_id     uuid NOT NULL,
    old_status    text NOT NULL,
    new_status    text NOT NULL,
    old_payout    numeric(38, 10) NOT NULL,
    new_payout    numeric(38, 10) NOT NULL
);
CREATE INDEX conversion_history_of ON conversion_history (conversion_id);

-- Every postback: one row at its receipt, one more when a parked one ends. `query` is as sent, without the secret.
CREATE TABLE postback_log (
    workspace_id  integer NOT NULL,
    record_id     uuid NOT NULL,
    accepted_at   timestamptz NOT NULL,
    decided_at    timestamptz NOT NULL,
    click_key     uuid,
    conversion_id uuid,
    outcome       smallint NOT NULL,
    reason        text NOT NULL,
    network_id    text NOT NULL,
    query         text
) PARTITION BY RANGE (accepted_at);
CREATE INDEX postback_log_click ON postback_log (click_key, workspace_id);

-- Visits and clicks that can never be booked; postbacks stand in postback_log.
CREATE TABLE rejects (
    workspace_id integer NOT NULL,
    record_id    uuid NOT NULL,
    accepted_at  timestamptz NOT NULL,
    kind         text NOT NULL,
    reason       text NOT NULL,
    click_id     text,
    payload      bytea NOT NULL
) PARTITION BY RANGE (accepted_at);
CREATE INDEX rejects_listed ON rejects (workspace_id, accepted_at, record_id);

-- Records that wait for their visit. Keyed by click, not by partition: `hash % partitions` finds a partition's rows whatever
-- the partition count becomes.
CREATE TABLE parked (
    workspace_id integer NOT NULL,
    click_key    uuid NOT NULL,
    record_id    uuid NOT NULL,
    hash         integer NOT NULL,
    accepted_at  timestamptz NOT NULL,
    deadline     timestamptz NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('postback', 'click')),
    click_id     text NOT NULL,
    payload      bytea NOT NULL
);
CREATE INDEX parked_click ON parked (click_key, workspace_id);
CREATE INDEX parked_due ON parked (deadline);

-- Provider clicks: correlation only, one per (click, network, monetization offer).
CREATE TABLE provider_clicks (
    workspace_id     integer NOT NULL,
    click_key        uuid NOT NULL,
    network_id       text NOT NULL,
    offer_id         text NOT NULL,
    record_id        uuid NOT NULL,
    accepted_at      timestamptz NOT NULL,
    provider_txid    text,
    PRIMARY KEY (workspace_id, click_key, network_id, offer_id)
);
