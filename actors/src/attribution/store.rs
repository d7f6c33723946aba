//! The SQL of attribution's writes: claims on identities, and facts in bulk.

use super::decide::{Record, click_id_of};
use super::draft::{Claims, Draft, KeyFix, Owner, Pending};
use super::slice::Waits;
use crate::postgres::copy::Rows;
use crate::postgres::types::Tz;
use crate::runtime::failpoint;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::{Item, item_at};
use hashbrown::HashMap;
use millrace_schemas::ids::{self, ClickKey};
use millrace_schemas::postback::Status;
use millrace_schemas::time::Now;
use millrace_topics::partitioner;
use rust_decimal::Decimal;
use uuid::Uuid;

/// Fact tables that are partitioned by day.
pub const FACT_TABLES: &[&str] = &["visits", "clicks", "conversions", "postback_log", "rejects"];

/// Claims every key that a booking brought, in sorted order, and reads and locks the conversions that hold the rest. A key
/// wanted twice goes to the one decided first.
///
/// Keys come before rows, both sorted: a transaction that waits for a key holds no row, so no two can wait for each other.
///
/// # Errors
/// The store's.
pub async fn claim(session: &Session, draft: &mut Draft) -> Result<(), Failure> {
    let mut wanted: Vec<(Uuid, Uuid, Tz)> = Vec::new();
    let mut asked: Vec<Uuid> = Vec::new();
    for pending in &draft.pending {
        match pending {
            Pending::Book(b) => wanted.extend(
                b.keys
                    .iter()
                    .map(|key| (key, b.id.to_uuid(), Tz(b.accepted_at))),
            ),
            Pending::Expire(e) => asked.extend(e.external),
            Pending::Provider(_) => {}
        }
    }
    let mut claims = Claims::default();
    if !failpoint::sabotaged("claim") {
        // Stable: of equal keys the one decided first stays.
        wanted.sort_by_key(|(key, ..)| *key);
        wanted.dedup_by_key(|(key, ..)| *key);
        claims.taken = take(session, &wanted).await?;
        asked.extend(
            wanted
                .iter()
                .map(|w| w.0)
                .filter(|key| !claims.taken.contains_key(key)),
        );
        asked.sort_unstable();
        asked.dedup();
        if !asked.is_empty() {
            read_owners(session, &asked, &mut claims).await?;
        }
    }
    claim_provider(session, draft, &mut claims).await?;
    draft.claims = claims;
    Ok(())
}

async fn take(
    session: &Session,
    wanted: &[(Uuid, Uuid, Tz)],
) -> Result<HashMap<Uuid, Uuid>, Failure> {
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    let keys: Vec<Uuid> = wanted.iter().map(|w| w.0).collect();
    let conversions: Vec<Uuid> = wanted.iter().map(|w| w.1).collect();
    let times: Vec<Tz> = wanted.iter().map(|w| w.2).collect();
    let rows = session
        .query(
            "INSERT INTO conversion_keys (key, conversion_id, accepted_at)
             SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[])
             ON CONFLICT DO NOTHING RETURNING key, conversion_id",
            &[&keys, &conversions, &times],
        )
        .await?;
    Ok(rows.iter().map(|r| (r.get(0), r.get(1))).collect())
}

async fn read_owners(
    session: &Session,
    asked: &[Uuid],
    claims: &mut Claims,
) -> Result<(), Failure> {
    let rows = session
        .query(
            "SELECT key, conversion_id, accepted_at FROM conversion_keys WHERE key = ANY($1)",
            &[&asked],
        )
        .await?;
    let mut by_conversion: HashMap<Uuid, usize> = HashMap::new();
    for row in &rows {
        let (key, conversion, at): (Uuid, Uuid, Tz) = (row.get(0), row.get(1), row.get(2));
        let index = *by_conversion.entry(conversion).or_insert_with(|| {
            claims.owners.push(Owner {
                conversion,
                accepted_at: at.0,
                status: None,
                payout: Decimal::ZERO,
                external_id: None,
            });
            claims.owners.len() - 1
        });
        claims.held.insert(key, index);
    }
    let conversions: Vec<Uuid> = claims.owners.iter().map(|o| o.conversion).collect();
    let times: Vec<Tz> = claims.owners.iter().map(|o| Tz(o.accepted_at)).collect();
    let locked = session
        .query(
            "SELECT c.conversion_id, c.status, c.payout, c.external_id
             FROM unnest($1::uuid[], $2::timestamptz[]) AS k(id, at)
             JOIN conversions c ON c.conversion_id = k.id AND c.accepted_at = k.at
             ORDER BY c.conversion_id FOR NO KEY UPDATE OF c",
            &[&conversions, &times],
        )
        .await?;
    for row in &locked {
        let owner = by_conversion
            .get(&row.get::<_, Uuid>(0))
            .and_then(|at| claims.owners.get_mut(*at));
        if let Some(owner) = owner {
            owner.status = Status::from_name(row.get(1));
            owner.payout = row.get::<_, Decimal>(2);
            owner.external_id = row.get(3);
        }
    }
    Ok(())
}

