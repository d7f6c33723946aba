//! The account of a whole run: facts against messages, messages against what the receivers counted for themselves.

use super::{DATASET, Parties, by_body};
use crate::outbox;
use crate::recount::{Finding, Kind};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::Client;

/// What differs, once nothing is due any more. Webhooks and events must have come at least once, each under one id; what may not
/// be repeated at most once, and only where the store does not claim more.
///
/// # Errors
/// The store's.
pub async fn account(store: &Client, parties: &Parties) -> anyhow::Result<Vec<Finding>> {
    let mut found = Vec::new();
    told(store, &mut found).await?;
    endings(store, parties, &mut found).await?;
    hook(store, parties, &mut found).await?;
    meta(store, parties, &mut found).await?;
    stub(store, parties, &mut found).await?;
    Ok(found)
}

fn find(found: &mut Vec<Finding>, kind: Kind, what: String) {
    found.push(Finding { kind, what });
}

async fn told(store: &Client, found: &mut Vec<Finding>) -> anyhow::Result<()> {
    let told = outbox::told(store).await?;
    for (i, name) in ["visits", "clicks", "conversions"].into_iter().enumerate() {
        let (facts, said) = (told.facts[i], told.told[i]);
        if facts != said {
            let kind = if said < facts {
                Kind::Loss
            } else {
                Kind::Double
            };
            find(
                found,
                kind,
                format!("outbox: {facts} {name} and {said} messages about them"),
            );
        }
    }
    if told.twice > 0 {
        let what = format!("outbox: {} messages under an id of another", told.twice);
        find(found, Kind::Double, what);
    }
    let due = outbox::due(store).await?;
    if due > 0 {
        find(
            found,
            Kind::Loss,
            format!("outbox: {due} messages are due still"),
        );
    }
    // What is said of a lease that ran out is nobody's answer: its holder, if it stood still, may write down its own behind that.
    let sql = "SELECT count(*) - count(DISTINCT (outbox_id, attempt, code = 'lease_expired')) FROM send_log
               WHERE attempt > 0";
    let twice: i64 = store.query_one(sql, &[]).await?.get(0);
    if twice > 0 {
        find(
            found,
            Kind::Double,
            format!("send_log: {twice} attempts stand there twice"),
        );
    }
    Ok(())
}

async fn endings(
    store: &Client,
    parties: &Parties,
    found: &mut Vec<Finding>,
) -> anyhow::Result<()> {
    for p in &parties.all {
        for (status, n) in outbox::statuses(store, p.no).await? {
            let right = status == "sent" || (p.channel == "stub" && status == "unknown");
            if !right {
                let why = last_words(store, p.no, &status).await?;
                find(
                    found,
                    Kind::Wrong,
                    format!("{}: {n} messages ended {status} ({why})", p.channel),
                );
            }
        }
    }
    Ok(())
}

/// What was said at every attempt of up to three messages that ended so.
async fn last_words(store: &Client, destination: i32, status: &str) -> anyhow::Result<String> {
    let sql = "SELECT o.outbox_id::text || ': ' || string_agg(coalesce(l.code, l.result) || ' at ' || l.sent_at::text, ', ' ORDER BY l.attempt)
               FROM outbox o JOIN send_log l USING (outbox_id) WHERE o.destination_no = $1 AND o.status = $2
               GROUP BY o.outbox_id LIMIT 3";
    let rows = store.query(sql, &[&destination, &status]).await?;
    let all: Vec<String> = rows.iter().map(|r| r.get(0)).collect();
    Ok(all.join("; "))
}

/// Payloads of a destination's messages, with their ids.
async fn messages(store: &Client, destination: i32) -> anyhow::Result<BTreeMap<Vec<u8>, usize>> {
    let sql = "SELECT payload::text FROM outbox WHERE destination_no = $1";
    let mut all = BTreeMap::new();
    for row in store.query(sql, &[&destination]).await? {
        *all.entry(row.get::<_, String>(0).into_bytes()).or_insert(0) += 1;
    }
    Ok(all)
}

