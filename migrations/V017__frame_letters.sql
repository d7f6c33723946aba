-- First the windows, then the dead letters, which the letters refer to: in the order in which a batch that runs meanwhile takes them.

-- The digest of `seen` as of a program that marks letters. An older one beside it writes `seen` alone: where they differ, it has
-- decided frames since, and of which keys those were is not known.
ALTER TABLE frame_windows ADD COLUMN marked uuid;

-- Frames of shards that were set aside and may come again: whether a later frame of a letter's key has been decided since, so that it
-- is known whether what the letter says of its key is still so. Written by the one owner of the partition, in the transaction that
-- buries the letter, overtakes it or decides it. It goes with its dead letter, which stands there at the end of that transaction.
CREATE TABLE frame_letters (
    record_id uuid PRIMARY KEY REFERENCES dead_letters ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    partition integer NOT NULL,
    workspace integer NOT NULL,
    shard     text NOT NULL,
    key       text NOT NULL,
    overtaken boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);
CREATE INDEX frame_letters_shard ON frame_letters (partition, workspace, shard);
