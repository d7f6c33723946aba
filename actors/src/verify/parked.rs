//! What waits, waits for a reason; what waited has ended. (That nothing waits and has ended too is [`super::ends`]'.)

use super::report::{Checked, Kind};
use super::snapshot::{Snapshot, at};
use crate::postgres::types::Tz;
use tokio_postgres::Error;

const NO_RECEIPT: &str = "
SELECT record_id FROM parked p
WHERE kind = 'postback' AND accepted_at >= $1
  AND NOT EXISTS (SELECT FROM postback_log l WHERE l.record_id = p.record_id AND l.outcome = 2)";

/// Waited, by its receipt; and neither ended, nor waits, nor is a dead letter.
const GONE: &str = "
SELECT l.record_id FROM (
    SELECT record_id FROM postback_log WHERE accepted_at >= $1 AND outcome <> 4
    GROUP BY record_id HAVING bool_or(outcome = 2) AND NOT bool_or(outcome <> 2)
) l
WHERE NOT EXISTS (SELECT FROM parked p WHERE p.record_id = l.record_id)
  AND NOT EXISTS (SELECT FROM dead_letters d WHERE d.record_id = l.record_id AND d.status <> 'replayed')";

const BOOKED: &str = "
SELECT p.record_id FROM parked p JOIN conversions c ON c.conversion_id = p.record_id";

/// A click follows its visit at once; a postback only one whose journey credits its network.
const ASLEEP: &str = "
SELECT DISTINCT p.record_id FROM parked p JOIN visits v ON v.click_key = p.click_key AND v.workspace_id = p.workspace_id
WHERE p.kind = 'click'";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    let from = s.kept.from(&["postback_log"]);
    found.rows += s.rows(&["parked", "postback_log"]).await?;
    s.each(NO_RECEIPT, &[&from], |row| {
        let what = "the postback waits, and no receipt says so";
        found.add(Kind::Wrong, at(row.get(0)), what);
    })
    .await?;
    s.each(GONE, &[&from], |row| {
        let what = "the postback was parked; it waits no longer, and has no end";
        found.add(Kind::Lost, at(row.get(0)), what);
    })
    .await?;
    s.each(BOOKED, &[], |row| {
        let what = "the postback is booked and waits still";
        found.add(Kind::Doubled, at(row.get(0)), what);
    })
    .await?;
    s.each(ASLEEP, &[], |row| {
        let what = "the click waits for its visit, which is there";
        found.add(Kind::Wrong, at(row.get(0)), what);
    })
    .await?;
    let waits = s
        .query("SELECT count(*), min(deadline) FROM parked", &[])
        .await?;
    if let Some(row) = waits.first()
        && let (n, Some(first)) = (row.get::<_, i64>(0), row.get::<_, Option<Tz>>(1))
    {
        found.note(format!("{n} records wait, the first until {}", first.0));
    }
    Ok(())
}
