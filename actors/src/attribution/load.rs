//! Loads clicks that the slice lacks: one round for a whole batch, by `= ANY`.

use super::decide::{Due, Record};
use super::slice::{Click, SeenVisit, Slice, Waiting, Waits};
use crate::postgres::types::Tz;
use crate::runtime::core::needs_newer;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::Item;
use hashbrown::{HashMap, HashSet};
use millrace_schemas::click::{ClickRecord, Kind};
use millrace_schemas::ids::{ClickKey, FUTURE_SKEW_SECS, RecordId};
use millrace_schemas::postback::PostbackRecord;
use millrace_schemas::time::Micros;
use millrace_schemas::{WIRE_VERSION, wire_version};
use std::sync::Arc;
use uuid::Uuid;

/// A visit is accepted at most this long before the time inside its minted click id, in seconds: a door that is ahead mints ahead,
/// and an acceptance ahead of the clock here is clamped to it. So two clocks may be a day apart, at the price of one day's
/// partition more for a cold click; what is due is looked for in all of them, whatever the clocks said.
const EARLIEST_BEFORE_MINT_SECS: i64 = 86_400 + 2 * FUTURE_SKEW_SECS + 60;

/// The earliest that a visit can have been accepted whose click id was minted at this time, in milliseconds since 1970.
pub(super) fn earliest_visit(minted_millis: i64) -> Micros {
    Micros(minted_millis.saturating_mul(1_000)).plus_secs(-EARLIEST_BEFORE_MINT_SECS)
}

const VISITS: &str =
    "SELECT click_key, workspace_id, visit_id, campaign_id, journey::text FROM visits
     WHERE click_key = ANY($1) AND accepted_at >= $2 ORDER BY accepted_at, record_id";
const CLICKS: &str = "SELECT click_key, workspace_id, stage FROM clicks
     WHERE click_key = ANY($1) AND accepted_at >= $2";
const PARKED: &str =
    "SELECT click_key, workspace_id, record_id, accepted_at, deadline, kind, payload FROM parked
     WHERE click_key = ANY($1)";
/// What is due in one partition of the group, oldest deadline first.
pub const DUE: &str =
    "SELECT click_key, workspace_id, record_id, accepted_at, deadline, kind, payload FROM parked
     WHERE deadline <= $1 AND hash % $2 = $3 ORDER BY deadline, accepted_at LIMIT 500";

/// Learns what the records name, and loads every click that is cold; those of `due` always, so that a visit is looked for
/// once more.
///
/// # Errors
/// The store's.
pub async fn load(
    slice: &mut Slice,
    session: &Session,
    items: &[Item<Record>],
    due: &[Due],
) -> Result<(), Failure> {
    let cold = learn(slice, items);
    let last: HashSet<ClickKey> = due.iter().map(|d| d.key).collect();
    let asked = cold.union(&last).count();
    if asked == 0 {
        return Ok(());
    }
    metrics::counter!("attribution_cold_clicks_total").increment(u64::try_from(asked).unwrap_or(0));
    // Minted ids bound the days that must be looked at; foreign ones may lie anywhere, and what is due is asked for the last time.
    let (minted, mut anywhere): (Vec<ClickKey>, Vec<ClickKey>) = cold
        .difference(&last)
        .partition(|k| k.minted_millis().is_some());
    anywhere.extend(&last);
    let earliest = minted
        .iter()
        .filter_map(ClickKey::minted_millis)
        .min()
        .unwrap_or(0);
    let since = earliest_visit(earliest);
    fetch(slice, session, &minted, since).await?;
    fetch(slice, session, &anywhere, Micros(0)).await
}

/// Learns the journeys and campaigns that the records name; answers the keys that the store must be asked about.
pub fn learn(slice: &mut Slice, items: &[Item<Record>]) -> HashSet<ClickKey> {
    let mut cold = HashSet::new();
    for item in items {
        if let Record::Click(record, _) = &item.record
            && record.kind == Kind::Visit
        {
            if let Some(journey) = &record.journey {
                slice.learn_journey(journey.get());
            }
            if let Some(campaign) = &record.campaign {
                slice.learn_campaign(campaign);
            }
        }
        if let Some(key) = item.record.key()
            && slice.is_cold(&key)
        {
            cold.insert(key);
        }
    }
    cold
}

