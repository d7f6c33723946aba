//! Dead letters are what receipts and replays say. (That none is booked too is [`super::ends`]'.)

use super::report::{Checked, Kind};
use super::snapshot::{Snapshot, at};
use tokio_postgres::Error;

const MISPLACED: &str = "
SELECT record_id, format('%s-%s-%s', topic_no, partition, \"offset\") FROM dead_letters
WHERE record_id <> encode(int4send(topic_no) || int4send(partition) || int8send(\"offset\"), 'hex')::uuid";

const NO_LETTER: &str = "
SELECT DISTINCT l.record_id FROM postback_log l
WHERE l.outcome = 4 AND l.accepted_at >= $1 AND NOT EXISTS (SELECT FROM dead_letters d WHERE d.record_id = l.record_id)";

/// What waited in vain has a receipt of that; what could not be processed has none.
const NO_RECEIPT: &str = "
SELECT d.record_id FROM dead_letters d JOIN topics t USING (topic_no)
WHERE d.group_name = 'attribution' AND t.name = 'postbacks' AND d.status <> 'replayed' AND d.reason = 'journey_unknown' AND d.accepted_at >= $1
  AND NOT EXISTS (SELECT FROM postback_log l WHERE l.record_id = d.record_id AND l.outcome = 4)";

/// A replayed visit or click may have been a repetition, which leaves nothing; a postback leaves a receipt in any case.
const NO_END: &str = "
SELECT d.record_id FROM dead_letters d JOIN topics t USING (topic_no)
WHERE d.group_name = 'attribution' AND t.name = 'postbacks' AND d.status = 'replayed' AND d.accepted_at >= $1
  AND NOT EXISTS (SELECT FROM postback_log l WHERE l.record_id = d.record_id AND l.outcome IN (0, 1, 3))
  AND NOT EXISTS (SELECT FROM parked p WHERE p.record_id = d.record_id)";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    let from = s.kept.from(&["postback_log"]);
    found.rows += s.rows(&["dead_letters", "postback_log"]).await?;
    s.each(MISPLACED, &[], |row| {
        let named: String = row.get(1);
        let what = format!("the letter says that its record is {named}");
        found.add(Kind::Wrong, at(row.get(0)), what);
    })
    .await?;
    s.each(NO_LETTER, &[&from], |row| {
        let what = "the receipt says that it is a dead letter, and there is none";
        found.add(Kind::Lost, at(row.get(0)), what);
    })
    .await?;
    s.each(NO_RECEIPT, &[&from], |row| {
        let what = "the letter waited in vain, and no receipt says so";
        found.add(Kind::Wrong, at(row.get(0)), what);
    })
    .await?;
    s.each(NO_END, &[&from], |row| {
        let what = "the letter was replayed, and has no new end";
        found.add(Kind::Lost, at(row.get(0)), what);
    })
    .await?;
    let open = s
        .query(
            "SELECT count(*) FROM dead_letters WHERE status = 'open'",
            &[],
        )
        .await?;
    let open: i64 = open.first().map_or(0, |r| r.get(0));
    if open > 0 {
        found.note(format!("{open} are open; `millrace dlq list` shows them"));
    }
    Ok(())
}
