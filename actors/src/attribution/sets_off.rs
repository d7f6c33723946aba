//! What a batch's facts set off: messages into the outbox, in the batch's own transaction. Which events set off what is
//! `delivery::triggers`' to say; this reads the facts that a message is made of and freezes it.

use super::decide::Record;
use super::draft::{Draft, Firing};
use super::load;
use crate::delivery::meta::event::{self, DataProcessing, Occasion};
use crate::delivery::outbox::{self, Message, id_of};
use crate::delivery::triggers::{Audience, Event, Whom};
use crate::postgres::types::Tz;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::{Item, item_at};
use hashbrown::{HashMap, HashSet};
use millrace_schemas::ids::{self, ClickKey, RecordId};
use millrace_schemas::journey::Journey;
use millrace_schemas::time::{Micros, Now};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use uuid::Uuid;

/// Writes everything that the draft's facts set off. After the facts: it reads them.
///
/// # Errors
/// The store's.
pub async fn write(
    session: &Session,
    audience: &Audience,
    draft: &Draft,
    items: &[Item<Record>],
    now: Now,
) -> Result<(), Failure> {
    if audience.is_empty() {
        return Ok(());
    }
    let mut messages = Vec::new();
    visits(audience, draft, items, now, &mut messages);
    clicks(audience, draft, now, &mut messages);
    conversions(session, audience, draft, now, &mut messages).await?;
    if !messages.is_empty() {
        outbox::write(session, &messages, now.wall).await?;
    }
    Ok(())
}

/// A webhook's message. The `type` is the name that the endpoint listens to.
struct Telling<'a> {
    workspace: i32,
    click_id: &'a str,
    cause: RecordId,
    at: Micros,
    data: &'a Value,
}

fn tell(whom: &Whom, event: Event, telling: &Telling<'_>, now: Now, messages: &mut Vec<Message>) {
    for (listener, name) in whom.listeners(event) {
        let payload = json!({
            "type": name,
            "timestamp": telling.at.rfc3339(),
            "workspace": whom.slug,
            "data": telling.data,
        });
        messages.push(Message {
            id: id_of(
                telling.at,
                telling.cause,
                "webhook",
                listener.destination,
                name,
            ),
            workspace: telling.workspace,
            channel: "webhook",
            destination: listener.destination,
            subject_key: Some(telling.click_id.to_owned()),
            scope_key: None,
            dedupe_key: None,
            payload: payload.to_string(),
            cause: telling.cause,
            due_at: now.stream,
            refused: None,
        });
    }
}

fn text_of(key: &ClickKey, foreign: Option<&str>) -> String {
    foreign.map_or_else(|| key.minted_text().unwrap_or_default(), str::to_owned)
}

fn visits(
    audience: &Audience,
    draft: &Draft,
    items: &[Item<Record>],
    now: Now,
    messages: &mut Vec<Message>,
) {
    for (index, journey) in &draft.visits {
        let found = item_at(items, *index);
        let Some(Item {
            id,
            accepted_at,
            record: Record::Click(r, _),
            ..
        }) = found
        else {
            continue;
        };
        let Some(whom) = audience.of(r.workspace).filter(|w| w.hears(Event::Visit)) else {
            continue;
        };
        let offer = journey.as_ref().and_then(|j| j.offer.as_ref());
        let data = json!({
            "click_id": r.click_id,
            "visit_id": r.visit_id.map(ids::encode),
            "campaign": r.campaign,
            "stage": r.stage,
            "direct": r.direct,
            "offer": offer.map(|o| &o.id),
            "accepted_at": accepted_at.rfc3339(),
            "occurred_at": r.occurred_at.map(Micros::rfc3339),
        });
        let telling = Telling {
            workspace: r.workspace,
            click_id: &r.click_id,
            cause: *id,
            at: r.occurred_at.unwrap_or(*accepted_at),
            data: &data,
        };
        tell(whom, Event::Visit, &telling, now, messages);
    }
}

