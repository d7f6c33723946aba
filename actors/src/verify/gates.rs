//! What was told to people: each message of a rule has the key that keeps it from being told twice, and each key its message. Whom
//! it was told to, and when, is asked by `told`.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use super::told;
use crate::postgres::types::Tz;
use millrace_schemas::ids::encode;
use tokio_postgres::Error;

/// Days for which sent keys are surely kept (`recipients::forget`).
const KEYS_KEPT_DAYS: i64 = 30;

const NO_MESSAGE: &str = "
SELECT s.key, s.outbox_id FROM sent_keys s LEFT JOIN outbox o ON o.outbox_id = s.outbox_id
WHERE s.sent_at >= $1 AND o.outbox_id IS NULL";

const NO_KEY: &str = "
SELECT o.outbox_id FROM outbox o LEFT JOIN sent_keys s ON s.outbox_id = o.outbox_id
WHERE o.rule_id IS NOT NULL AND o.created_at >= $1 AND s.key IS NULL";

const NO_FIRING: &str = "
SELECT o.outbox_id FROM outbox o LEFT JOIN firings f ON f.firing_pos = o.firing_pos
WHERE o.firing_pos IS NOT NULL AND o.created_at >= $1 AND f.firing_pos IS NULL";

/// Firings that engagement has applied by its own count, against those that are noted, by partition of their acceptance.
const APPLIED: &str = "
SELECT topic_no, partition, coalesce(c.n, 0)::int8, coalesce(f.n, 0)::int8 FROM (
    SELECT topic_no, partition, sum(n) AS n FROM outcomes WHERE group_name = 'engagement' AND outcome = 0 GROUP BY 1, 2
) c FULL JOIN (
    SELECT record_topic(firing_pos) AS topic_no, record_partition(firing_pos) AS partition, count(*) AS n FROM firings GROUP BY 1, 2
) f USING (topic_no, partition)
WHERE coalesce(c.n, 0) <> coalesce(f.n, 0)";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    found.rows += s.rows(&["sent_keys"]).await?;
    let kept = s.kept.from(&["outbox"]).0;
    let keys = s.moment.plus_secs(-KEYS_KEPT_DAYS * 86_400);
    s.each(NO_MESSAGE, &[&Tz(kept)], |row| {
        let what = format!("told by message {}, which is not there", encode(row.get(1)));
        found.add(Kind::Lost, encode(row.get(0)), what);
    })
    .await?;
    s.each(NO_KEY, &[&Tz(kept.max(keys))], |row| {
        let what = "nothing keeps the message's event from being told again";
        found.add(Kind::Wrong, encode(row.get(0)), what);
    })
    .await?;
    if s.kept.whole(&["firings"]) {
        s.each(APPLIED, &[], |row| {
            let (counted, noted): (i64, i64) = (row.get(2), row.get(3));
            let kind = if noted < counted {
                Kind::Lost
            } else {
                Kind::Doubled
            };
            let what = format!("{counted} firings counted as applied, {noted} noted");
            found.add_many(
                kind,
                counted.abs_diff(noted),
                s.place(row.get(0), row.get(1)),
                what,
            );
        })
        .await?;
    }
    let firings = s.kept.from(&["outbox", "firings"]).0;
    s.each(NO_FIRING, &[&Tz(firings)], |row| {
        let what = "the message tells of a firing that is not there";
        found.add(Kind::Wrong, encode(row.get(0)), what);
    })
    .await?;
    told::check(s, found).await
}
