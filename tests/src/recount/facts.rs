//! Facts against the list.

use super::{Ends, Kind, Place, Produced, Report, allows, is, wanted};
use crate::generator::{End, Fact, Topic, base32};
use rust_decimal::Decimal;
use std::collections::{HashMap, HashSet};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

fn place(row: &Row, column: &str) -> Place {
    Place::of_row(row.get(column))
}

/// The record that a row came from; what came from none, or a second row of one, is a finding.
fn record_of(
    row: &Row,
    column: &str,
    table: &str,
    produced: &Produced,
    seen: &mut HashSet<usize>,
    report: &mut Report,
) -> Option<usize> {
    report.rows += 1;
    let at = place(row, column);
    let Some(i) = produced.at(at) else {
        report.add(
            Kind::Wrong,
            format!("{table}: a row of {at}, where no record of the list is"),
        );
        return None;
    };
    if !seen.insert(i) {
        report.add(
            Kind::Double,
            format!("{table}: {} is there twice", produced.name(i)),
        );
        return None;
    }
    Some(i)
}

/// The click id of a row: its text, or that of its key where it is the minted id itself.
fn click_id(row: &Row) -> String {
    row.get::<_, Option<String>>("click_id")
        .unwrap_or_else(|| base32(row.get::<_, Uuid>("click_key").as_u128()))
}

/// Compares workspace, click id and one more value of a row with those of its record.
fn compare(row: &Row, table: &str, i: usize, produced: &Produced, report: &mut Report) {
    let record = &produced.list.records[i];
    let mut differ = |name: &str, is: String, should: String| {
        if is != should {
            let name = format!(
                "{table}: {} has {name} {is}, not {should}",
                produced.name(i)
            );
            report.add(Kind::Wrong, name);
        }
    };
    let workspace: i32 = row.get("workspace_id");
    differ(
        "workspace",
        workspace.to_string(),
        record.workspace.to_string(),
    );
    differ("click id", click_id(row), record.click_id.clone());
    differ("campaign", row.get("campaign_id"), record.campaign.clone());
}

/// Whether a record of `clicks` must have left a fact: true or false for certain, for these stories never contested.
fn must_be_applied(produced: &Produced, i: usize) -> bool {
    produced.list.records[i]
        .right
        .iter()
        .all(|r| r.end == End::Applied)
}

pub(super) async fn visits(
    store: &impl GenericClient,
    produced: &Produced,
    report: &mut Report,
) -> anyhow::Result<()> {
    let rows = store
        .query(
            "SELECT workspace_id, click_key, click_id, visit_id, record_id, campaign_id, stage, direct,
                    journey #>> '{offer,id}' AS served, offer_id FROM visits",
            &[],
        )
        .await?;
    let (mut seen, mut ids) = (HashSet::new(), HashSet::new());
    for row in &rows {
        let Some(i) = record_of(row, "record_id", "visits", produced, &mut seen, report) else {
            continue;
        };
        let record = &produced.list.records[i];
        let Fact::Visit { visit_id, direct } = record.fact else {
            report.add(
                Kind::Wrong,
                format!("visits: {} is no visit", produced.name(i)),
            );
            continue;
        };
        let id = row.get::<_, Uuid>("visit_id").as_u128();
        if !ids.insert((record.workspace, id)) {
            report.add(
                Kind::Double,
                format!("visits: the visit of {} is there twice", produced.name(i)),
            );
        } else if !must_be_applied(produced, i) {
            let what = format!(
                "visits: {} is booked, and should be {}",
                produced.name(i),
                wanted(produced, i)
            );
            report.add(Kind::Double, what);
        }
        compare(row, "visits", i, produced, report);
        let offer: Option<String> = row.get("offer_id");
        if id != visit_id
            || row.get::<_, bool>("direct") != direct
            || row.get::<_, i16>("stage") != record.stage
            || offer.is_none()
            || offer != row.get::<_, Option<String>>("served")
        {
            report.add(
                Kind::Wrong,
                format!("visits: {} differs in its values", produced.name(i)),
            );
        }
    }
    for (i, record) in produced.list.records.iter().enumerate() {
        let visit = matches!(record.fact, Fact::Visit { .. });
        if visit && must_be_applied(produced, i) && !seen.contains(&i) {
            report.add(
                Kind::Loss,
                format!("visits: {} is not there", produced.name(i)),
            );
        }
    }
    Ok(())
}