async fn hook(store: &Client, parties: &Parties, found: &mut Vec<Finding>) -> anyhow::Result<()> {
    let Some(party) = parties.all.iter().find(|p| p.channel == "webhook") else {
        return Ok(());
    };
    let wanted = messages(store, party.no).await?;
    let came = by_body(parties.hook(), "webhook-id");
    let mut ids: BTreeMap<&str, usize> = BTreeMap::new();
    for (body, under) in &came {
        let distinct: BTreeSet<&str> = under.iter().map(String::as_str).collect();
        // Two messages may say the same words (a status that moves there and back does not, a test's might).
        let may = wanted.get(body).copied().unwrap_or_default();
        let words = String::from_utf8_lossy(body);
        if may == 0 {
            find(
                found,
                Kind::Wrong,
                format!("webhook: nobody has said {words}"),
            );
        } else if distinct.len() > may {
            find(
                found,
                Kind::Double,
                format!("webhook: {words} came under {distinct:?}"),
            );
        } else if distinct.len() < may {
            find(
                found,
                Kind::Loss,
                format!("webhook: {words} came {} times of {may}", distinct.len()),
            );
        }
        for id in distinct {
            *ids.entry(id).or_insert(0) += 1;
        }
    }
    for (id, bodies) in ids.iter().filter(|(_, n)| **n > 1) {
        find(
            found,
            Kind::Wrong,
            format!("webhook: {id} stands for {bodies} messages"),
        );
    }
    for body in wanted.keys().filter(|b| !came.contains_key(*b)) {
        let words = String::from_utf8_lossy(body);
        find(found, Kind::Loss, format!("webhook: {words} never came"));
    }
    Ok(())
}

async fn meta(store: &Client, parties: &Parties, found: &mut Vec<Finding>) -> anyhow::Result<()> {
    let Some(party) = parties.all.iter().find(|p| p.channel == "meta") else {
        return Ok(());
    };
    let sql = "SELECT payload #>> '{event,event_id}', payload #>> '{event,event_name}' FROM outbox WHERE destination_no = $1";
    let mut ids = BTreeSet::new();
    for row in store.query(sql, &[&party.no]).await? {
        let (id, name): (String, String) = (row.get(0), row.get(1));
        if parties.meta().times(DATASET, &name, &id) == 0 {
            find(found, Kind::Loss, format!("meta: event {id} never came"));
        }
        if !ids.insert(id.clone()) {
            find(
                found,
                Kind::Double,
                format!("meta: two messages for event {id}"),
            );
        }
    }
    let unique = parties.meta().counts().unique;
    if unique != ids.len() as u64 {
        let kind = if unique < ids.len() as u64 {
            Kind::Loss
        } else {
            Kind::Double
        };
        find(
            found,
            kind,
            format!("meta: {unique} events came of {}", ids.len()),
        );
    }
    // What was filled in by hand is of no conversion; every approved conversion whose visit was served the pixel fires once.
    let sql = "SELECT count(*) FROM conversions c WHERE status = 'approved' AND EXISTS (
                   SELECT FROM visits v WHERE v.workspace_id = c.workspace_id AND v.click_key = c.click_key
                      AND v.visit_id = c.visit_id AND v.journey::text LIKE '%\"px_1\"%')";
    let fired: i64 = store.query_one(sql, &[]).await?.get(0);
    let wanted = fired + i64::from(party.filled);
    let is = ids.len() as i64;
    if is != wanted {
        let kind = if is < wanted {
            Kind::Loss
        } else {
            Kind::Double
        };
        find(
            found,
            kind,
            format!("meta: {is} events for {wanted} reasons"),
        );
    }
    Ok(())
}

async fn stub(store: &Client, parties: &Parties, found: &mut Vec<Finding>) -> anyhow::Result<()> {
    let Some(party) = parties.all.iter().find(|p| p.channel == "stub") else {
        return Ok(());
    };
    let came = by_body(parties.stub(), "x-millrace-message");
    for (body, times) in came.iter().filter(|(_, ids)| ids.len() > 1) {
        let words = String::from_utf8_lossy(body);
        let what = format!(
            "stub: {words} came {} times, and may never be repeated",
            times.len()
        );
        find(found, Kind::Double, what);
    }
    for id in outbox::in_status(store, party.no, "sent").await? {
        let body = party.payload(id.as_u128() as u32);
        if !came.contains_key(body.as_bytes()) {
            find(
                found,
                Kind::Loss,
                format!("stub: {body} is said to be sent and never came"),
            );
        }
    }
    let all = outbox::statuses(store, party.no).await?;
    let n: i64 = all.values().sum();
    if n != i64::from(party.filled) {
        find(
            found,
            Kind::Loss,
            format!("stub: {n} messages of {}", party.filled),
        );
    }
    Ok(())
}