fn clicks(audience: &Audience, draft: &Draft, now: Now, messages: &mut Vec<Message>) {
    for c in &draft.clicks {
        let Some(whom) = audience
            .of(c.key.workspace)
            .filter(|w| w.hears(Event::Click))
        else {
            continue;
        };
        let click_id = text_of(&c.key, c.click_id.as_deref());
        let data = json!({
            "click_id": click_id,
            "campaign": c.campaign,
            "stage": c.stage,
            "offer": c.offer,
            "accepted_at": c.accepted_at.rfc3339(),
            "occurred_at": c.occurred_at.map(Micros::rfc3339),
        });
        let telling = Telling {
            workspace: c.key.workspace,
            click_id: &click_id,
            cause: c.id,
            at: c.occurred_at.unwrap_or(c.accepted_at),
            data: &data,
        };
        tell(whom, Event::Click, &telling, now, messages);
    }
}

/// A conversion's facts with those of its visit, as booked.
struct Fact {
    click_id: String,
    accepted_at: Micros,
    occurred_at: Option<Micros>,
    campaign: String,
    visit_id: Uuid,
    offer: String,
    role: String,
    network: String,
    external_id: Option<String>,
    txid: Option<String>,
    event: Option<String>,
    currency: String,
    email_hash: Option<String>,
    phone_hash: Option<String>,
    lead_hash: Option<String>,
    visit: Option<VisitFact>,
}

struct VisitFact {
    accepted_at: Micros,
    ip: Option<String>,
    user_agent: Option<String>,
    source_url: Option<String>,
    fbp: Option<String>,
    fbc: Option<String>,
    fbclid: Option<String>,
    journey: Option<String>,
}

const FACTS: &str = "
SELECT c.conversion_id, c.click_key, c.workspace_id, c.click_id, c.accepted_at, c.occurred_at, c.campaign_id, c.visit_id,
       c.offer_id, c.role, c.network_id, c.external_id, c.txid, c.event, c.currency, c.email_hash, c.phone_hash, c.lead_hash,
       v.accepted_at, v.ip, v.user_agent, v.source_url, v.fbp, v.fbc, v.fbclid, v.journey
FROM unnest($1::uuid[], $2::timestamptz[]) AS f(id, at)
JOIN conversions c ON c.conversion_id = f.id AND c.accepted_at = f.at
LEFT JOIN LATERAL (
    SELECT v.accepted_at, v.ip, v.user_agent, v.source_url, v.fbp, v.fbc, v.params ->> 'fbclid' AS fbclid,
           v.journey::text AS journey
    FROM visits v
    WHERE v.click_key = c.click_key AND v.workspace_id = c.workspace_id AND v.visit_id = c.visit_id AND v.accepted_at >= $3
    ORDER BY v.accepted_at LIMIT 1
) v ON true";

async fn conversions(
    session: &Session,
    audience: &Audience,
    draft: &Draft,
    now: Now,
    messages: &mut Vec<Message>,
) -> Result<(), Failure> {
    let heard: Vec<(&Firing, &Whom)> = draft
        .firings
        .iter()
        .filter_map(|f| Some((f, audience.of(f.workspace)?)))
        .filter(|(f, whom)| events_of(f).iter().any(|e| whom.hears(*e)))
        .collect();
    if heard.is_empty() {
        return Ok(());
    }
    let facts = read(session, &heard).await?;
    for (firing, whom) in heard {
        let Some(fact) = facts.get(&firing.conversion) else {
            return Err(Failure::Stop(
                "a conversion of this batch is not to be found".to_owned(),
            ));
        };
        for event in events_of(firing) {
            if whom.fires_campaign_pixels(event) {
                fire_pixels(whom, firing, fact, now, messages);
            }
            if whom.listeners(event).next().is_some() {
                let data = data_of(firing, fact);
                let telling = Telling {
                    workspace: firing.workspace,
                    click_id: &fact.click_id,
                    cause: firing.cause,
                    at: firing.at,
                    data: &data,
                };
                tell(whom, event, &telling, now, messages);
            }
        }
    }
    Ok(())
}