pub(super) async fn clicks(
    store: &impl GenericClient,
    produced: &Produced,
    report: &mut Report,
) -> anyhow::Result<()> {
    let rows = store
        .query(
            "SELECT workspace_id, click_key, click_id, record_id, campaign_id, stage FROM clicks",
            &[],
        )
        .await?;
    let (mut seen, mut charged) = (HashSet::new(), HashSet::new());
    for row in &rows {
        let Some(i) = record_of(row, "record_id", "clicks", produced, &mut seen, report) else {
            continue;
        };
        let record = &produced.list.records[i];
        if !matches!(record.fact, Fact::Click | Fact::Visit { direct: true, .. }) {
            report.add(
                Kind::Wrong,
                format!("clicks: {} is no click", produced.name(i)),
            );
            continue;
        }
        if !charged.insert((record.workspace, &*record.click_id, record.stage)) {
            report.add(
                Kind::Double,
                format!("clicks: the click of {} is charged twice", produced.name(i)),
            );
        } else if !must_be_applied(produced, i) {
            let what = format!(
                "clicks: {} is charged, and should be {}",
                produced.name(i),
                wanted(produced, i)
            );
            report.add(Kind::Double, what);
        }
        compare(row, "clicks", i, produced, report);
        if row.get::<_, i16>("stage") != record.stage {
            report.add(
                Kind::Wrong,
                format!("clicks: {} has another stage", produced.name(i)),
            );
        }
    }
    for (i, record) in produced.list.records.iter().enumerate() {
        let click = matches!(record.fact, Fact::Click | Fact::Visit { direct: true, .. });
        if click && must_be_applied(produced, i) && !seen.contains(&i) {
            report.add(
                Kind::Loss,
                format!("clicks: {} is not there", produced.name(i)),
            );
        }
    }
    Ok(())
}

