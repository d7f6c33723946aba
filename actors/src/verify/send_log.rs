//! Each ended message has the attempt that ended it, and no message that may be sent once was delivered twice.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use crate::delivery::ledger::IDEMPOTENT;
use millrace_schemas::ids::encode;
use tokio_postgres::Error;

/// Ended messages without a row in the log that says so. One that was refused where it began was never tried. Attempts that ran
/// out with their last lease are `unknown` in the log and `failed` in the end.
const UNSAID: &str = "
SELECT o.outbox_id, o.status FROM outbox o LEFT JOIN (
    SELECT outbox_id, bit_or(CASE result WHEN 'delivered' THEN 1 WHEN 'rejected' THEN 2 WHEN 'unknown' THEN 4
           WHEN 'cancelled' THEN 8 WHEN 'suppressed' THEN 16 WHEN 'bounced' THEN 32 ELSE 0 END) AS results
    FROM send_log GROUP BY outbox_id
) l ON l.outbox_id = o.outbox_id
WHERE o.status <> 'scheduled' AND o.ended_at >= $1 AND NOT (o.status = 'failed' AND o.attempts = 0 AND o.ended_at = o.created_at)
  AND coalesce(l.results, 0) & CASE o.status WHEN 'sent' THEN 1 WHEN 'failed' THEN 2 | 4 WHEN 'unknown' THEN 4
      WHEN 'cancelled' THEN 8 WHEN 'suppressed' THEN 16 WHEN 'bounced' THEN 32 ELSE 0 END = 0";

/// Of channels whose receivers cannot tell. What may have arrived and was released by hand has `unknown` in its log.
const DELIVERED_TWICE: &str = "
SELECT outbox_id, count(*) FILTER (WHERE result = 'delivered') FROM send_log WHERE NOT channel = ANY($1)
GROUP BY outbox_id HAVING count(*) FILTER (WHERE result = 'delivered') > 1 AND NOT bool_or(result = 'unknown')";

/// Delivered, and open still: it would be sent again.
const AGAIN: &str = "
SELECT DISTINCT o.outbox_id FROM outbox o JOIN send_log l ON l.outbox_id = o.outbox_id AND l.result = 'delivered'
WHERE o.status = 'scheduled' AND NOT o.channel = ANY($1)
  AND NOT EXISTS (SELECT FROM send_log u WHERE u.outbox_id = o.outbox_id AND u.result = 'unknown')";

const OF_NOTHING: &str = "
SELECT DISTINCT l.outbox_id FROM send_log l WHERE NOT EXISTS (SELECT FROM outbox o WHERE o.outbox_id = l.outbox_id)";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    let kept = &s.kept;
    found.rows += s.rows(&["outbox", "send_log"]).await?;
    s.each(UNSAID, &[&kept.safely_from(&["send_log"])], |row| {
        let status: String = row.get(1);
        let what = format!("the message ended {status}, and no attempt in the log says so");
        found.add(Kind::Lost, encode(row.get(0)), what);
    })
    .await?;
    s.each(DELIVERED_TWICE, &[&IDEMPOTENT], |row| {
        let n: i64 = row.get(1);
        let what = format!("delivered {n} times to a receiver that cannot tell");
        found.add_many(
            Kind::Doubled,
            n.unsigned_abs().saturating_sub(1),
            encode(row.get(0)),
            what,
        );
    })
    .await?;
    s.each(AGAIN, &[&IDEMPOTENT], |row| {
        let what = "delivered to a receiver that cannot tell, and to be sent again";
        found.add(Kind::Doubled, encode(row.get(0)), what);
    })
    .await?;
    if !kept.whole(&["outbox"]) {
        found.note("attempts at messages that are not there are not asked: old messages are dropped before their log, or --since");
        return Ok(());
    }
    s.each(OF_NOTHING, &[], |row| {
        let what = "attempts stand in the log, and the message is not there";
        found.add(Kind::Lost, encode(row.get(0)), what);
    })
    .await
}