fn events_of(firing: &Firing) -> Vec<Event> {
    let mut events = vec![match firing.before {
        None => Event::ConversionBooked,
        Some(_) => Event::ConversionMoved,
    }];
    if firing.first_approved() {
        events.push(Event::FirstApproved);
    }
    events
}

fn data_of(firing: &Firing, fact: &Fact) -> Value {
    json!({
        "conversion_id": ids::encode(firing.conversion),
        "click_id": fact.click_id,
        "visit_id": ids::encode(fact.visit_id),
        "campaign": fact.campaign,
        "offer": fact.offer,
        "role": fact.role,
        "network": fact.network,
        "external_conversion_id": fact.external_id,
        "txid": fact.txid,
        "event": fact.event,
        "status": firing.status.name(),
        "previous_status": firing.before.map(|s| s.name()),
        "payout": firing.payout.normalize().to_string(),
        "currency": fact.currency,
        "accepted_at": fact.accepted_at.rfc3339(),
        "occurred_at": fact.occurred_at.map(Micros::rfc3339),
    })
}

async fn read(
    session: &Session,
    heard: &[(&Firing, &Whom)],
) -> Result<HashMap<Uuid, Fact>, Failure> {
    let wanted: HashMap<Uuid, Micros> = heard
        .iter()
        .map(|(f, _)| (f.conversion, f.accepted_at))
        .collect();
    let (conversions, times): (Vec<Uuid>, Vec<Tz>) =
        wanted.into_iter().map(|(id, at)| (id, Tz(at))).unzip();
    // Minted click ids bound the days that must be looked at; a foreign one may lie anywhere.
    let since = draft_since(heard);
    let rows = session
        .query(FACTS, &[&conversions, &times, &Tz(since)])
        .await?;
    let mut facts = HashMap::with_capacity(rows.len());
    for row in &rows {
        let key = ClickKey {
            key: row.get(1),
            workspace: row.get(2),
        };
        let visit = row.get::<_, Option<Tz>>(18).map(|at| VisitFact {
            accepted_at: at.0,
            ip: row.get(19),
            user_agent: row.get(20),
            source_url: row.get(21),
            fbp: row.get(22),
            fbc: row.get(23),
            fbclid: row.get(24),
            journey: row.get(25),
        });
        let fact = Fact {
            click_id: text_of(&key, row.get(3)),
            accepted_at: row.get::<_, Tz>(4).0,
            occurred_at: row.get::<_, Option<Tz>>(5).map(|t| t.0),
            campaign: row.get(6),
            visit_id: row.get(7),
            offer: row.get(8),
            role: row.get(9),
            network: row.get(10),
            external_id: row.get(11),
            txid: row.get(12),
            event: row.get(13),
            currency: row.get(14),
            email_hash: row.get(15),
            phone_hash: row.get(16),
            lead_hash: row.get(17),
            visit,
        };
        facts.insert(row.get(0), fact);
    }
    Ok(facts)
}

fn draft_since(heard: &[(&Firing, &Whom)]) -> Micros {
    let mut since = Micros(i64::MAX);
    for (firing, _) in heard {
        match firing.minted_millis {
            Some(ms) => since = since.min(load::earliest_visit(ms)),
            None => return Micros(0),
        }
    }
    since
}

