//! Decides one record at a time on the overlay. Pure: state and record in, effects out; no clock, no I/O.

use super::draft::{Booking, ClickFact, Draft, Expiring, LogRow, Pending, ProviderClick, Reject};
use super::identity::{Brought, Keys, external_key};
use super::slice::{Click, Found, Slice, Waiting, Waits};
use crate::runtime::vertical::{DeadLetter, Effects};
use millrace_schemas::click::{ClickRecord, Kind};
use millrace_schemas::ids::{self, ClickKey, RecordId};
use millrace_schemas::journey::Role;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::postback::{self, Postback, PostbackRecord, flag};
use millrace_schemas::time::Micros;
use rust_decimal::Decimal;
use std::borrow::Cow;
use std::sync::Arc;

/// A record with the key it is decided under.
#[derive(Debug)]
pub enum Record {
    /// Of topic `clicks`.
    Click(Box<ClickRecord>, ClickKey),
    /// Of topic `postbacks`; no key: it names no click id.
    Postback(Box<PostbackRecord>, Option<ClickKey>),
}

impl Record {
    /// The key, if there is one.
    #[must_use]
    pub fn key(&self) -> Option<ClickKey> {
        match self {
            Record::Click(_, key) => Some(*key),
            Record::Postback(_, key) => *key,
        }
    }
}

/// What waited past its deadline.
#[derive(Debug)]
pub struct Due {
    /// The click.
    pub key: ClickKey,
    /// What waits.
    pub waiting: Waiting,
}

/// Where a record comes from and when.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// First coordinates.
    pub id: RecordId,
    /// Place in the batch, of records that came with it.
    pub index: usize,
    /// Acceptance, clamped.
    pub accepted_at: Micros,
    /// Until when it may wait.
    pub deadline: Micros,
    /// Original bytes.
    pub payload: &'a [u8],
    /// It waited before.
    pub woken: bool,
}

/// Deciding: the slice as it stands, and what this attempt makes of it.
pub struct Deciding<'a> {
    /// The slice.
    pub slice: &'a Slice,
    /// The overlay.
    pub draft: &'a mut Draft,
    /// Outcomes and dead letters.
    pub effects: &'a mut Effects,
}

