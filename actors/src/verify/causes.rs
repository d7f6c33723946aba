//! Each message has the fact that set it off, once; and each fact has its messages, as far as that can be told.

use super::report::{Checked, Kind};
use super::snapshot::{Snapshot, at};
use crate::postgres::types::Tz;
use millrace_schemas::ids::encode;
use tokio_postgres::Error;
use uuid::Uuid;

/// Messages of channels that facts set off, whose cause is a record of the catalogue's topics, and of no fact.
const OF_NOTHING: &str = "
SELECT o.outbox_id, o.cause FROM outbox o LEFT JOIN (
    SELECT record_id FROM visits UNION ALL SELECT record_id FROM clicks UNION ALL SELECT conversion_id FROM conversions
    UNION ALL SELECT record_id FROM conversion_history
) f ON f.record_id = o.cause
WHERE f.record_id IS NULL AND o.channel IN ('webhook', 'meta') AND substring(uuid_send(o.cause) for 4) = ANY($1)";

/// One event of one destination under two ids: an activity fires a node once.
const TWICE: &str = "
SELECT channel, dedupe_key, array_agg(outbox_id) FROM outbox WHERE dedupe_key IS NOT NULL AND created_at >= $1
GROUP BY channel, destination_no, dedupe_key HAVING count(*) > 1";

/// Facts younger than a webhook that listens to them and was never changed, for which it has no message. Ten minutes are left for
/// clocks that differ.
const UNTOLD: &str = "
SELECT f.record_id, f.event, l.webhook_id FROM (
    SELECT w.webhook_id, w.workspace_id, d.destination_no, w.events,
           greatest(w.created_at + interval '10 minutes', $1) AS since
    FROM webhooks w JOIN destinations d ON d.channel = 'webhook' AND d.ref = w.webhook_id
    WHERE w.status = 'active' AND w.version = 1 AND w.updated_at = w.created_at
) l JOIN (
    SELECT workspace_id, record_id, accepted_at, 'visit' AS event FROM visits WHERE accepted_at >= $1
    UNION ALL SELECT workspace_id, record_id, accepted_at, 'click' FROM clicks WHERE accepted_at >= $1
    UNION ALL SELECT workspace_id, conversion_id, accepted_at, 'conversion' FROM conversions WHERE accepted_at >= $1
    UNION ALL SELECT workspace_id, record_id, changed_at, 'conversion' FROM conversion_history WHERE changed_at >= $1
) f ON f.workspace_id = l.workspace_id AND f.event = ANY(l.events) AND f.accepted_at >= l.since
LEFT JOIN outbox o ON o.cause = f.record_id AND o.destination_no = l.destination_no
WHERE o.outbox_id IS NULL";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    let kept = &s.kept;
    found.rows += s.rows(&["outbox"]).await?;
    s.each(TWICE, &[&kept.from(&[])], |row| {
        let (channel, key): (String, String) = (row.get(0), row.get(1));
        let ids: Vec<Uuid> = row.get(2);
        let names: Vec<String> = ids.iter().map(|id| encode(*id)).collect();
        let n = u64::try_from(ids.len()).unwrap_or(u64::MAX);
        let what = format!(
            "one event of {channel}, {key}, under two ids: {}",
            names.join(", ")
        );
        found.add_many(
            Kind::Doubled,
            n.saturating_sub(1),
            names.first().cloned().unwrap_or_default(),
            what,
        );
    })
    .await?;
    // Only where somebody listens must the facts be read at all.
    let listeners = s
        .query(
            "SELECT 1 FROM webhooks WHERE status = 'active' AND version = 1 AND updated_at = created_at LIMIT 1",
            &[],
        )
        .await?;
    if !listeners.is_empty() {
        let from = kept.from(&[]).0.max(kept.safely_from(&["outbox"]).0);
        found.rows += s.rows(&["visits", "clicks", "conversions"]).await?;
        s.each(UNTOLD, &[&Tz(from)], |row| {
            let (event, webhook): (String, String) = (row.get(1), row.get(2));
            let what = format!("the {event} was not told to {webhook}, which listens to it");
            found.add(Kind::Lost, at(row.get(0)), what);
        })
        .await?;
    }
    if !kept.whole(&["visits", "clicks", "conversions"]) {
        found.note("causes of messages are not asked: facts of some days were dropped, or lie before --since");
        return Ok(());
    }
    if s.rows(&["outbox"]).await? == 0 {
        return Ok(());
    }
    let topics: Vec<Vec<u8>> = s
        .topics
        .keys()
        .map(|no| no.to_be_bytes().to_vec())
        .collect();
    s.each(OF_NOTHING, &[&topics], |row| {
        let what = format!(
            "the message tells of {}, and no fact is born of it",
            at(row.get(1))
        );
        found.add(Kind::Wrong, encode(row.get(0)), what);
    })
    .await
}
