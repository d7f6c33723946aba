//! One corruption after the other, each on a fresh copy: the check whose matter it is names it, and nothing but what follows.

use super::{Copies, differing, verified};
use millrace::verify::Check;
use millrace_tests::postgres::connect;
use std::collections::BTreeSet;

use Check::{
    Bookings, Causes, Consumed, DeadLetters, Emits, Ends, Gates, Identities, Leases, Log, Outbox,
    Outcomes, Parked, Positions, SendLog,
};

/// What is done, and who names it; first the one whose matter it is.
const CORRUPTIONS: &[(&str, &[Check])] = &[
    // A position runs ahead of the log.
    (
        "UPDATE positions SET next_offset = next_offset + 5
         WHERE (topic_no, partition) = (SELECT topic_no, partition FROM positions ORDER BY 1, 2 LIMIT 1)",
        &[Positions, Consumed],
    ),
    // Nobody fences a partition.
    ("DELETE FROM ownership WHERE partition = 0", &[Positions]),
    // The log begins behind a position.
    (
        "UPDATE log_bounds b SET first_offset = p.next_offset + 3 FROM positions p
         WHERE p.topic_no = b.topic_no AND p.partition = b.partition AND p.partition = 0",
        &[Positions, Log],
    ),
    // One outcome too many, of a kind that leaves no fact.
    (
        "UPDATE outcomes SET n = n + 1 WHERE (topic_no, partition, outcome, reason) = (
             SELECT topic_no, partition, outcome, reason FROM outcomes JOIN topics USING (topic_no)
             WHERE name = 'clicks' AND outcome = 1 LIMIT 1)",
        &[Consumed],
    ),
    // One too few.
    (
        "UPDATE outcomes SET n = n - 1 WHERE (topic_no, partition, outcome, reason) = (
             SELECT topic_no, partition, outcome, reason FROM outcomes JOIN topics USING (topic_no)
             WHERE name = 'clicks' AND outcome = 1 LIMIT 1)",
        &[Consumed],
    ),
    // Offsets were passed that nobody took.
    (
        "WITH p AS (SELECT topic_no, partition FROM positions JOIN topics USING (topic_no) WHERE name = 'clicks' AND partition = 0),
              o AS (UPDATE outcomes o SET n = n - 1 FROM p WHERE (o.topic_no, o.partition) = (p.topic_no, p.partition) AND o.outcome = 1)
         UPDATE positions x SET consumed = consumed - 1 FROM p WHERE (x.topic_no, x.partition) = (p.topic_no, p.partition)",
        &[Consumed],
    ),
    // A booking is counted as a repetition.
    (
        "UPDATE outcomes SET n = n + CASE outcome WHEN 0 THEN -1 ELSE 1 END
         WHERE reason = '' AND outcome IN (0, 1) AND partition = 0
           AND topic_no = (SELECT topic_no FROM topics WHERE name = 'postbacks')",
        &[Outcomes],
    ),
    // A fact of a record that was not consumed yet.
    (
        "UPDATE postback_log l SET record_id = encode(int4send(p.topic_no) || int4send(p.partition) || int8send(p.next_offset), 'hex')::uuid
         FROM positions p WHERE l.record_id = (
             SELECT record_id FROM postback_log x WHERE outcome = 3
               AND substring(uuid_send(x.record_id) for 8) = int4send(p.topic_no) || int4send(p.partition) LIMIT 1)",
        &[Outcomes],
    ),
    // A dead letter is a visit too.
    (
        "UPDATE visits v SET record_id = x.dead FROM (
             SELECT d.record_id AS dead, v.record_id AS visit FROM dead_letters d
             JOIN visits v ON substring(uuid_send(v.record_id) for 8) = substring(uuid_send(d.record_id) for 8)
             WHERE d.status <> 'replayed' AND v.workspace_id = 2 AND NOT v.direct LIMIT 1) x
         WHERE v.record_id = x.visit",
        &[Ends],
    ),
    // A click is charged twice.
    (
        "INSERT INTO clicks SELECT * FROM clicks c WHERE workspace_id = 2
           AND NOT EXISTS (SELECT FROM visits v WHERE v.record_id = c.record_id) LIMIT 1",
        &[Ends, Outcomes, Identities],
    ),
    // A visit, by two records.
    (
        "UPDATE visits v SET click_key = o.click_key, visit_id = o.visit_id, workspace_id = o.workspace_id, campaign_id = o.campaign_id
         FROM (SELECT * FROM visits WHERE workspace_id = 2 AND NOT direct ORDER BY record_id LIMIT 1) o
         WHERE v.record_id = (SELECT record_id FROM visits x WHERE workspace_id = 2 AND NOT direct
             AND NOT EXISTS (SELECT FROM conversions c WHERE c.visit_id = x.visit_id) ORDER BY record_id DESC LIMIT 1)",
        &[Identities],
    ),
    // An identity is free again.
    (
        "DELETE FROM conversion_keys WHERE conversion_id = (
             SELECT conversion_id FROM conversion_keys GROUP BY 1 HAVING count(*) = 1 LIMIT 1)",
        &[Identities],
    ),
    // An identity leads to another's conversion.
    (
        "UPDATE conversion_keys k SET conversion_id = o.conversion_id, accepted_at = o.accepted_at
         FROM (SELECT * FROM conversion_keys ORDER BY key DESC LIMIT 1) o
         WHERE k.key = (SELECT min(key::text)::uuid FROM conversion_keys)",
        &[Identities],
    ),
    // A provider's id is booked twice.
    (
        "UPDATE conversions c SET external_id = o.external_id FROM conversions o
         WHERE o.external_id IS NOT NULL AND o.conversion_id = (
                 SELECT a.conversion_id FROM conversions a JOIN conversions b USING (workspace_id, network_id)
                 WHERE a.external_id <> b.external_id ORDER BY a.conversion_id, b.conversion_id LIMIT 1)
           AND c.conversion_id = (
                 SELECT b.conversion_id FROM conversions a JOIN conversions b USING (workspace_id, network_id)
                 WHERE a.external_id <> b.external_id ORDER BY a.conversion_id, b.conversion_id LIMIT 1)",
        &[Identities],
    ),
    // A conversion is not as its last change left it.
    (
        "UPDATE conversions SET payout = payout + 1 WHERE conversion_id = (SELECT conversion_id FROM conversion_history LIMIT 1)",
        &[Bookings],
    ),
    // A conversion has no receipt.
    (
        "DELETE FROM postback_log WHERE record_id = (SELECT conversion_id FROM conversions c
             WHERE NOT EXISTS (SELECT FROM postback_log l WHERE l.record_id = c.conversion_id AND l.outcome = 2) LIMIT 1)",
        &[Bookings, Outcomes],
    ),
    // A conversion is gone.
    (
        "DELETE FROM conversions WHERE conversion_id = (SELECT conversion_id FROM conversions c
             WHERE NOT EXISTS (SELECT FROM conversion_history h WHERE h.conversion_id = c.conversion_id) LIMIT 1)",
        &[Bookings, Identities, Causes],
    ),
    // A change is gone.
    (
        "DELETE FROM conversion_history WHERE record_id = (SELECT record_id FROM conversion_history LIMIT 1)",
        &[Bookings, Causes],
    ),
    // A visit that a conversion is credited to is gone.
    (
        "UPDATE conversions SET visit_id = gen_random_uuid() WHERE conversion_id = (SELECT conversion_id FROM conversions LIMIT 1)",
        &[Bookings],
    ),
    // A postback waits no longer, and has no end.
    (
        "DELETE FROM parked WHERE record_id = (SELECT record_id FROM parked p WHERE kind = 'postback'
             AND NOT EXISTS (SELECT FROM dead_letters d WHERE d.record_id = p.record_id) LIMIT 1)",
        &[Parked, Outcomes],
    ),
    // A click waits for a visit that is there.
    (
        "UPDATE parked p SET click_key = v.click_key, workspace_id = v.workspace_id
         FROM (SELECT click_key, workspace_id FROM visits LIMIT 1) v
         WHERE p.record_id = (SELECT record_id FROM parked WHERE kind = 'click' LIMIT 1)",
        &[Parked],
    ),
    // A booked postback waits.
    (
        "UPDATE parked p SET record_id = x.booked FROM (
             SELECT c.conversion_id AS booked, p.record_id AS waits FROM parked p
             JOIN conversions c ON substring(uuid_send(c.conversion_id) for 8) = substring(uuid_send(p.record_id) for 8)
             WHERE p.kind = 'postback' AND NOT EXISTS (SELECT FROM dead_letters d WHERE d.record_id = p.record_id) LIMIT 1) x
         WHERE p.record_id = x.waits",
        &[Parked, Ends],
    ),
    // A letter names another record.
    (
        "UPDATE dead_letters SET \"offset\" = \"offset\" + 1 WHERE record_id = (SELECT record_id FROM dead_letters LIMIT 1)",
        &[DeadLetters],
    ),
    // A letter is gone.
    (
        "DELETE FROM dead_letters WHERE record_id = (
             SELECT record_id FROM dead_letters JOIN topics USING (topic_no)
             WHERE name = 'postbacks' AND status = 'open' AND reason = 'journey_unknown' LIMIT 1)",
        &[DeadLetters, Outcomes, Parked],
    ),
    // A letter is called replayed, and was not.
    (
        "UPDATE dead_letters SET status = 'replayed' WHERE record_id = (
             SELECT record_id FROM dead_letters JOIN topics USING (topic_no)
             WHERE name = 'postbacks' AND status = 'open' AND reason = 'journey_unknown' LIMIT 1)",
        &[DeadLetters, Outcomes, Parked],
    ),
    // An open message is never due.
    (
        "DELETE FROM outbox_due WHERE outbox_id = (SELECT outbox_id FROM outbox_due LIMIT 1)",
        &[Outbox],
    ),
    // One is due twice.
    (
        "INSERT INTO outbox_due SELECT * FROM outbox_due LIMIT 1",
        &[Outbox],
    ),
    // One that was sent is due again.
    (
        "INSERT INTO outbox_due (outbox_id, created_at, destination_no, due_at)
         SELECT outbox_id, created_at, destination_no, now() FROM outbox WHERE status = 'sent' LIMIT 1",
        &[Outbox],
    ),
    // A body is gone.
    (
        "DELETE FROM outbox WHERE outbox_id = (SELECT outbox_id FROM told_last)",
        &[Outbox, Causes],
    ),
    // Two messages have one id.
    (
        "INSERT INTO outbox SELECT * FROM outbox WHERE channel = 'stub' AND status = 'sent' LIMIT 1",
        &[Outbox],
    ),
    // A message is for nobody.
    (
        "UPDATE outbox SET destination_no = 99999
         WHERE outbox_id = (SELECT outbox_id FROM outbox WHERE channel = 'stub' AND status = 'sent' LIMIT 1)",
        &[Outbox],
    ),
    // A message was sent, and nothing says so.
    (
        "DELETE FROM send_log WHERE outbox_id = (SELECT outbox_id FROM outbox WHERE status = 'sent' LIMIT 1)",
        &[SendLog],
    ),
    // One that failed was delivered, by its log alone.
    (
        "UPDATE send_log SET result = 'delivered' WHERE outbox_id = (SELECT outbox_id FROM outbox WHERE status = 'failed' LIMIT 1)",
        &[SendLog],
    ),
    // A receiver that cannot tell got one twice.
    (
        "INSERT INTO send_log SELECT * FROM send_log WHERE channel = 'stub' AND result = 'delivered' LIMIT 1",
        &[SendLog],
    ),
    // A claim is on no record.
    (
        "UPDATE outbox_due SET lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour'
         WHERE outbox_id = (SELECT outbox_id FROM outbox_due LIMIT 1)",
        &[Leases],
    ),
    // A listener was not told.
    (
        "WITH gone AS (DELETE FROM outbox_due WHERE outbox_id = (
             SELECT outbox_id FROM told_last) RETURNING outbox_id)
         DELETE FROM outbox USING gone WHERE outbox.outbox_id = gone.outbox_id",
        &[Causes],
    ),
    // A message tells of nothing.
    (
        "UPDATE outbox SET cause = (SELECT record_id FROM dead_letters WHERE status = 'discarded' LIMIT 1)
         WHERE outbox_id = (SELECT outbox_id FROM outbox WHERE channel = 'webhook' LIMIT 1)",
        &[Causes],
    ),
    // One event under two ids.
    (
        "UPDATE outbox SET dedupe_key = 'pxe_one' WHERE outbox_id IN (
             SELECT outbox_id FROM outbox WHERE channel = 'stub' ORDER BY outbox_id LIMIT 2)",
        &[Causes],
    ),
    // A number was never given out.
    (
        "INSERT INTO emits SELECT 'attribution', 0, 7, min(topic_no), '', '{}' FROM topics",
        &[Emits],
    ),
    // A number was seen that was never given out.
    (
        "INSERT INTO emit_receipts (group_name, partition, topic_no, source_group, source_partition, last_seq)
         SELECT 'attribution', 0, min(topic_no), 'attribution', 1, 9 FROM topics",
        &[Emits],
    ),
    // Records are gone from the middle of the log.
    (
        "DELETE FROM log_chunks c USING (
             SELECT topic_no, partition, last_offset FROM log_chunks WHERE partition = 1 ORDER BY topic_no, last_offset OFFSET 1 LIMIT 1) x
         WHERE (c.topic_no, c.partition, c.last_offset) = (x.topic_no, x.partition, x.last_offset)",
        &[Log],
    ),
    // From its end.
    (
        "DELETE FROM log_chunks c USING (
             SELECT topic_no, partition, max(last_offset) AS last FROM log_chunks WHERE partition = 1 GROUP BY 1, 2 LIMIT 1) x
         WHERE (c.topic_no, c.partition, c.last_offset) = (x.topic_no, x.partition, x.last)",
        &[Log],
    ),
    // A head ran ahead.
    (
        "UPDATE log_heads SET next_offset = next_offset + 1 WHERE partition = 2",
        &[Log],
    ),
    // Somebody was told by a message that is not there.
    (
        "INSERT INTO sent_keys (key, outbox_id, sent_at) VALUES (gen_random_uuid(), gen_random_uuid(), now())",
        &[Gates],
    ),
    // Nothing keeps a message to a person from being sent again.
    (
        "UPDATE outbox SET rule_id = 'r', user_id = 'u' WHERE outbox_id = (SELECT min(outbox_id::text)::uuid FROM outbox)",
        &[Gates],
    ),
];