/// How each postback ended (its log), and every parked, rejected and dead record of both topics.
pub(super) async fn ends(
    store: &impl GenericClient,
    produced: &Produced,
    report: &mut Report,
) -> anyhow::Result<Ends> {
    let mut ends = Ends::new();
    let once =
        |ends: &mut Ends, i: usize, end: End, reason: &str, table: &str, report: &mut Report| {
            if ends.insert(i, (end, reason.to_owned())).is_some() {
                report.add(
                    Kind::Double,
                    format!("{table}: {} has two ends", produced.name(i)),
                );
            }
        };
    let rows = store
        .query("SELECT record_id, outcome, reason FROM postback_log", &[])
        .await?;
    let mut waited = HashSet::new();
    for row in &rows {
        report.rows += 1;
        let at = place(row, "record_id");
        let Some(i) = produced
            .at(at)
            .filter(|i| is(produced, *i, Topic::Postbacks))
        else {
            report.add(
                Kind::Wrong,
                format!("postback_log: a row of {at}, where no postback of the list is"),
            );
            continue;
        };
        let (code, reason): (i16, String) = (row.get("outcome"), row.get("reason"));
        match End::ALL.into_iter().find(|e| e.code() == code) {
            Some(End::Parked) => {
                if !waited.insert(i) {
                    report.add(
                        Kind::Double,
                        format!("postback_log: {} was parked twice", produced.name(i)),
                    );
                }
            }
            Some(end) => {
                once(&mut ends, i, end, &reason, "postback_log", report);
                if !allows(produced, i, end, &reason) {
                    let what = format!(
                        "postback_log: {} ended {end:?}({reason}), not {}",
                        produced.name(i),
                        wanted(produced, i)
                    );
                    report.add(Kind::Wrong, what);
                }
            }
            None => report.add(Kind::Wrong, format!("postback_log: outcome {code} of {at}")),
        }
    }
    let mut seen = HashSet::new();
    for row in &store
        .query("SELECT record_id, payload FROM parked", &[])
        .await?
    {
        let Some(i) = record_of(row, "record_id", "parked", produced, &mut seen, report) else {
            continue;
        };
        once(&mut ends, i, End::Parked, "", "parked", report);
        if !allows(produced, i, End::Parked, "") {
            let what = format!(
                "parked: {} still waits, and should be {}",
                produced.name(i),
                wanted(produced, i)
            );
            report.add(Kind::Loss, what);
        }
    }
    let mut seen = HashSet::new();
    for row in &store
        .query("SELECT record_id, reason, payload FROM rejects", &[])
        .await?
    {
        let Some(i) = record_of(row, "record_id", "rejects", produced, &mut seen, report) else {
            continue;
        };
        let reason: String = row.get("reason");
        once(&mut ends, i, End::Rejected, &reason, "rejects", report);
        if !allows(produced, i, End::Rejected, &reason) {
            let what = format!(
                "rejects: {} was rejected({reason}), not {}",
                produced.name(i),
                wanted(produced, i)
            );
            report.add(Kind::Wrong, what);
        }
        check_payload(row, "rejects", i, produced, report);
    }
    let mut seen = HashSet::new();
    let rows = store
        .query(
            "SELECT record_id, reason, payload, key, status FROM dead_letters",
            &[],
        )
        .await?;
    for row in &rows {
        let Some(i) = record_of(
            row,
            "record_id",
            "dead_letters",
            produced,
            &mut seen,
            report,
        ) else {
            continue;
        };
        let reason: String = row.get("reason");
        // A postback that waited in vain stands in its log as well.
        if ends
            .get(&i)
            .is_none_or(|(end, _)| *end != End::DeadLettered)
        {
            once(
                &mut ends,
                i,
                End::DeadLettered,
                &reason,
                "dead_letters",
                report,
            );
        }
        if !allows(produced, i, End::DeadLettered, &reason) {
            let what = format!(
                "dead_letters: {} died of {reason}, not {}",
                produced.name(i),
                wanted(produced, i)
            );
            report.add(Kind::Wrong, what);
        }
        check_payload(row, "dead_letters", i, produced, report);
        if row.get::<_, &[u8]>("key") != produced.list.records[i].key {
            report.add(
                Kind::Wrong,
                format!("dead_letters: {} has another key", produced.name(i)),
            );
        }
    }
    for (i, (end, _)) in &ends {
        if *end == End::DeadLettered && !seen.contains(i) {
            report.add(
                Kind::Loss,
                format!("dead_letters: {} is not there", produced.name(*i)),
            );
        }
    }
    for (i, record) in produced.list.records.iter().enumerate() {
        // Visits and clicks leave a trace when they are booked; a duplicate of them leaves none.
        let traced = record.topic == Topic::Postbacks
            || record
                .right
                .iter()
                .all(|r| !matches!(r.end, End::Applied | End::Duplicate));
        if traced && !ends.contains_key(&i) {
            let what = format!(
                "{} has no end, and should be {}",
                produced.name(i),
                wanted(produced, i)
            );
            report.add(Kind::Loss, what);
        }
    }
    Ok(ends)
}

fn check_payload(row: &Row, table: &str, i: usize, produced: &Produced, report: &mut Report) {
    if row.get::<_, &[u8]>("payload") != produced.list.records[i].payload {
        report.add(
            Kind::Wrong,
            format!(
                "{table}: {} does not keep the original bytes",
                produced.name(i)
            ),
        );
    }
}

