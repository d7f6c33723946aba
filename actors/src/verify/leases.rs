//! Each claimed message can be found when its claim runs out: by the claim's row, its destination and its span of due times.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use millrace_schemas::ids::encode;
use tokio_postgres::Error;

const HALF: &str = "
SELECT outbox_id FROM outbox_due WHERE (lease_token IS NULL) <> (lease_until IS NULL)";

const UNFINDABLE: &str = "
SELECT d.outbox_id, l.lease_token IS NULL FROM outbox_due d LEFT JOIN outbox_leases l ON l.lease_token = d.lease_token
WHERE d.lease_token IS NOT NULL
  AND (l.lease_token IS NULL OR l.destination_no <> d.destination_no OR d.due_at NOT BETWEEN l.due_from AND l.due_to
       OR l.lease_until < d.lease_until)";

const TWICE: &str =
    "SELECT lease_token, count(*) FROM outbox_leases GROUP BY 1 HAVING count(*) > 1";

const ASTRAY: &str = "
SELECT lease_token, destination_no FROM outbox_leases l
WHERE NOT EXISTS (SELECT FROM destinations t WHERE t.destination_no = l.destination_no)";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    found.rows += s.rows(&["outbox_due", "outbox_leases"]).await?;
    s.each(HALF, &[], |row| {
        let what = "claimed without an end of the claim, or the reverse";
        found.add(Kind::Wrong, encode(row.get(0)), what);
    })
    .await?;
    s.each(UNFINDABLE, &[], |row| {
        let what = match row.get(1) {
            true => "claimed, and the claim is not on record: it will never be given back",
            false => {
                "claimed, and the claim's record says where it is not: it will never be given back"
            }
        };
        found.add(Kind::Lost, encode(row.get(0)), what);
    })
    .await?;
    s.each(TWICE, &[], |row| {
        let (token, n): (uuid::Uuid, i64) = (row.get(0), row.get(1));
        found.add(
            Kind::Doubled,
            format!("claim {token}"),
            format!("stands {n} times"),
        );
    })
    .await?;
    s.each(ASTRAY, &[], |row| {
        let (token, no): (uuid::Uuid, i32) = (row.get(0), row.get(1));
        let what = format!("is for destination {no}, which is not there");
        found.add(Kind::Wrong, format!("claim {token}"), what);
    })
    .await?;
    let expired = s
        .query(
            "SELECT count(*) FROM outbox_leases WHERE lease_until < now() - interval '1 minute'",
            &[],
        )
        .await?;
    let expired: i64 = expired.first().map_or(0, |r| r.get(0));
    if expired > 0 {
        found.note(format!(
            "{expired} claims have run out and are not cleaned up: does a process of the role `delivery` run?"
        ));
    }
    Ok(())
}
