-- Ids of suppressions stand in paths, and so in logs. Those of before were cut out of the hash of the address; those of now say
-- nothing of it.
UPDATE suppressions SET suppression_id = 'sp_' || replace(gen_random_uuid()::text, '-', '');