pub(super) async fn conversions(
    store: &impl GenericClient,
    produced: &Produced,
    ends: &Ends,
    report: &mut Report,
) -> anyhow::Result<()> {
    let rows = store
        .query(
            "SELECT c.workspace_id, conversion_id, click_key, click_id, campaign_id, offer_id, role, network_id, external_id,
                    txid, event, provider_event, payout, currency, status,
                    (SELECT count(*) FROM conversion_history h WHERE h.conversion_id = c.conversion_id) AS changes
             FROM conversions c",
            &[],
        )
        .await?;
    let mut booked: HashMap<usize, &Row> = HashMap::new();
    let mut seen = HashSet::new();
    for row in &rows {
        if let Some(i) = record_of(
            row,
            "conversion_id",
            "conversions",
            produced,
            &mut seen,
            report,
        ) {
            booked.insert(i, row);
        }
    }
    for conversion in &produced.list.conversions {
        let found: Vec<_> = conversion
            .ways
            .iter()
            .filter_map(|w| Some((w, *booked.get(&w.record)?)))
            .collect();
        for way in &conversion.ways {
            booked.remove(&way.record);
            let applied = found.iter().any(|(w, _)| w.record == way.record);
            // A step of a status is applied too, and books nothing.
            let books = ends
                .get(&way.record)
                .is_some_and(|(end, why)| *end == End::Applied && why != "status_changed");
            if applied != books {
                let what = format!(
                    "conversions: {} and its end in postback_log do not agree",
                    produced.name(way.record)
                );
                report.add(Kind::Wrong, what);
            }
        }
        let (way, row) = match found.as_slice() {
            [] => {
                let names: Vec<_> = conversion
                    .ways
                    .iter()
                    .map(|w| produced.name(w.record))
                    .collect();
                report.add(
                    Kind::Loss,
                    format!("conversions: none of {}", names.join(" / ")),
                );
                continue;
            }
            [one] => *one,
            [first, ..] => {
                let names: Vec<_> = found.iter().map(|(w, _)| produced.name(w.record)).collect();
                report.add(
                    Kind::Double,
                    format!(
                        "conversions: one identity is booked by {}",
                        names.join(" and ")
                    ),
                );
                *first
            }
        };
        compare(row, "conversions", way.record, produced, report);
        let mut differ = |name: &str, is: String, should: String| {
            if is != should {
                let what = format!(
                    "conversions: {} has {name} {is}, not {should}",
                    produced.name(way.record)
                );
                report.add(Kind::Wrong, what);
            }
        };
        differ("network", row.get("network_id"), conversion.network.clone());
        differ("offer", row.get("offer_id"), way.offer.to_owned());
        differ("role", row.get("role"), way.role.to_owned());
        differ("status", row.get("status"), way.status.to_owned());
        let payout: Decimal = row.get("payout");
        let (payout, should) = (payout.normalize(), Decimal::new(way.cents, 2).normalize());
        differ("payout", payout.to_string(), should.to_string());
        if let Some(names) = &way.names {
            for (name, should) in ["external_id", "txid", "event", "provider_event"]
                .into_iter()
                .zip(names)
            {
                let is: Option<String> = row.get(name);
                differ(name, format!("{is:?}"), format!("{should:?}"));
            }
        }
        let changes: i64 = row.get("changes");
        if !conversion.changes.contains(&changes) {
            let what = format!(
                "conversions: {} changed {changes} times, not {:?}",
                produced.name(way.record),
                conversion.changes
            );
            report.add(
                if changes > *conversion.changes.end() {
                    Kind::Double
                } else {
                    Kind::Loss
                },
                what,
            );
        }
    }
    for i in booked.into_keys() {
        let what = format!(
            "conversions: {} is booked, and should be {}",
            produced.name(i),
            wanted(produced, i)
        );
        report.add(Kind::Double, what);
    }
    Ok(())
}

/// Identities and history point at conversions, and every conversion has an identity.
pub(super) async fn identities(
    store: &impl GenericClient,
    report: &mut Report,
) -> anyhow::Result<()> {
    for (kind, what, sql) in [
        (
            Kind::Loss,
            "conversions without an identity",
            "SELECT count(*) FROM conversions c
             WHERE NOT EXISTS (SELECT FROM conversion_keys k WHERE k.conversion_id = c.conversion_id)",
        ),
        (
            Kind::Wrong,
            "identities of no conversion",
            "SELECT count(*) FROM conversion_keys k
             WHERE NOT EXISTS (SELECT FROM conversions c WHERE c.conversion_id = k.conversion_id
                               AND c.accepted_at = k.accepted_at)",
        ),
        (
            Kind::Wrong,
            "changes of no conversion",
            "SELECT count(*) FROM conversion_history h
             WHERE NOT EXISTS (SELECT FROM conversions c WHERE c.conversion_id = h.conversion_id)",
        ),
        (
            Kind::Wrong,
            "conversions whose click is another visit's",
            "SELECT count(*) FROM conversions c
             WHERE NOT EXISTS (SELECT FROM visits v WHERE v.workspace_id = c.workspace_id AND v.click_key = c.click_key
                               AND v.visit_id = c.visit_id AND v.campaign_id = c.campaign_id)",
        ),
    ] {
        let n: i64 = store.query_one(sql, &[]).await?.get(0);
        if n > 0 {
            report.add(kind, format!("{n} {what}"));
        }
    }
    Ok(())
}