async fn fetch(
    slice: &mut Slice,
    session: &Session,
    keys: &[ClickKey],
    since: Micros,
) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut ids: Vec<Uuid> = keys.iter().map(|k| k.key).collect();
    ids.sort_unstable();
    ids.dedup();
    let since = Tz(since);
    let (by_time, by_key): ([&(dyn tokio_postgres::types::ToSql + Sync); 2], _) = (
        [&ids, &since],
        [&ids as &(dyn tokio_postgres::types::ToSql + Sync)],
    );
    let (visits, clicks, parked) = futures::try_join!(
        session.query(VISITS, &by_time),
        session.query(CLICKS, &by_time),
        session.query(PARKED, &by_key),
    )?;
    let mut found: HashMap<ClickKey, Click> = keys.iter().map(|k| (*k, Click::default())).collect();
    let key = |row: &tokio_postgres::Row| ClickKey {
        key: row.get(0),
        workspace: row.get(1),
    };
    for row in &visits {
        let Some(click) = found.get_mut(&key(row)) else {
            continue;
        };
        let campaign: &str = row.get(3);
        slice.learn_campaign(campaign);
        let journey = row.get::<_, Option<&str>>(4).and_then(|text| {
            slice.learn_journey(text);
            slice.journey(text)
        });
        let visit_id = row.get(2);
        click.visits.push(SeenVisit {
            visit_id,
            campaign: slice.campaign(campaign),
            journey,
        });
    }
    for row in &clicks {
        if let Some(click) = found.get_mut(&key(row)) {
            click.stages.push(row.get::<_, i16>(2).cast_unsigned());
        }
    }
    for row in &parked {
        if let Some(click) = found.get_mut(&key(row)) {
            click.waiting.extend(waiting(row)?);
        }
    }
    for (key, click) in found {
        slice.put(key, click);
    }
    Ok(())
}

/// Reads a row of `parked`.
///
/// # Errors
/// Its payload is no record: the build that wrote it was another.
fn waiting(row: &tokio_postgres::Row) -> Result<Option<Waiting>, Failure> {
    let payload: &[u8] = row.get(6);
    let id = RecordId::from_uuid(row.get(2));
    // A newer build may have parked it before this one was put back.
    if let Some(version) = wire_version(payload).filter(|v| *v > u64::from(WIRE_VERSION)) {
        return Err(Failure::Stop(needs_newer(version, &format!("parked {id}"))));
    }
    // The category alone: the message could quote a contact.
    let read = |e: serde_json::Error| {
        Failure::Stop(format!(
            "parked record {id} cannot be read: {:?} at column {}",
            e.classify(),
            e.column()
        ))
    };
    let what = match row.get::<_, &str>(5) {
        "postback" => {
            Waits::Postback(serde_json::from_slice::<PostbackRecord>(payload).map_err(read)?)
        }
        _ => Waits::Click(Box::new(
            serde_json::from_slice::<ClickRecord>(payload).map_err(read)?,
        )),
    };
    Ok(Some(Waiting {
        id,
        accepted_at: row.get::<_, Tz>(3).0,
        deadline: row.get::<_, Tz>(4).0,
        payload: payload.into(),
        what: Arc::new(what),
    }))
}

/// What is due by `stream` in this partition, at most 500 of it.
///
/// # Errors
/// The store's.
pub async fn due(
    session: &Session,
    stream: Micros,
    partitions: i32,
    partition: i32,
) -> Result<Vec<Due>, Failure> {
    let rows = session
        .query(DUE, &[&Tz(stream), &partitions, &partition])
        .await?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        let key = ClickKey {
            key: row.get(0),
            workspace: row.get(1),
        };
        all.extend(waiting(row)?.map(|waiting| Due { key, waiting }));
    }
    all.sort_by_key(|d| (d.waiting.accepted_at, d.waiting.id));
    Ok(all)
}

/// The earliest deadline in this partition.
///
/// # Errors
/// The store's.
pub async fn next_deadline(
    session: &Session,
    partitions: i32,
    partition: i32,
) -> Result<Option<Micros>, Failure> {
    let rows = session
        .query(
            "SELECT min(deadline) FROM parked WHERE hash % $1 = $2",
            &[&partitions, &partition],
        )
        .await?;
    Ok(rows
        .first()
        .and_then(|r| r.get::<_, Option<Tz>>(0))
        .map(|t| t.0))
}
