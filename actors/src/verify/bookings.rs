//! Conversions, their receipts in the postback log and their history tell one story.

use super::report::{Checked, Kind};
use super::snapshot::{Snapshot, at};
use tokio_postgres::Error;
use uuid::Uuid;

/// A conversion's id is the record of the postback that booked it; both rows lie on its day.
const BOOKED: &str = "
SELECT coalesce(c.conversion_id, l.record_id), c.conversion_id IS NULL
FROM (SELECT conversion_id FROM conversions WHERE accepted_at >= $1) c
FULL JOIN (SELECT record_id FROM postback_log WHERE outcome = 0 AND reason = '' AND accepted_at >= $1) l
    ON l.record_id = c.conversion_id
WHERE c.conversion_id IS NULL OR l.record_id IS NULL";

const MOVED: &str = "
SELECT coalesce(h.record_id, l.record_id), h.record_id IS NULL
FROM conversion_history h
FULL JOIN (SELECT record_id FROM postback_log WHERE outcome = 0 AND reason = 'status_changed' AND accepted_at >= $1) l
    ON l.record_id = h.record_id
WHERE h.record_id IS NULL OR l.record_id IS NULL";

/// The change that no other follows says how the conversion stands. A status moves forward alone: pending, approved, rejected.
const STANDS: &str = "
SELECT c.conversion_id, c.status || ', ' || trim_scale(c.payout), h.new_status || ', ' || trim_scale(h.new_payout)
FROM conversion_history h JOIN conversions c ON c.conversion_id = h.conversion_id
WHERE NOT EXISTS (SELECT FROM conversion_history n WHERE n.conversion_id = h.conversion_id AND n.old_status = h.new_status)
  AND (c.status <> h.new_status OR c.payout <> h.new_payout) AND c.accepted_at >= $1";

const MOVED_TWICE: &str = "
SELECT conversion_id, old_status, count(*) FROM conversion_history GROUP BY 1, 2 HAVING count(*) > 1";

const OF_NOTHING: &str = "
SELECT h.conversion_id, h.record_id FROM conversion_history h
WHERE NOT EXISTS (SELECT FROM conversions c WHERE c.conversion_id = h.conversion_id)";

const VISITLESS: &str = "
SELECT c.conversion_id FROM conversions c
WHERE NOT EXISTS (SELECT FROM visits v WHERE v.workspace_id = c.workspace_id AND v.click_key = c.click_key
                  AND v.visit_id = c.visit_id AND v.campaign_id = c.campaign_id)";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    let kept = &s.kept;
    found.rows += s
        .rows(&["conversions", "postback_log", "conversion_history"])
        .await?;
    let both = kept.from(&["conversions", "postback_log"]);
    s.each(BOOKED, &[&both], |row| {
        let (record, unbooked): (Uuid, bool) = (row.get(0), row.get(1));
        match unbooked {
            true => found.add(
                Kind::Lost,
                at(record),
                "the receipt says that it booked a conversion, which is not there",
            ),
            false => found.add(
                Kind::Wrong,
                at(record),
                "the conversion has no receipt that booked it",
            ),
        }
    })
    .await?;
    let all_receipts = kept.whole(&["postback_log"]);
    s.each(MOVED, &[&kept.from(&["postback_log"])], |row| {
        let (record, no_change): (Uuid, bool) = (row.get(0), row.get(1));
        if no_change {
            let what = "the receipt says that it moved a status, and no history has it";
            found.add(Kind::Lost, at(record), what);
        } else if all_receipts {
            let what = "a change of a status has no receipt that moved it";
            found.add(Kind::Wrong, at(record), what);
        }
    })
    .await?;
    s.each(STANDS, &[&kept.from(&["conversions"])], |row| {
        let (is, last): (String, String) = (row.get(1), row.get(2));
        let what = format!("the conversion stands at ({is}), its last change says ({last})");
        found.add(Kind::Wrong, at(row.get(0)), what);
    })
    .await?;
    s.each(MOVED_TWICE, &[], |row| {
        let (status, n): (String, i64) = (row.get(1), row.get(2));
        let what = format!("the conversion left the status {status} {n} times");
        found.add(Kind::Doubled, at(row.get(0)), what);
    })
    .await?;
    if kept.whole(&["conversions"]) {
        s.each(OF_NOTHING, &[], |row| {
            let what = format!(
                "a change by {} is of a conversion that is not there",
                at(row.get(1))
            );
            found.add(Kind::Lost, at(row.get(0)), what);
        })
        .await?;
    }
    if !kept.whole(&["conversions", "visits"]) {
        found.note("visits of conversions are not asked: some may lie on days that were dropped, or before --since");
        return Ok(());
    }
    found.rows += s.rows(&["visits"]).await?;
    s.each(VISITLESS, &[], |row| {
        let what = "the visit that the conversion is credited to is not there";
        found.add(Kind::Lost, at(row.get(0)), what);
    })
    .await
}