async fn claim_provider(
    session: &Session,
    draft: &Draft,
    claims: &mut Claims,
) -> Result<(), Failure> {
    for pending in &draft.pending {
        let Pending::Provider(p) = pending else {
            continue;
        };
        let made = session
            .execute(
                "INSERT INTO provider_clicks (workspace_id, click_key, network_id, offer_id, record_id,
                        accepted_at, provider_txid)
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
                &[
                    &p.key.workspace,
                    &p.key.key,
                    &p.network,
                    &p.offer,
                    &p.id.to_uuid(),
                    &Tz(p.accepted_at),
                    &p.txid,
                ],
            )
            .await?;
        if made == 1 {
            claims.provider.push(p.id);
        }
    }
    Ok(())
}

/// Facts of one table: its COPY, and the rows that a draft makes for it.
pub struct Facts {
    /// The statement.
    pub copy: &'static str,
    /// The rows.
    pub rows: fn(&Draft, &[Item<Record>], Now) -> Rows,
}

/// The tables that a batch writes to without asking what stands there, in the order of writing.
pub const FACTS: [Facts; 7] = [
    Facts {
        copy: VISITS,
        rows: |draft, items, _| visits(draft, items),
    },
    Facts {
        copy: CLICKS,
        rows: |draft, _, _| clicks(draft),
    },
    Facts {
        copy: CONVERSIONS,
        rows: |draft, _, now| conversions(draft, now),
    },
    Facts {
        copy: LOG,
        rows: |draft, _, now| log(draft, now),
    },
    Facts {
        copy: REJECTS,
        rows: |draft, _, _| rejects(draft),
    },
    Facts {
        copy: PARKED,
        rows: |draft, _, _| parked(draft),
    },
    Facts {
        copy: HISTORY,
        rows: |draft, _, now| history(draft, now),
    },
];

/// Writes everything the draft stands for.
///
/// # Errors
/// The store's.
pub async fn write(
    session: &Session,
    draft: &Draft,
    items: &[Item<Record>],
    now: Now,
) -> Result<(), Failure> {
    // One after the other: sent behind one another, a refused COPY leaves the session in its aborted transaction for the next
    // attempt too, which the tests of poison caught. But while the server works on one, the next one's rows are put together.
    let rows_at = |at: usize| {
        let facts: Option<&Facts> = FACTS.get(at);
        facts.map(|f| (f.rows)(draft, items, now))
    };
    let mut rows = rows_at(0);
    for (at, facts) in FACTS.iter().enumerate() {
        let ready = rows.take().unwrap_or_default();
        let (_, next) = session
            .copy_while(facts.copy, ready, || rows_at(at + 1))
            .await?;
        rows = next;
    }
    unpark(session, draft).await?;
    change(session, draft, now).await?;
    mend_keys(session, draft).await
}

const VISITS: &str = "COPY visits (workspace_id, click_key, visit_id, record_id, accepted_at, occurred_at, stage, direct,
     click_id, campaign_id, offer_id, ip, ip_hash, user_agent, source_url, fbp, fbc, params, journey) FROM STDIN BINARY";

