//! Each identity is booked once: conversions and the keys that claim them, in both directions; visits and clicks by their own.

use super::report::{Checked, Kind};
use super::snapshot::{Snapshot, at};
use crate::attribution::identity::{Brought, Keys};
use millrace_schemas::ids::{ClickKey, encode};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

/// Every key with its conversion, if that is there.
const KEYS: &str = "
SELECT k.key, k.conversion_id, c.workspace_id, c.network_id, c.click_key, c.click_id, c.offer_id, c.external_id, c.txid, c.event,
       c.provider_event
FROM conversion_keys k
LEFT JOIN conversions c ON c.conversion_id = k.conversion_id AND c.accepted_at = k.accepted_at AND c.accepted_at >= $1
WHERE k.accepted_at >= $1";

const KEYLESS: &str = "
SELECT conversion_id FROM conversions c
WHERE accepted_at >= $1 AND NOT EXISTS (SELECT FROM conversion_keys k WHERE k.conversion_id = c.conversion_id)";

/// One identity, two conversions. A transaction is an identity of its own only where one of the two came without the provider's
/// id; a click only where neither id came.
const TWICE: [(&str, &str); 4] = [
    (
        "one record",
        "SELECT array_agg(conversion_id) FROM conversions WHERE accepted_at >= $1 GROUP BY conversion_id HAVING count(*) > 1",
    ),
    (
        "one external id",
        "SELECT array_agg(conversion_id) FROM conversions WHERE accepted_at >= $1 AND external_id IS NOT NULL
         GROUP BY workspace_id, network_id, external_id HAVING count(*) > 1",
    ),
    (
        "one transaction",
        "SELECT array_agg(conversion_id) FROM conversions WHERE accepted_at >= $1 AND txid IS NOT NULL
         GROUP BY workspace_id, network_id, txid, offer_id, provider_event
         HAVING count(*) > 1 AND bool_or(external_id IS NULL)",
    ),
    (
        "one click",
        "SELECT array_agg(conversion_id) FROM conversions WHERE accepted_at >= $1 AND txid IS NULL AND external_id IS NULL
         GROUP BY workspace_id, network_id, click_key, offer_id, event, provider_event HAVING count(*) > 1",
    ),
];

const VISITS: &str = "
SELECT workspace_id, click_key, visit_id, count(*) FROM visits WHERE accepted_at >= $1
GROUP BY 1, 2, 3 HAVING count(*) > 1";

const CLICKS: &str = "
SELECT workspace_id, click_key, stage::int4, count(*) FROM clicks WHERE accepted_at >= $1
GROUP BY 1, 2, 3 HAVING count(*) > 1";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    let from = s.kept.from(&["conversions"]);
    found.rows += s
        .rows(&["conversion_keys", "conversions", "visits", "clicks"])
        .await?;
    s.each(KEYS, &[&from], |row| key(row, found)).await?;
    s.each(KEYLESS, &[&from], |row| {
        let what = "the conversion holds no identity: it can be booked a second time";
        found.add(Kind::Wrong, at(row.get(0)), what);
    })
    .await?;
    for (what, sql) in TWICE {
        s.each(sql, &[&from], |row| {
            let ids: Vec<Uuid> = row.get(0);
            let names: Vec<String> = ids.iter().map(|id| at(*id)).collect();
            let first = names.first().cloned().unwrap_or_default();
            let n = ids.len().saturating_sub(1);
            found.add_many(
                Kind::Doubled,
                u64::try_from(n).unwrap_or(1),
                first,
                format!("{what} is booked by {}", names.join(" and ")),
            );
        })
        .await?;
    }
    if s.any_rewound() {
        found.note("visits and clicks are not asked: an operator had records decided again, which lists them twice");
        return Ok(());
    }
    let from = s.kept.from(&[]);
    let mut listed = |kind: &str, row: &Row| {
        let click = click_of(row.get(0), row.get(1), None);
        let n: i64 = row.get(3);
        let which = match kind {
            "visit" => format!("visit {}", encode(row.get(2))),
            _ => format!("stage {}", row.get::<_, i32>(2)),
        };
        let what = format!("{which} of this click stands {n} times");
        found.add(
            Kind::Doubled,
            format!("click {click} of workspace {}", row.get::<_, i32>(0)),
            what,
        );
    };
    s.each(VISITS, &[&from], |row| listed("visit", row)).await?;
    s.each(CLICKS, &[&from], |row| listed("click", row)).await
}

/// One key: its conversion is there, and spells it.
fn key(row: &Row, found: &mut Checked) {
    let (key, conversion): (Uuid, Uuid) = (row.get(0), row.get(1));
    let Some(workspace) = row.get::<_, Option<i32>>(2) else {
        let what = format!("identity {key} is taken by this conversion, which is not there");
        return found.add(Kind::Lost, at(conversion), what);
    };
    let click_id = click_of(workspace, row.get(4), row.get(5));
    let keys = Keys::of(&Brought {
        workspace,
        network: row.get(3),
        click_id: &click_id,
        offer: row.get(6),
        external_id: row.get(7),
        txid: row.get(8),
        event: row.get(9),
        provider_event: row.get(10),
    });
    if !keys.iter().any(|k| k == key) {
        let what = format!("identity {key} leads to this conversion, and is another's");
        found.add(Kind::Wrong, at(conversion), what);
    }
}

/// A click id's text: as stored, or that of the minted id itself.
fn click_of(workspace: i32, key: Uuid, foreign: Option<String>) -> String {
    foreign
        .or_else(|| ClickKey { workspace, key }.minted_text())
        .unwrap_or_else(|| key.to_string())
}