/// Fires the pixels of the served journey: each once, whatever it is listed as.
fn fire_pixels(whom: &Whom, firing: &Firing, fact: &Fact, now: Now, messages: &mut Vec<Message>) {
    let Some(visit) = &fact.visit else { return };
    let journey: Option<Journey> = visit
        .journey
        .as_deref()
        .and_then(|text| serde_json::from_str(text).ok());
    let Some(journey) = journey else { return };
    let mut fired: HashSet<String> = HashSet::new();
    for attached in journey.pixel_attachments() {
        let Some(pixel) = whom.pixels.get(&attached.pixel) else {
            continue;
        };
        if !attached.is_set_off_by(fact.event.as_deref()) || !fired.insert(attached.pixel.clone()) {
            continue;
        }
        let node = format!("campaign:{}", attached.pixel);
        let currency = attached.currency.as_deref().or(pixel.currency.as_deref());
        let (value, refused) = worth(attached.amount, firing.payout, currency, &fact.currency);
        let limited: Option<DataProcessing> = pixel
            .data_processing
            .clone()
            .and_then(|v| serde_json::from_value(v).ok());
        let event_id = event_id(firing.workspace, "conversion", &node, firing.conversion);
        let frozen = event::freeze(&Occasion {
            dataset: &pixel.dataset,
            event_id: &event_id,
            event_name: attached.event.as_deref().unwrap_or(&pixel.event_name),
            event_time: firing.at.0.div_euclid(1_000_000),
            // A wall clock that has stepped back makes nothing lie in the future that the stream has seen.
            now: now.wall.max(now.stream).0.div_euclid(1_000_000),
            action_source: &pixel.action_source,
            event_source_url: visit.source_url.as_deref(),
            client_user_agent: visit.user_agent.as_deref(),
            client_ip: visit.ip.as_deref(),
            fbp: visit.fbp.as_deref(),
            fbc: visit.fbc.as_deref(),
            fbclid: visit.fbclid.as_deref(),
            clicked_ms: Some(visit.accepted_at.millis()),
            email_hash: fact.email_hash.as_deref(),
            phone_hash: fact.phone_hash.as_deref(),
            lead_hash: fact.lead_hash.as_deref(),
            click_id: Some(&fact.click_id),
            value: Some(value),
            currency,
            order_id: fact.txid.as_deref(),
            data_processing: limited.as_ref(),
        });
        messages.push(Message {
            id: id_of(firing.at, firing.cause, "meta", pixel.destination, &node),
            workspace: firing.workspace,
            channel: "meta",
            destination: pixel.destination,
            subject_key: Some(fact.click_id.clone()),
            scope_key: None,
            dedupe_key: Some(event_id.clone()),
            payload: frozen.payload,
            cause: firing.cause,
            due_at: now.stream,
            refused: refused.or(frozen.refused),
        });
    }
}

/// What an event is worth: the node's own number, 0 included, else the payout; that in the payout's currency alone.
fn worth(
    own: Option<Decimal>,
    payout: Decimal,
    currency: Option<&str>,
    paid_in: &str,
) -> (Decimal, Option<&'static str>) {
    match own {
        Some(amount) => (amount, None),
        None => {
            let other = currency.is_some_and(|c| !c.eq_ignore_ascii_case(paid_in));
            (payout, other.then_some("currency_mismatch"))
        }
    }
}

/// The event's id at the platform: the same whenever the same activity fires the same node.
fn event_id(workspace: i32, trigger: &str, node: &str, activity: Uuid) -> String {
    let digest = ids::digest(
        "platform event",
        &[
            &workspace.to_be_bytes(),
            trigger.as_bytes(),
            node.as_bytes(),
            activity.as_bytes(),
        ],
    );
    format!("pxe_{}", ids::encode(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_node_s_or_the_payout_in_its_own_currency() {
        let (payout, own) = (Decimal::new(1250, 2), Decimal::ZERO);
        assert_eq!(worth(Some(own), payout, Some("EUR"), "USD"), (own, None));
        assert_eq!(worth(None, payout, Some("usd"), "USD"), (payout, None));
        assert_eq!(worth(None, payout, None, "USD"), (payout, None));
        assert_eq!(
            worth(None, payout, Some("EUR"), "USD"),
            (payout, Some("currency_mismatch"))
        );
    }

    #[test]
    fn an_event_s_id_tells_activities_and_nodes_apart() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let id = event_id(1, "conversion", "campaign:px_1", one);
        assert!(id.starts_with("pxe_") && id.len() == 30);
        assert_eq!(id, event_id(1, "conversion", "campaign:px_1", one));
        for other in [
            event_id(2, "conversion", "campaign:px_1", one),
            event_id(1, "lead", "campaign:px_1", one),
            event_id(1, "conversion", "campaign:px_2", one),
            event_id(1, "conversion", "campaign:px_1", two),
        ] {
            assert_ne!(id, other);
        }
    }
}