fn visits(draft: &Draft, items: &[Item<Record>]) -> Rows {
    let mut rows = Rows::new();
    for (index, journey) in &draft.visits {
        let found = item_at(items, *index);
        let Some(Item {
            id,
            accepted_at,
            record: Record::Click(r, key),
            ..
        }) = found
        else {
            continue;
        };
        let foreign = key.minted_millis().is_none();
        rows.row(19)
            .i32(r.workspace)
            .uuid(key.key)
            .uuid(r.visit_id.unwrap_or_default());
        rows.uuid(id.to_uuid())
            .time(*accepted_at)
            .opt_time(r.occurred_at);
        rows.i16(r.stage.cast_signed()).bool(r.direct);
        rows.opt_text(foreign.then_some(r.click_id.as_str()));
        rows.text(r.campaign.as_deref().unwrap_or_default());
        rows.opt_text(
            journey
                .as_ref()
                .and_then(|j| j.offer.as_ref())
                .map(|o| o.id.as_str()),
        );
        rows.opt_text(r.ip.as_deref()).opt_uuid(r.ip_hash);
        rows.opt_text(r.user_agent.as_deref())
            .opt_text(r.source_url.as_deref());
        rows.opt_text(r.fbp.as_deref()).opt_text(r.fbc.as_deref());
        rows.opt_text(r.params.as_deref().map(serde_json::value::RawValue::get));
        rows.opt_text(r.journey.as_deref().map(serde_json::value::RawValue::get));
    }
    rows
}

const CLICKS: &str =
    "COPY clicks (workspace_id, click_key, record_id, accepted_at, occurred_at, stage, click_id,
     campaign_id, offer_id) FROM STDIN BINARY";

fn clicks(draft: &Draft) -> Rows {
    let mut rows = Rows::new();
    for c in &draft.clicks {
        rows.row(9)
            .i32(c.key.workspace)
            .uuid(c.key.key)
            .uuid(c.id.to_uuid());
        rows.time(c.accepted_at)
            .opt_time(c.occurred_at)
            .i16(c.stage.cast_signed());
        rows.opt_text(c.click_id.as_deref())
            .text(&c.campaign)
            .opt_text(c.offer.as_deref());
    }
    rows
}

const CONVERSIONS: &str = "COPY conversions (workspace_id, conversion_id, click_key, accepted_at, occurred_at, booked_at,
     click_id, campaign_id, visit_id, offer_id, role, network_id, external_id, txid, event, provider_event, returned_offer,
     payout, currency, status, status_at, email_hash, phone_hash, lead_hash, flags) FROM STDIN BINARY";

fn conversions(draft: &Draft, now: Now) -> Rows {
    let mut rows = Rows::new();
    for b in &draft.booked {
        rows.row(25)
            .i32(b.key.workspace)
            .uuid(b.id.to_uuid())
            .uuid(b.key.key);
        rows.time(b.accepted_at)
            .opt_time(b.occurred_at)
            .time(now.stream);
        rows.opt_text(b.click_id.as_deref())
            .text(&b.campaign)
            .uuid(b.visit_id)
            .text(&b.offer);
        rows.text(b.role.name()).text(&b.network);
        rows.opt_text(b.external_id.as_deref())
            .opt_text(b.txid.as_deref());
        rows.opt_text(b.event.as_deref())
            .opt_text(b.provider_event.as_deref());
        rows.opt_text(b.returned_offer.as_deref())
            .decimal(b.payout)
            .text(&b.currency);
        rows.text(b.status.name()).time(now.stream);
        rows.opt_text(b.email_hash.as_deref())
            .opt_text(b.phone_hash.as_deref());
        rows.opt_text(b.lead_hash.as_deref())
            .text(&b.flags.join(","));
    }
    rows
}

const LOG: &str = "COPY postback_log (workspace_id, record_id, accepted_at, decided_at, click_key, conversion_id, outcome,
     reason, network_id, query) FROM STDIN BINARY";

fn log(draft: &Draft, now: Now) -> Rows {
    let mut rows = Rows::new();
    for l in &draft.log {
        rows.row(10)
            .i32(l.workspace)
            .uuid(l.id.to_uuid())
            .time(l.accepted_at)
            .time(now.stream);
        rows.opt_uuid(l.key)
            .opt_uuid(l.conversion)
            .i16(l.outcome.code())
            .text(l.reason);
        rows.text(&l.network).opt_text(l.query.as_deref());
    }
    rows
}

const REJECTS: &str = "COPY rejects (workspace_id, record_id, accepted_at, kind, reason, click_id, payload) FROM STDIN BINARY";

fn rejects(draft: &Draft) -> Rows {
    let mut rows = Rows::new();
    for r in &draft.rejects {
        rows.row(7)
            .i32(r.workspace)
            .uuid(r.id.to_uuid())
            .time(r.accepted_at);
        // A NUL is what may have been wrong with it; `payload` keeps it.
        rows.text(r.kind)
            .text(r.reason)
            .text(&r.click_id.replace('\0', "\u{fffd}"))
            .bytes(&r.payload);
    }
    rows
}

