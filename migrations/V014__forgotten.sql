-- What is deleted by days although its table has none: what trackers remember of keys that have not changed for long, and
-- notifications that were read long ago. Both stay counted in `dropped_facts`, by the day that they were of.

-- Before the other: what takes long holds up the least.
CREATE INDEX user_notifications_read ON user_notifications (read_at) WHERE read_at IS NOT NULL;

-- The day (UTC) on which the value changed last; of rows from before this column, the day of the migration.
ALTER TABLE tracker_states ADD COLUMN changed_on date NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')::date;
