-- The directory: users, their links to accounts in games, preferences, segments, rules.
--
-- Facts of the directory have two writers: the topic `directory` (keyed by user, so a user's records are in order) and the
-- admin API. The newer one wins, by (changed_at, changed_topic, changed_offset): the acceptance, then the place in the log. A
-- write of the API is stamped later than what it overwrites.

-- Mail goes to verified addresses alone unless a workspace says otherwise.
ALTER TABLE workspaces ADD COLUMN verified_email_only boolean NOT NULL DEFAULT true;

CREATE TABLE users (
    workspace_id   integer NOT NULL REFERENCES workspaces,
    -- Opaque, of whoever keeps the accounts; unique in its workspace.
    user_id        text NOT NULL,
    name           text,
    email          text,
    -- Folds case and nothing else: `É` is `é`, `é` is not `e`. Folded here, so that no writer can get round it; compared byte by
    -- byte.
    email_folded   text COLLATE "C" GENERATED ALWAYS AS (lower(email COLLATE "und-x-icu")) STORED,
    email_verified boolean NOT NULL DEFAULT false,
    -- Only the active are ever told anything.
    status         text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled', 'deleted')),
    -- admin, editor, moderator are the staff.
    role           text NOT NULL DEFAULT 'user' CHECK (role IN ('admin', 'editor', 'moderator', 'user')),
    -- An IANA zone; none: UTC.
    zone           text,
    last_login     timestamptz,
    changed_at     timestamptz NOT NULL,
    changed_topic  integer NOT NULL DEFAULT 0,
    changed_offset bigint NOT NULL DEFAULT 0,
    version        bigint NOT NULL DEFAULT 1,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    updated_by     text NOT NULL DEFAULT 'directory',
    PRIMARY KEY (workspace_id, user_id)
);
CREATE UNIQUE INDEX users_email ON users (workspace_id, email_folded);
CREATE INDEX users_listed ON users (workspace_id, created_at, user_id);
-- The audiences `staff` and `admin`.
CREATE INDEX users_staff ON users (workspace_id, role) WHERE role <> 'user';

-- An account of a game on one shard, and a user: a row a pair, never deleted. The account is the user's whose link is the
-- newest of all, unless that user unlinked it later; the rows of all others, and of one unlinked, are tombstones, which still
-- say whom to tell. No foreign key: a link may come before its user.
CREATE TABLE links (
    workspace_id integer NOT NULL REFERENCES workspaces,
    module       text NOT NULL,
    shard        text NOT NULL,
    account      text NOT NULL,
    user_id      text NOT NULL,
    -- Of the pair's newest link and newest unlink, each with its place in the log (as users.changed_*).
    linked_at       timestamptz,
    linked_topic    integer NOT NULL DEFAULT 0,
    linked_offset   bigint NOT NULL DEFAULT 0,
    unlinked_at     timestamptz,
    unlinked_topic  integer NOT NULL DEFAULT 0,
    unlinked_offset bigint NOT NULL DEFAULT 0,
    -- Whether the account is this user's now.
    live         boolean NOT NULL DEFAULT false,
    -- For the admin API: `ln_` and a digest of all that makes the pair.
    link_id      text NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    updated_by   text NOT NULL DEFAULT 'directory',
    PRIMARY KEY (workspace_id, module, shard, account, user_id)
);
CREATE UNIQUE INDEX links_live ON links (workspace_id, module, shard, account) WHERE live;
CREATE INDEX links_of_user ON links (workspace_id, user_id);

-- Sparse: a row where a user has said something. An explicit `off` is kept.
CREATE TABLE preferences (
    workspace_id   integer NOT NULL REFERENCES workspaces,
    user_id        text NOT NULL,
    -- A stream's or trigger's id; '' for every one of them.
    stream_id      text NOT NULL,
    channel        text NOT NULL,
    -- The scope of a firing; '' for every one of them.
    scope          text NOT NULL DEFAULT '',
    mode           text NOT NULL CHECK (mode IN ('off', 'instant', 'digest')),
    changed_at     timestamptz NOT NULL,
    changed_topic  integer NOT NULL DEFAULT 0,
    changed_offset bigint NOT NULL DEFAULT 0,
    updated_by     text NOT NULL DEFAULT 'directory',
    PRIMARY KEY (workspace_id, user_id, stream_id, channel, scope)
);
-- The audience `subscribers` of a trigger.
CREATE INDEX preferences_on ON preferences (workspace_id, stream_id, user_id) WHERE mode <> 'off';

-- A saved audience: {"audience", "params"} or {"op": "and"|"or"|"not", "nodes": [...]}.
CREATE TABLE segments (
    segment_id   text PRIMARY KEY,
    workspace_id integer NOT NULL REFERENCES workspaces,
    name         text NOT NULL,
    expression   jsonb NOT NULL,
    -- Derived when saved: the narrowest that the expression contains. Whoever resolves it derives it again.
    ceiling      text NOT NULL,
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    updated_by   text NOT NULL DEFAULT 'system',
    UNIQUE (workspace_id, segment_id)
);
CREATE INDEX segments_listed ON segments (workspace_id, created_at, segment_id);

-- What an operator configures: trigger → conditions → audience → channels. A rule's order is its position.
CREATE TABLE rules (
    rule_id       text PRIMARY KEY,
    workspace_id  integer NOT NULL REFERENCES workspaces,
    -- Never changes: cooldowns, pending messages and the send log are about one trigger.
    trigger_id    text NOT NULL,
    name          text NOT NULL,
    -- Written by the switch alone, which checks nothing: what can no longer be saved can still be stopped.
    enabled       boolean NOT NULL DEFAULT false,
    channels      text[] NOT NULL,
    -- {"var", "cmp", "value"} or {"op": "and"|"or"|"not", "nodes": [...]}; null: always.
    conditions    jsonb,
    -- `owner`, `subscribers`, … (null: the trigger's own), or a segment.
    audience      text,
    segment_id    text,
    delay_s       bigint NOT NULL DEFAULT 0 CHECK (delay_s >= 0),
    cooldown_s    bigint NOT NULL DEFAULT 0 CHECK (cooldown_s >= 0),
    hourly_cap    integer NOT NULL DEFAULT 100 CHECK (hourly_cap >= 0),
    cancel_on     text[] NOT NULL DEFAULT '{}',
    -- By channel, and `digest`.
    template_keys jsonb NOT NULL DEFAULT '{}',
    position      bigint GENERATED ALWAYS AS IDENTITY,
    -- The module's group it was seeded from.
    seeded_from   text,
    version       bigint NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    updated_by    text NOT NULL DEFAULT 'system',
    FOREIGN KEY (workspace_id, segment_id) REFERENCES segments (workspace_id, segment_id),
    CHECK (audience IS NULL OR segment_id IS NULL)
);
CREATE INDEX rules_of_trigger ON rules (workspace_id, trigger_id, position);
CREATE INDEX rules_listed ON rules (workspace_id, created_at, rule_id);
CREATE INDEX rules_of_segment ON rules (workspace_id, segment_id) WHERE segment_id IS NOT NULL;
-- Gate 0: rules that a trigger calls off.
CREATE INDEX rules_cancelled_by ON rules USING gin (cancel_on);

-- Rule groups that were seeded into a workspace, claimed before their rules are inserted: a rule that an operator deleted does
-- not come back.
CREATE TABLE seeded_rule_groups (
    workspace_id integer NOT NULL REFERENCES workspaces,
    group_id     text NOT NULL,
    seeded_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, group_id)
);

-- Records that were rejected: the last of each kind by user, and how many. Bounded by users; without an address.
CREATE TABLE directory_rejects (
    workspace_id integer NOT NULL,
    user_id      text NOT NULL,
    change       text NOT NULL,
    reason       text NOT NULL,
    n            bigint NOT NULL,
    last_at      timestamptz NOT NULL,
    record_id    uuid NOT NULL,
    PRIMARY KEY (workspace_id, user_id, change, reason)
);
