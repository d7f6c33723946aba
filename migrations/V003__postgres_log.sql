-- The Postgres log: topics of one machine as tables.
--
-- A row of log_chunks holds many records of one partition, as a Kafka batch does: the store's work is a row, an index entry and
-- WAL for every 8 KiB, not for every record. No sequence gives offsets: an append locks the head rows of its partitions in
-- (topic, partition) order, moves them, inserts and commits; since the lock is held up to the commit, no reader can see a
-- higher offset before a lower one.

CREATE TABLE log_heads (
    topic_no    integer NOT NULL REFERENCES topics,
    partition   integer NOT NULL,
    next_offset bigint NOT NULL DEFAULT 0,
    -- Where appends of now go; moved by log_roll() for all heads at once.
    segment_no  integer NOT NULL,
    PRIMARY KEY (topic_no, partition)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Segments in the order of their numbers: dropped whole, the oldest first. The last one is a spare, attached well before it is
-- used: a statement that waits for a head must know the table into which it will write.
CREATE TABLE log_segments (
    segment_no integer PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    opened_at  timestamptz,
    closed_at  timestamptz
);

-- The first offset of each partition in each segment that is or was open.
CREATE TABLE log_bounds (
    segment_no   integer NOT NULL REFERENCES log_segments ON DELETE CASCADE,
    topic_no     integer NOT NULL,
    partition    integer NOT NULL,
    first_offset bigint NOT NULL,
    PRIMARY KEY (topic_no, partition, segment_no)
);

CREATE TABLE log_chunks (
    -- Offset of the chunk's last record; the first one's is last_offset - n + 1.
    last_offset bigint NOT NULL,
    segment_no  integer NOT NULL,
    topic_no    integer NOT NULL,
    partition   integer NOT NULL,
    n           integer NOT NULL,
    -- Byte 1 (the form), then for each record: lengths of key and payload (4 bytes each, little-endian), key, payload.
    records     bytea NOT NULL
) PARTITION BY LIST (segment_no);
ALTER TABLE log_chunks ALTER COLUMN records SET STORAGE EXTERNAL;

-- Makes a segment's table. Rows up to a page stay whole; nothing is vacuumed, as nothing is ever updated or deleted.
CREATE FUNCTION log_make_segment(number integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    child text := 'log_chunks_' || number;
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE log_chunks INCLUDING STORAGE)
        WITH (toast_tuple_target = 8160, autovacuum_enabled = false, toast.autovacuum_enabled = false)', child);
    EXECUTE format('CREATE UNIQUE INDEX %I ON %I (topic_no, partition, last_offset)', child || '_at', child);
    EXECUTE format('ALTER TABLE log_chunks ATTACH PARTITION %I FOR VALUES IN (%s)', child, number);
    INSERT INTO log_segments (segment_no) VALUES (number);
END $$;

-- Closes the open segment, opens the spare, makes the next spare; answers the number of the open one.
CREATE FUNCTION log_roll() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    spare integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('millrace log segments', 0));
    SELECT max(segment_no) INTO spare FROM log_segments;
    PERFORM log_make_segment(spare + 1);
    PERFORM 1 FROM log_heads ORDER BY topic_no, partition FOR UPDATE;
    INSERT INTO log_bounds (segment_no, topic_no, partition, first_offset)
        SELECT spare, topic_no, partition, next_offset FROM log_heads;
    UPDATE log_heads SET segment_no = spare;
    UPDATE log_segments SET closed_at = now() WHERE segment_no = spare - 1;
    UPDATE log_segments SET opened_at = now() WHERE segment_no = spare;
    RETURN spare;
END $$;

-- Gives a topic its partitions; does nothing to those that exist.
CREATE FUNCTION log_create_topic(number integer, partitions integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    open_segment integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('millrace log segments', 0));
    SELECT max(segment_no) INTO open_segment FROM log_segments WHERE opened_at IS NOT NULL;
    WITH made AS (
        INSERT INTO log_heads (topic_no, partition, segment_no)
            SELECT number, p, open_segment FROM generate_series(0, partitions - 1) AS p
            ON CONFLICT DO NOTHING
            RETURNING topic_no, partition)
    INSERT INTO log_bounds (segment_no, topic_no, partition, first_offset)
        SELECT open_segment, topic_no, partition, 0 FROM made;
END $$;

SELECT log_make_segment(1);
SELECT log_make_segment(2);
UPDATE log_segments SET opened_at = now() WHERE segment_no = 1;

-- Two topics of one group bring the numbers of one source in no common order: what a partition has seen is kept by topic.
ALTER TABLE emit_receipts ADD COLUMN topic_no integer NOT NULL;
ALTER TABLE emit_receipts DROP CONSTRAINT emit_receipts_pkey;
ALTER TABLE emit_receipts ADD PRIMARY KEY (group_name, partition, topic_no, source_group, source_partition);
