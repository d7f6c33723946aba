//! What the ledger must hold after workload W, whoever wrote it: the generator's counts, and its sum of payouts.

use crate::workload::{Totals, VisitFacts};
use anyhow::ensure;
use millrace_schemas::ids::ClickKey;
use millrace_schemas::postback::PostbackRecord;
use rust_decimal::Decimal;
use tokio_postgres::Client;

/// Checks the ledger and says what stands in it.
///
/// At the end of the workload a few postbacks still wait for visits that it no longer holds: who joins leaves them parked, who
/// takes the visit from the generator books them. Booked and parked together must be all.
///
/// # Errors
/// It is not what the generator made.
pub async fn verify(client: &Client, name: &str, totals: &Totals) -> anyhow::Result<()> {
    let row = client
        .query_one(
            "SELECT (SELECT count(*) FROM visits), (SELECT count(*) FROM clicks), (SELECT count(*) FROM conversions),
                    (SELECT count(*) FROM conversion_keys), (SELECT count(*) FROM postback_log),
                    (SELECT count(*) FROM (SELECT conversion_id FROM conversions GROUP BY 1 HAVING count(*) > 1) twice),
                    (SELECT coalesce(sum(payout), 0) FROM conversions)",
            &[],
        )
        .await?;
    let n = |i: usize| u64::try_from(row.get::<_, i64>(i)).unwrap_or(0);
    let [visits, clicks, conversions, keys, log, twice] = std::array::from_fn(n);
    let (parked, waiting) = waiting(client).await?;
    let check = |what: &str, has: u64, made: u64| {
        ensure!(has == made, "{name}: {has} {what}, made {made}");
        Ok(())
    };
    check("visits", visits, totals.visits)?;
    check("clicks", clicks, totals.clicks)?;
    check("conversions", conversions + parked, totals.postbacks)?;
    check("conversions booked twice", twice, 0)?;
    check("keys of conversions", keys, conversions)?;
    let receipts = totals.postbacks + totals.postback_repeats;
    ensure!(
        log >= receipts,
        "{name}: {log} rows in the postback log, {receipts} receipts"
    );
    let paid: Decimal = row.get(6);
    let made = Decimal::new(i64::try_from(totals.payout_cents)?, 2);
    ensure!(
        paid + waiting == made,
        "{name}: payouts of {paid} booked and {waiting} waiting, made {made}"
    );
    println!(
        "  ledger of the {name}: {visits} visits, {clicks} clicks, {conversions} conversions of {}, {log} log rows, {parked} waiting",
        paid.normalize()
    );
    Ok(())
}

/// Parked postbacks, repeats aside: how many, and the payouts that they would book. Who books at once and parks for the work's
/// sake may have the last rows still there: they are booked, and wait for nothing.
///
/// # Errors
/// The store fails, or a parked payload is none of a postback.
pub async fn waiting(client: &Client) -> anyhow::Result<(u64, Decimal)> {
    let rows = client
        .query(
            "SELECT DISTINCT ON (substring(convert_from(payload, 'UTF8') FROM 'txid=(T[0-9]+)')) payload FROM parked p WHERE NOT EXISTS (SELECT FROM conversions c WHERE c.conversion_id = p.record_id)",
            &[],
        )
        .await?;
    let mut sum = Decimal::ZERO;
    for row in &rows {
        let record: PostbackRecord = serde_json::from_slice(row.get(0))?;
        let said = record
            .read()
            .map_err(|reason| anyhow::anyhow!("a parked postback: {reason}"))?;
        let facts = VisitFacts::of_click_key(ClickKey::new(record.workspace, &said.click_id).key);
        let sidecar = said.offer_id.as_deref() == Some(&*format!("{:05}", facts.campaign()));
        // A sidecar offer of the workload has no payout of its own.
        let default = if sidecar { 0 } else { facts.default_cents() };
        sum += said
            .payout
            .unwrap_or_else(|| Decimal::new(i64::from(default), 2));
    }
    Ok((u64::try_from(rows.len())?, sum))
}

/// What of each table all contenders must write alike, as sums of hashes by table, of conversions by column: what was made at the
/// time of the run (booked, decided and changed at) is left out, and conversions whose visit the workload no longer holds.
///
/// # Errors
/// The store fails.
pub async fn fingerprint(client: &Client) -> anyhow::Result<Vec<(&'static str, String)>> {
    const HELD: &str = "visit_id IN (SELECT visit_id FROM visits)";
    let of =
        |row: &str| format!("coalesce(sum(hashtextextended(({row})::text, 0)::numeric), 0)::text");
    let whole = [
        ("visits", of("v"), "visits v".to_owned()),
        ("clicks", of("c"), "clicks c".to_owned()),
        (
            "keys of conversions",
            of("key, conversion_id, accepted_at"),
            format!(
                "conversion_keys WHERE conversion_id IN (SELECT conversion_id FROM conversions WHERE {HELD})"
            ),
        ),
        (
            "log of applied postbacks",
            of(
                "workspace_id, record_id, accepted_at, click_key, conversion_id, reason, network_id",
            ),
            "postback_log WHERE outcome = 0 AND click_key IN (SELECT click_key FROM visits)"
                .to_owned(),
        ),
    ];
    let mut sums = Vec::new();
    for (name, sum, from) in whole {
        let row = client
            .query_one(&format!("SELECT {sum} FROM {from}"), &[])
            .await?;
        sums.push((name, row.get(0)));
    }
    let columns = CONVERSION.map(|column| of(&format!("conversion_id, {column}")));
    let row = client
        .query_one(
            &format!(
                "SELECT {} FROM conversions WHERE {HELD}",
                columns.join(", ")
            ),
            &[],
        )
        .await?;
    sums.extend(
        CONVERSION
            .iter()
            .enumerate()
            .map(|(i, column)| (*column, row.get(i))),
    );
    Ok(sums)
}

const CONVERSION: [&str; 22] = [
    "workspace_id",
    "click_key",
    "accepted_at",
    "occurred_at",
    "click_id",
    "campaign_id",
    "visit_id",
    "offer_id",
    "role",
    "network_id",
    "external_id",
    "txid",
    "event",
    "provider_event",
    "returned_offer",
    "payout",
    "currency",
    "status",
    "email_hash",
    "phone_hash",
    "lead_hash",
    "flags",
];
