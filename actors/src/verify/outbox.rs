//! Each open message is due once, each ended one is not; ids are one message's; destinations are the workspace's own.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use crate::postgres::types::Tz;
use millrace_schemas::ids::encode;
use tokio_postgres::Error;
use uuid::Uuid;

/// Open bodies against what is due, each once.
const PAIRS: &str = "
SELECT outbox_id, o.n, d.n, d.created_at FROM (
    SELECT outbox_id, created_at, count(*) AS n FROM outbox WHERE status = 'scheduled' AND created_at >= $1 GROUP BY 1, 2
) o FULL JOIN (
    SELECT outbox_id, created_at, count(*) AS n FROM outbox_due WHERE created_at >= $1 GROUP BY 1, 2
) d USING (outbox_id, created_at)
WHERE o.n IS NULL OR d.n IS NULL OR d.n > 1";

const STATUS: &str = "SELECT status FROM outbox WHERE outbox_id = $1 AND created_at = $2";

const TWICE: &str =
    "SELECT outbox_id, count(*) FROM outbox WHERE created_at >= $1 GROUP BY 1 HAVING count(*) > 1";

const ASTRAY: &str = "
SELECT o.outbox_id, o.destination_no FROM outbox o
LEFT JOIN destinations t ON t.destination_no = o.destination_no AND t.workspace_id = o.workspace_id AND t.channel = o.channel
LEFT JOIN outbox_due d ON d.outbox_id = o.outbox_id AND d.created_at = o.created_at
WHERE o.created_at >= $1 AND (t.destination_no IS NULL OR d.destination_no <> o.destination_no)";

const UNDATED: &str = "
SELECT outbox_id, status FROM outbox WHERE created_at >= $1 AND (status = 'scheduled') = (ended_at IS NOT NULL)";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    let from = s.kept.from(&[]);
    found.rows += s.rows(&["outbox", "outbox_due"]).await?;
    let mut undue: Vec<(Uuid, Tz)> = Vec::new();
    let mut more = 0_u64;
    let limit = s.limit;
    s.each(PAIRS, &[&from], |row| {
        let id: Uuid = row.get(0);
        let (open, due): (Option<i64>, Option<i64>) = (row.get(1), row.get(2));
        match (open, due) {
            (Some(_), None) => found.add(
                Kind::Lost,
                encode(id),
                "the message is open, and is due at no time: it will not be sent",
            ),
            (_, Some(n)) if n > 1 => {
                found.add(
                    Kind::Doubled,
                    encode(id),
                    format!("the message is due {n} times"),
                );
            }
            // What the body says is looked up for the examples alone.
            _ if undue.len() < limit => undue.push((id, row.get(3))),
            _ => more += 1,
        }
    })
    .await?;
    for (id, created_at) in undue {
        let body = s.query(STATUS, &[&id, &created_at]).await?;
        match body.first().map(|r| r.get::<_, String>(0)) {
            Some(status) => found.add(
                Kind::Doubled,
                encode(id),
                format!("the message has ended ({status}), and is due: it will be sent again"),
            ),
            None => found.add(
                Kind::Lost,
                encode(id),
                "the message is due, and its body is not there",
            ),
        }
    }
    if more > 0 {
        found.add_many(Kind::Wrong, more, "others", "due, and not open");
    }
    s.each(TWICE, &[&from], |row| {
        let n: i64 = row.get(1);
        let what = format!("{n} messages have this id");
        found.add(Kind::Doubled, encode(row.get(0)), what);
    })
    .await?;
    s.each(ASTRAY, &[&from], |row| {
        let no: i32 = row.get(1);
        let what = format!("destination {no} is none of its workspace's on its channel, or another than it is due to");
        found.add(Kind::Wrong, encode(row.get(0)), what);
    })
    .await?;
    s.each(UNDATED, &[&from], |row| {
        let status: String = row.get(1);
        let what = format!("the message is {status}, and its end says otherwise");
        found.add(Kind::Wrong, encode(row.get(0)), what);
    })
    .await
}
