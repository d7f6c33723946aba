-- The admin API: keys of the deployment, and indexes that its lists need.

-- Random keys made once by the deployment itself; none opens a provider's secret.
CREATE TABLE deployment_keys (
    purpose    text PRIMARY KEY,
    bytes      bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Lists by time look back window by window; facts come in the order of time, so that block ranges find a window at next to no
-- cost for the writer.
CREATE INDEX visits_when ON visits USING brin (accepted_at) WITH (pages_per_range = 32);
CREATE INDEX clicks_when ON clicks USING brin (accepted_at) WITH (pages_per_range = 32);
CREATE INDEX postback_log_when ON postback_log USING brin (accepted_at) WITH (pages_per_range = 32);

CREATE INDEX networks_listed ON networks (workspace_id, created_at, network_id);
CREATE INDEX offers_listed ON offers (workspace_id, created_at, offer_id);
