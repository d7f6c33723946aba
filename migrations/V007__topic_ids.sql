-- Which topic of its name it is: Kafka's own id. One that was deleted and made anew has another, and positions mean nothing in it.
-- Null: the log gives topics no ids, or nobody has asked yet.
ALTER TABLE topics ADD COLUMN topic_id text;
