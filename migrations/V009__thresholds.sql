-- Thresholds: what trackers remember, how far each shard's feed was decided, and who stands on which roster. All of it is written in
-- the transaction of the batch that brought it about, by the one owner of the partition.

-- What a tracker saw last: keyed by key, not by partition, so that it survives a change of the partition count. The key of the index
-- is a 16-byte digest of the five columns behind it; they stand there for people.
CREATE TABLE tracker_states (
    id        uuid PRIMARY KEY,
    workspace integer NOT NULL,
    module    text NOT NULL,
    shard     text NOT NULL,
    mapping   text NOT NULL,
    key       text NOT NULL,
    -- The value last seen, as JSON; a long one as `#` and its digest.
    memory    text NOT NULL
) WITH (fillfactor = 80);

-- Which frames of each shard a partition has decided (schemas: ReplayWindow), so that a replay changes nothing.
CREATE TABLE frame_windows (
    partition integer NOT NULL,
    workspace integer NOT NULL,
    shard     text NOT NULL,
    seen      bytea NOT NULL,
    PRIMARY KEY (partition, workspace, shard)
) WITH (fillfactor = 50);

-- Rosters: game accounts by module, roster, shard and parameter (a guild's id; '' where the roster has none). `slot` is what a frame
-- that changes the roster names: the account itself, or the seat that it holds (a city), which one account has at a time.
CREATE TABLE roster_members (
    workspace integer NOT NULL,
    module    text NOT NULL,
    roster    text NOT NULL,
    shard     text NOT NULL,
    param     text NOT NULL,
    slot      text NOT NULL,
    account   text NOT NULL,
    PRIMARY KEY (workspace, module, roster, shard, param, slot)
);

-- Firings that broke their trigger's declaration: how many, and the last of each kind, for whoever wrote the mapping. Bounded by
-- triggers and reasons, whatever the frames say. By partition, so that no two owners ever wait for each other.
CREATE TABLE firing_rejects (
    partition integer NOT NULL,
    workspace integer NOT NULL,
    trigger   text NOT NULL,
    reason    text NOT NULL,
    variable  text NOT NULL,
    n         bigint NOT NULL,
    last_at   timestamptz NOT NULL,
    last_id   text NOT NULL,
    PRIMARY KEY (partition, workspace, trigger, reason, variable)
) WITH (fillfactor = 50);
