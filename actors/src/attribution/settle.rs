//! Settles bookings by their claims, in the order of deciding. Pure.
//!
//! A booking whose identity is free stands, and claims every key it carries that is free. One whose identity is known is a
//! duplicate, or a status step of the conversion that holds it. Attribution stays the first click's; booked values never
//! change, but for the status, and the payout that an approving receipt brings.

use super::decide::{click_id_of, dead_letter};
use super::draft::{
    Booking, Change, Claims, Draft, Expiring, Firing, HistoryRow, KeyFix, LogRow, Owner, Pending,
};
use crate::runtime::vertical::Effects;
use hashbrown::HashMap;
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::postback::Status;
use rust_decimal::Decimal;
use uuid::Uuid;

/// A conversion during settling.
struct Conversion {
    owner: Owner,
    /// Its place among the draft's new bookings.
    new: Option<usize>,
}

struct Settling {
    conversions: Vec<Conversion>,
    held: HashMap<Uuid, usize>,
}

/// Settles everything that is pending.
pub fn settle(draft: &mut Draft, effects: &mut Effects) {
    let Claims {
        taken,
        held,
        owners,
        provider,
    } = std::mem::take(&mut draft.claims);
    let conversions = owners
        .into_iter()
        .map(|owner| Conversion { owner, new: None })
        .collect();
    let mut state = Settling { conversions, held };
    let mut free_places = provider;
    for pending in std::mem::take(&mut draft.pending) {
        match pending {
            Pending::Book(booking) => state.book(draft, effects, *booking),
            Pending::Expire(expiring) => state.expire(draft, effects, &expiring),
            Pending::Provider(click) => {
                let place = free_places.iter().position(|id| *id == click.id);
                let (outcome, why) = match place {
                    Some(at) => {
                        free_places.swap_remove(at);
                        (Outcome::Applied, reason::PROVIDER_CLICK)
                    }
                    None => (Outcome::Duplicate, reason::NONE),
                };
                ends(effects, click.id, click.woken, outcome, why);
                if outcome == Outcome::Applied {
                    draft.provider.push(*click);
                }
            }
        }
    }
    let mut fixes: Vec<KeyFix> = taken
        .iter()
        .filter_map(|(key, inserted_for)| {
            match state
                .held
                .get(key)
                .and_then(|at| state.conversions.get(*at))
            {
                None => Some(KeyFix::Delete(*key)),
                Some(c) if c.owner.conversion != *inserted_for => Some(KeyFix::Repoint(
                    *key,
                    c.owner.conversion,
                    c.owner.accepted_at,
                )),
                Some(_) => None,
            }
        })
        .collect();
    fixes.sort_unstable_by_key(|fix| match fix {
        KeyFix::Repoint(key, ..) | KeyFix::Delete(key) => *key,
    });
    draft.fixes = fixes;
}

fn ends(effects: &mut Effects, id: RecordId, woken: bool, outcome: Outcome, why: &'static str) {
    if woken {
        effects.tally.settle_parked(id, outcome, why);
    } else {
        effects.tally.add(id, outcome, why, 1);
    }
}

impl Settling {
    /// The conversion that this booking's identity belongs to; and whether its external id attaches to it.
    fn known(&self, booking: &Booking) -> Option<(usize, bool)> {
        let by = |key: Option<Uuid>| key.and_then(|k| self.held.get(&k).copied());
        let keys = &booking.keys;
        if keys.external.is_none() {
            return by(keys.txid)
                .or_else(|| by(keys.click))
                .map(|at| (at, false));
        }
        if let Some(at) = by(keys.external) {
            return Some((at, false));
        }
        // A retry after the network's callback was upgraded: the transaction is booked, without an external id.
        let at = by(keys.txid)?;
        let bare = self
            .conversions
            .get(at)
            .is_some_and(|c| c.owner.external_id.is_none());
        bare.then_some((at, true))
    }

    fn book(&mut self, draft: &mut Draft, effects: &mut Effects, booking: Booking) {
        let (conversion, outcome, why) = match self.known(&booking) {
            None => (booking.id.to_uuid(), Outcome::Applied, reason::NONE),
            Some((at, attaches)) => {
                if attaches {
                    self.attach(draft, &booking, at);
                }
                let (outcome, why) = self.step(draft, &booking, at);
                let found = self
                    .conversions
                    .get(at)
                    .map_or(Uuid::nil(), |c| c.owner.conversion);
                (found, outcome, why)
            }
        };
        ends(effects, booking.id, booking.woken, outcome, why);
        draft.log.push(LogRow {
            workspace: booking.key.workspace,
            id: booking.id,
            accepted_at: booking.accepted_at,
            key: Some(booking.key.key),
            conversion: Some(conversion),
            outcome,
            reason: why,
            network: booking.network.clone(),
            query: booking.query.clone(),
        });
        if conversion != booking.id.to_uuid() {
            return;
        }
        let at = self.conversions.len();
        self.conversions.push(Conversion {
            owner: Owner {
                conversion,
                accepted_at: booking.accepted_at,
                status: Some(booking.status),
                payout: booking.payout,
                external_id: booking.external_id.clone(),
            },
            new: Some(draft.booked.len()),
        });
        for key in booking.keys.iter() {
            self.held.entry(key).or_insert(at);
        }
        draft.firings.push(Firing {
            workspace: booking.key.workspace,
            conversion,
            accepted_at: booking.accepted_at,
            cause: booking.id,
            at: booking.occurred_at.unwrap_or(booking.accepted_at),
            before: None,
            status: booking.status,
            payout: booking.payout,
            minted_millis: booking.key.minted_millis(),
        });
        draft.booked.push(booking);
    }

