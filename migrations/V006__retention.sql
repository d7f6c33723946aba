-- Retention drops whole days of fact tables. What was in a dropped day stays counted here, by the log's partition that the facts
-- came from, so that a recount knows what was dropped from what was lost.
CREATE TABLE dropped_facts (
    table_name text NOT NULL,
    day        date NOT NULL,
    -- Of the record that a row came from; 0 and 0 where a row has none (send_log).
    topic_no   integer NOT NULL,
    partition  integer NOT NULL,
    n          bigint NOT NULL,
    dropped_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (table_name, day, topic_no, partition)
);

-- The topic's number and the partition inside a record id (schemas: RecordId).
CREATE FUNCTION record_topic(id uuid) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $$ SELECT ('x' || substr(replace(id::text, '-', ''), 1, 8))::bit(32)::integer $$;
CREATE FUNCTION record_partition(id uuid) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $$ SELECT ('x' || substr(replace(id::text, '-', ''), 9, 8))::bit(32)::integer $$;