/// A message of the latest fact that somebody was told of: younger than its listener by more than the margin for clocks.
const TOLD_LAST: &str = "
CREATE VIEW told_last AS SELECT o.outbox_id FROM outbox o JOIN (
    SELECT record_id, accepted_at FROM visits UNION ALL SELECT record_id, accepted_at FROM clicks
) f ON f.record_id = o.cause
WHERE o.status = 'scheduled' AND o.channel = 'webhook' ORDER BY f.accepted_at DESC LIMIT 1";

pub(super) async fn all_are_named(copies: &Copies) {
    let mut own: BTreeSet<Check> = BTreeSet::new();
    for (sql, who) in CORRUPTIONS {
        let copy = copies.one().await;
        let client = connect(&copy).await;
        client.batch_execute(TOLD_LAST).await.unwrap();
        let n = client.execute(*sql, &[]).await;
        let n = n.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        assert!(n > 0, "nothing to corrupt: {sql}");
        let report = verified(&client).await.unwrap();
        let expected: BTreeSet<&str> = who.iter().map(|c| c.name()).collect();
        assert_eq!(differing(&report), expected, "{sql}\n{report}");
        own.extend(who.first().copied());
        drop(client);
        copies.remove(&copy).await;
    }
    let unproved: Vec<Check> = Check::ALL
        .into_iter()
        .filter(|c| !own.contains(c))
        .collect();
    assert!(unproved.is_empty(), "no corruption proves {unproved:?}");
}