const PARKED: &str = "COPY parked (workspace_id, click_key, record_id, hash, accepted_at, deadline, kind, click_id, payload)
     FROM STDIN BINARY";

fn parked(draft: &Draft) -> Rows {
    let mut rows = Rows::new();
    for (ClickKey { workspace, key }, w) in &draft.parked {
        let click_id = click_id_of(&w.what);
        let hash = partitioner::hash(ids::partition_key(*workspace, &click_id).as_bytes());
        rows.row(9)
            .i32(*workspace)
            .uuid(*key)
            .uuid(w.id.to_uuid())
            .i32(hash);
        rows.time(w.accepted_at).time(w.deadline);
        rows.text(match &*w.what {
            Waits::Postback(_) => "postback",
            Waits::Click(_) => "click",
        });
        rows.text(&click_id).bytes(&w.payload);
    }
    rows
}

const HISTORY: &str = "COPY conversion_history (workspace_id, conversion_id, changed_at, record_id, old_status, new_status,
     old_payout, new_payout) FROM STDIN BINARY";

fn history(draft: &Draft, now: Now) -> Rows {
    let mut rows = Rows::new();
    for h in &draft.history {
        rows.row(8)
            .i32(h.workspace)
            .uuid(h.conversion)
            .time(now.stream)
            .uuid(h.id.to_uuid());
        rows.text(h.old.0.name())
            .text(h.new.0.name())
            .decimal(h.old.1)
            .decimal(h.new.1);
    }
    rows
}

async fn unpark(session: &Session, draft: &Draft) -> Result<(), Failure> {
    if draft.unparked.is_empty() {
        return Ok(());
    }
    let keys: Vec<Uuid> = draft.unparked.iter().map(|(k, _)| k.key).collect();
    let ids: Vec<Uuid> = draft.unparked.iter().map(|(_, id)| id.to_uuid()).collect();
    session
        .execute(
            "DELETE FROM parked p USING unnest($1::uuid[], $2::uuid[]) AS u(key, id)
             WHERE p.click_key = u.key AND p.record_id = u.id",
            &[&keys, &ids],
        )
        .await?;
    Ok(())
}

async fn change(session: &Session, draft: &Draft, now: Now) -> Result<(), Failure> {
    if draft.changes.is_empty() {
        return Ok(());
    }
    let mut columns: (Vec<Uuid>, Vec<Tz>, Vec<&str>, Vec<&str>) = Default::default();
    let (mut payouts, mut externals) = (Vec::new(), Vec::new());
    for (conversion, change) in &draft.changes {
        columns.0.push(*conversion);
        columns.1.push(Tz(change.owner.accepted_at));
        columns.2.push(change.owner.status.map_or("", Status::name));
        columns.3.push(change.status.name());
        payouts.push(change.payout);
        externals.push(change.external_id.as_deref());
    }
    let found = session
        .query(
            "UPDATE conversions c SET status = u.new, payout = u.payout,
                    status_at = CASE WHEN u.old = u.new THEN c.status_at ELSE $7 END,
                    external_id = coalesce(c.external_id, u.external)
             FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::numeric[], $6::text[])
                  AS u(id, at, old, new, payout, external)
             WHERE c.conversion_id = u.id AND c.accepted_at = u.at AND c.status = u.old
             RETURNING c.conversion_id",
            &[
                &columns.0,
                &columns.1,
                &columns.2,
                &columns.3,
                &payouts,
                &externals,
                &Tz(now.stream),
            ],
        )
        .await?;
    if found.len() != draft.changes.len() {
        // The rows are locked since the claims; who changed them did it without the lock.
        return Err(Failure::RolledBack(
            "a conversion's status moved under its lock".to_owned(),
        ));
    }
    Ok(())
}

async fn mend_keys(session: &Session, draft: &Draft) -> Result<(), Failure> {
    for fix in &draft.fixes {
        match fix {
            KeyFix::Repoint(key, conversion, at) => {
                session
                    .execute(
                        "UPDATE conversion_keys SET conversion_id = $2, accepted_at = $3 WHERE key = $1",
                        &[key, conversion, &Tz(*at)],
                    )
                    .await?;
            }
            KeyFix::Delete(key) => {
                session
                    .execute("DELETE FROM conversion_keys WHERE key = $1", &[key])
                    .await?;
            }
        }
    }
    Ok(())
}