    fn attach(&mut self, draft: &mut Draft, booking: &Booking, at: usize) {
        let Some(found) = self.conversions.get_mut(at) else {
            return;
        };
        found.owner.external_id.clone_from(&booking.external_id);
        if let Some(key) = booking.keys.external {
            self.held.insert(key, at);
        }
        match found.new {
            Some(new) => {
                if let Some(row) = draft.booked.get_mut(new) {
                    row.external_id.clone_from(&booking.external_id);
                }
            }
            None => {
                if let Some(change) = change_of(draft, &found.owner) {
                    change.external_id.clone_from(&booking.external_id);
                }
            }
        }
    }

    /// What the status of a known identity's receipt does to it.
    fn step(&mut self, draft: &mut Draft, booking: &Booking, at: usize) -> (Outcome, &'static str) {
        let Some(found) = self.conversions.get_mut(at) else {
            return (Outcome::Duplicate, reason::NONE);
        };
        let Some(old) = found.owner.status else {
            return (Outcome::Duplicate, reason::NONE);
        };
        let new = booking.status;
        let applies = match (old, new) {
            _ if old == new => return (Outcome::Duplicate, reason::NONE),
            (Status::Pending, Status::Approved | Status::Rejected) => true,
            (Status::Approved, Status::Rejected) => booking.reversals,
            _ => false,
        };
        if !applies {
            return (Outcome::Duplicate, reason::STATUS_CONFLICT);
        }
        let approves = old == Status::Pending && new == Status::Approved;
        let payout: Decimal = if approves && booking.payout_given {
            booking.payout
        } else {
            found.owner.payout
        };
        draft.history.push(HistoryRow {
            workspace: booking.key.workspace,
            conversion: found.owner.conversion,
            id: booking.id,
            old: (old, found.owner.payout),
            new: (new, payout),
        });
        draft.firings.push(Firing {
            workspace: booking.key.workspace,
            conversion: found.owner.conversion,
            accepted_at: found.owner.accepted_at,
            cause: booking.id,
            at: booking.occurred_at.unwrap_or(booking.accepted_at),
            before: Some(old),
            status: new,
            payout,
            // The receipt may have come under another click id than the conversion's.
            minted_millis: None,
        });
        match found.new {
            Some(place) => {
                if let Some(row) = draft.booked.get_mut(place) {
                    row.status = new;
                    row.payout = payout;
                }
            }
            None => {
                if let Some(change) = change_of(draft, &found.owner) {
                    change.status = new;
                    change.payout = payout;
                }
            }
        }
        found.owner.status = Some(new);
        found.owner.payout = payout;
        (Outcome::Applied, reason::STATUS_CHANGED)
    }

    fn expire(&mut self, draft: &mut Draft, effects: &mut Effects, expiring: &Expiring) {
        let waiting = &expiring.waiting;
        let booked = expiring
            .external
            .and_then(|key| self.held.get(&key).copied());
        let (outcome, why) = match booked {
            Some(_) => (Outcome::Duplicate, reason::NONE),
            None => (Outcome::DeadLettered, reason::JOURNEY_UNKNOWN),
        };
        effects.tally.settle_parked(waiting.id, outcome, why);
        if booked.is_none() {
            let click_id = click_id_of(&waiting.what);
            effects
                .dead
                .push(dead_letter(waiting, expiring.key, &click_id));
        }
        let network = match &*waiting.what {
            super::slice::Waits::Postback(record) => record.network.clone(),
            super::slice::Waits::Click(_) => return,
        };
        draft.log.push(LogRow {
            workspace: expiring.key.workspace,
            id: waiting.id,
            accepted_at: waiting.accepted_at,
            key: Some(expiring.key.key),
            conversion: booked
                .and_then(|at| self.conversions.get(at))
                .map(|c| c.owner.conversion),
            outcome,
            reason: why,
            network,
            query: None,
        });
    }
}

/// The change row of a conversion that the store had before; made at first need from how it was found.
fn change_of<'d>(draft: &'d mut Draft, owner: &Owner) -> Option<&'d mut Change> {
    let status = owner.status?;
    Some(
        draft
            .changes
            .entry(owner.conversion)
            .or_insert_with(|| Change {
                owner: owner.clone(),
                status,
                payout: owner.payout,
                external_id: None,
            }),
    )
}
