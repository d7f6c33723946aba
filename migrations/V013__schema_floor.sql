-- What a program must know to run on this schema. Migrations add, and an older program goes on beside a newer one; the one that
-- takes something away writes its own version here, and older programs refuse to start.
CREATE TABLE schema_floor (version integer NOT NULL);
INSERT INTO schema_floor (version) VALUES (13);