impl Deciding<'_> {
    fn click(&mut self, key: ClickKey) -> &mut Click {
        self.draft
            .overlay
            .entry(key)
            .or_insert_with(|| self.slice.get(&key).cloned().unwrap_or_default())
    }

    fn ends(&mut self, from: &Origin<'_>, outcome: Outcome, why: &'static str) {
        if from.woken {
            self.effects.tally.settle_parked(from.id, outcome, why);
        } else {
            self.effects.tally.add(from.id, outcome, why, 1);
        }
    }

    /// Decides a record.
    pub fn record(&mut self, record: &Record, from: &Origin<'_>) {
        if let Some(minted) = record.key().and_then(|k| k.minted_millis()) {
            self.effects.mark = self.effects.mark.max(minted);
        }
        match record {
            Record::Click(click, key) => match (click.check_under(*key), click.kind) {
                (Err(why), _) => self.reject(click, from, why),
                (Ok(()), Kind::Visit) => self.visit(click, *key, from),
                (Ok(()), Kind::Click | Kind::ProviderClick) => self.follows(click, *key, from),
            },
            Record::Postback(postback, key) => self.postback(postback, *key, from),
        }
    }

    fn reject(&mut self, record: &ClickRecord, from: &Origin<'_>, why: &'static str) {
        self.ends(from, Outcome::Rejected, why);
        self.draft.rejects.push(Reject {
            workspace: record.workspace,
            id: from.id,
            accepted_at: from.accepted_at,
            kind: match record.kind {
                Kind::Visit => "visit",
                Kind::Click => "click",
                Kind::ProviderClick => "provider_click",
            },
            reason: why,
            click_id: record.click_id.clone(),
            payload: from.payload.to_vec(),
        });
    }

    fn visit(&mut self, record: &ClickRecord, key: ClickKey, from: &Origin<'_>) {
        let (Some(visit_id), Some(campaign)) = (record.visit_id, record.campaign.as_deref()) else {
            return self.reject(record, from, reason::JOURNEY_MALFORMED);
        };
        let journey = match record
            .journey
            .as_deref()
            .map(serde_json::value::RawValue::get)
        {
            None => None,
            Some(text) => match self.slice.journey(text) {
                Some(journey) => Some(journey),
                None => return self.reject(record, from, reason::JOURNEY_MALFORMED),
            },
        };
        let campaign = self.slice.campaign(campaign);
        let click = self.click(key);
        if click.visits.iter().any(|v| v.visit_id == visit_id) {
            return self.ends(from, Outcome::Duplicate, reason::NONE);
        }
        click.visits.push(super::slice::SeenVisit {
            visit_id,
            campaign: Arc::clone(&campaign),
            journey: journey.clone(),
        });
        let charged = record.direct && !click.stages.contains(&record.stage);
        if charged {
            click.stages.push(record.stage);
        }
        let waiting = std::mem::take(&mut click.waiting);
        if charged {
            self.draft.clicks.push(ClickFact {
                key,
                click_id: foreign(key, &record.click_id),
                id: from.id,
                accepted_at: from.accepted_at,
                occurred_at: record.occurred_at,
                stage: record.stage,
                campaign,
                offer: journey
                    .as_ref()
                    .and_then(|j| j.offer.as_ref())
                    .map(|o| o.id.clone()),
            });
        }
        self.draft.visits.push((from.index, journey));
        self.ends(from, Outcome::Applied, reason::NONE);
        self.wake(key, waiting);
    }

    /// Decides again what waited for a visit, in the order of acceptance.
    fn wake(&mut self, key: ClickKey, mut waiting: Vec<Waiting>) {
        waiting.sort_by_key(|w| (w.accepted_at, w.id));
        for waits in waiting {
            self.again(key, waits);
        }
    }

    fn again(&mut self, key: ClickKey, waits: Waiting) {
        let payload = Arc::clone(&waits.payload);
        let what = Arc::clone(&waits.what);
        let from = Origin {
            id: waits.id,
            index: usize::MAX,
            accepted_at: waits.accepted_at,
            deadline: waits.deadline,
            payload: &payload,
            woken: true,
        };
        let done = match &*what {
            Waits::Click(record) => {
                self.follows(record, key, &from);
                true
            }
            Waits::Postback(record) => record
                .read()
                .is_ok_and(|read| self.book(record, &read, key, &from)),
        };
        if done {
            self.draft.unparked.push((key, waits.id));
        } else {
            self.click(key).waiting.push(waits);
        }
    }

    /// A click or provider click: it follows a visit, or waits for it.
    fn follows(&mut self, record: &ClickRecord, key: ClickKey, from: &Origin<'_>) {
        let click = self.click(key);
        let Some(first) = click.visits.first() else {
            if !from.woken {
                self.park(key, from, || Waits::Click(Box::new(record.clone())));
            }
            return;
        };
        let campaign = match record.campaign.as_deref() {
            None => Arc::clone(&first.campaign),
            Some(named) => match click.visits.iter().find(|v| *v.campaign == *named) {
                Some(visit) => Arc::clone(&visit.campaign),
                None => return self.reject(record, from, reason::CAMPAIGN_MISMATCH),
            },
        };
        if record.kind == Kind::ProviderClick {
            return self.provider_click(record, key, from);
        }
        if click.stages.contains(&record.stage) {
            return self.ends(from, Outcome::Duplicate, reason::NONE);
        }
        click.stages.push(record.stage);
        let offer = match click.journey() {
            Found::Journey(_, journey) => journey.offer.as_ref().map(|o| o.id.clone()),
            Found::Missing | Found::Ambiguous => None,
        };
        self.draft.clicks.push(ClickFact {
            key,
            click_id: foreign(key, &record.click_id),
            id: from.id,
            accepted_at: from.accepted_at,
            occurred_at: record.occurred_at,
            stage: record.stage,
            campaign,
            offer,
        });
        self.ends(from, Outcome::Applied, reason::NONE);
    }

    fn provider_click(&mut self, record: &ClickRecord, key: ClickKey, from: &Origin<'_>) {
        let offer = match (
            self.click(key).journey(),
            &record.network,
            &record.network_offer_id,
        ) {
            (Found::Journey(_, journey), Some(network), Some(returned)) => journey
                .credit(network, Some(returned))
                .filter(|c| c.role == Role::Monetization),
            _ => None,
        };
        match offer.map(|credited| credited.offer.to_owned()) {
            // Ambiguous or unmatched: ignored, and the place stays free for a valid one.
            None => self.reject(record, from, reason::PROVIDER_CLICK_UNMATCHED),
            Some(offer) => self
                .draft
                .pending
                .push(Pending::Provider(Box::new(ProviderClick {
                    id: from.id,
                    woken: from.woken,
                    key,
                    network: record.network.clone().unwrap_or_default(),
                    offer,
                    accepted_at: from.accepted_at,
                    txid: record.provider_txid.clone(),
                }))),
        }
    }

    fn park(&mut self, key: ClickKey, from: &Origin<'_>, what: impl FnOnce() -> Waits) {
        let waiting = Waiting {
            id: from.id,
            accepted_at: from.accepted_at,
            deadline: from.deadline,
            payload: from.payload.into(),
            what: Arc::new(what()),
        };
        self.draft.parked.push((key, waiting.clone()));
        self.click(key).waiting.push(waiting);
        self.effects
            .tally
            .add(from.id, Outcome::Parked, reason::NONE, 1);
    }

    fn postback(&mut self, record: &PostbackRecord, key: Option<ClickKey>, from: &Origin<'_>) {
        let (Ok(read), Some(key)) = (record.read(), key) else {
            let why = record.read().err().unwrap_or(reason::CLICK_ID_MISSING);
            self.ends(from, Outcome::Rejected, why);
            self.log(record, key, from, Outcome::Rejected, why);
            return;
        };
        if !self.book(record, &read, key, from) {
            self.log(record, Some(key), from, Outcome::Parked, reason::NONE);
            self.park(key, from, || Waits::Postback(record.clone()));
        }
    }

    fn log(
        &mut self,
        record: &PostbackRecord,
        key: Option<ClickKey>,
        from: &Origin<'_>,
        outcome: Outcome,
        why: &'static str,
    ) {
        self.draft.log.push(LogRow {
            workspace: record.workspace,
            id: from.id,
            accepted_at: from.accepted_at,
            key: key.map(|k| k.key),
            conversion: None,
            outcome,
            reason: why,
            network: record.network.clone(),
            query: (!from.woken).then(|| record.query.clone()),
        });
    }

    /// Makes a booking if the journey is known. False: it must wait.
    fn book(
        &mut self,
        record: &PostbackRecord,
        read: &Postback<'_>,
        key: ClickKey,
        from: &Origin<'_>,
    ) -> bool {
        let click = self.click(key);
        let Found::Journey(visit, journey) = click.journey() else {
            return false;
        };
        let Some(credited) = journey.credit(&record.network, read.offer_id.as_deref()) else {
            return false;
        };
        let keys = Keys::of(&Brought {
            workspace: record.workspace,
            network: &record.network,
            click_id: &read.click_id,
            offer: credited.offer,
            external_id: read.external_id.as_deref(),
            txid: read.txid.as_deref(),
            event: read.event.as_deref(),
            provider_event: read.provider_event.as_deref(),
        });
        let mut flags: Vec<&'static str> = read.flags.to_vec();
        if read.offer_id.is_some() && credited.role == Role::Navigation {
            flags.push(flag::OFFER_ID_UNMATCHED);
        }
        let payout = read.payout.or(credited.payout).unwrap_or(Decimal::ZERO);
        if read.payout.is_none() {
            flags.push(flag::PAYOUT_DEFAULTED);
            if credited.payout.is_none() {
                flags.push(flag::PAYOUT_UNKNOWN);
            }
        }
        let own = |v: &Option<Cow<'_, str>>| v.as_deref().map(str::to_owned);
        let booking = Booking {
            id: from.id,
            woken: from.woken,
            key,
            click_id: foreign(key, &read.click_id),
            keys,
            accepted_at: from.accepted_at,
            occurred_at: record.occurred_at,
            campaign: Arc::clone(&visit.campaign),
            visit_id: visit.visit_id,
            offer: credited.offer.to_owned(),
            role: credited.role,
            network: record.network.clone(),
            external_id: own(&read.external_id),
            txid: own(&read.txid),
            event: own(&read.event),
            provider_event: own(&read.provider_event),
            returned_offer: own(&read.offer_id),
            payout,
            payout_given: read.payout.is_some(),
            currency: credited.currency.unwrap_or("USD").to_owned(),
            status: read.status,
            reversals: record.rules.reversals,
            email_hash: own(&read.email_hash),
            phone_hash: own(&read.phone_hash),
            lead_hash: own(&read.lead_hash),
            flags,
            query: (!from.woken).then(|| record.query.clone()),
        };
        self.draft.pending.push(Pending::Book(Box::new(booking)));
        true
    }

    /// Decides what waited past its deadline: the visit may have come (it is looked for once more), else it expires.
    pub fn due(&mut self, due: &Due) {
        let click = self.click(due.key);
        click.waiting.retain(|w| w.id != due.waiting.id);
        let found = !click.visits.is_empty();
        match &*due.waiting.what {
            Waits::Click(record) => {
                if found {
                    return self.again(due.key, due.waiting.clone());
                }
                self.draft.unparked.push((due.key, due.waiting.id));
                self.expire(&due.waiting, due.key, &record.click_id);
            }
            Waits::Postback(record) => {
                if matches!(click.journey(), Found::Journey(..)) {
                    return self.again(due.key, due.waiting.clone());
                }
                self.draft.unparked.push((due.key, due.waiting.id));
                let external = record.read().ok().and_then(|r| {
                    r.external_id
                        .map(|id| external_key(record.workspace, &record.network, &id))
                });
                self.draft.pending.push(Pending::Expire(Box::new(Expiring {
                    waiting: due.waiting.clone(),
                    key: due.key,
                    external,
                })));
            }
        }
    }

    /// Makes a dead letter of what waited in vain.
    pub fn expire(&mut self, waiting: &Waiting, key: ClickKey, click_id: &str) {
        self.effects.tally.settle_parked(
            waiting.id,
            Outcome::DeadLettered,
            reason::JOURNEY_UNKNOWN,
        );
        self.effects.dead.push(dead_letter(waiting, key, click_id));
    }
}

/// The dead letter of what waited in vain.
#[must_use]
pub fn dead_letter(waiting: &Waiting, key: ClickKey, click_id: &str) -> DeadLetter {
    DeadLetter {
        id: waiting.id,
        workspace: Some(key.workspace),
        key: ids::partition_key(key.workspace, click_id).into_bytes(),
        payload: waiting.payload.to_vec(),
        reason: reason::JOURNEY_UNKNOWN,
        detail: format!("no journey was known by {}", waiting.deadline),
        accepted_at: Some(waiting.accepted_at),
    }
}

/// The click id that a waiting record names.
#[must_use]
pub fn click_id_of(what: &Waits) -> Cow<'_, str> {
    match what {
        Waits::Click(record) => Cow::Borrowed(&record.click_id),
        Waits::Postback(record) => postback::click_id_of(&record.query),
    }
}

/// The text of a foreign click id; a minted one follows from its key.
fn foreign(key: ClickKey, click_id: &str) -> Option<String> {
    key.minted_millis().is_none().then(|| click_id.to_owned())
}
