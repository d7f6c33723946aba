-- Of a push that is tried again: what each device answered so far, by subscription id, `true` where it took it, `false` where it
-- refused for good. Null, as of nearly all messages, until an attempt ends with some devices settled and others not.
ALTER TABLE outbox ADD COLUMN answered jsonb;
