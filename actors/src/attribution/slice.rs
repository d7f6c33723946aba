//! The slice: a bounded cache of clicks. Losing it costs a reload, never data.
//!
//! **What need not be asked.** Minted ids carry their time. The slice keeps a *horizon*: everything the store knows of minted
//! ids of that time or later is in the slice. So a visit under a freshly minted id is known to be new without a query; only
//! older and foreign ids are looked up. Evicting an entry raises the horizon past its time; a restart puts it past the
//! greatest time the group ever stored (`positions.mark`).

use hashbrown::HashMap;
use millrace_schemas::click::ClickRecord;
use millrace_schemas::ids::{ClickKey, RecordId};
use millrace_schemas::journey::Journey;
use millrace_schemas::postback::PostbackRecord;
use millrace_schemas::time::Micros;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use uuid::Uuid;

/// Distinct journeys held at most before those no click holds any more are dropped.
const JOURNEYS: usize = 4_096;

/// A visit, as deciding needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenVisit {
    /// Its id.
    pub visit_id: Uuid,
    /// Its campaign.
    pub campaign: Arc<str>,
    /// Its journey, where it had one.
    pub journey: Option<Arc<Journey>>,
}

/// A record that waits.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// Its coordinates.
    pub id: RecordId,
    /// When it was accepted.
    pub accepted_at: Micros,
    /// Until when it waits.
    pub deadline: Micros,
    /// Its original bytes.
    pub payload: Arc<[u8]>,
    /// What it says.
    pub what: Arc<Waits>,
}

/// What waits.
#[derive(Debug)]
pub enum Waits {
    /// A postback.
    Postback(PostbackRecord),
    /// A click or a provider click.
    Click(Box<ClickRecord>),
}

/// All that deciding needs to know of one click id.
#[derive(Debug, Clone, Default)]
pub struct Click {
    /// Visits under it; several in a funnel of several pages.
    pub visits: SmallVec<[SeenVisit; 1]>,
    /// Stages whose click is charged.
    pub stages: SmallVec<[u16; 4]>,
    /// What waits for its visit.
    pub waiting: Vec<Waiting>,
}

/// What the visits of a click say of its journey.
#[derive(Debug)]
pub enum Found<'a> {
    /// One journey that leads to an offer.
    Journey(&'a SeenVisit, &'a Arc<Journey>),
    /// None that does.
    Missing,
    /// Several that credit differently.
    Ambiguous,
}

impl Click {
    /// The journey that conversions of this click are credited by.
    #[must_use]
    pub fn journey(&self) -> Found<'_> {
        let mut found: Option<(&SeenVisit, &Arc<Journey>)> = None;
        for visit in &self.visits {
            let Some(journey) = visit.journey.as_ref().filter(|j| j.offer.is_some()) else {
                continue;
            };
            match found {
                None => found = Some((visit, journey)),
                Some((_, first)) if Arc::ptr_eq(first, journey) || first.credits_like(journey) => {}
                Some(_) => return Found::Ambiguous,
            }
        }
        found.map_or(Found::Missing, |(visit, journey)| {
            Found::Journey(visit, journey)
        })
    }
}

/// The slice.
#[derive(Debug, Default)]
pub struct Slice {
    clicks: HashMap<ClickKey, Click>,
    order: VecDeque<ClickKey>,
    bound: usize,
    horizon: i64,
    journeys: HashMap<Box<str>, Arc<Journey>>,
    campaigns: HashMap<Box<str>, Arc<str>>,
}

impl Slice {
    /// An empty slice holding at most `bound` clicks between batches, where the store knows minted ids up to `mark`.
    #[must_use]
    pub fn new(bound: usize, mark: i64) -> Slice {
        Slice {
            bound,
            horizon: mark.saturating_add(1),
            ..Slice::default()
        }
    }

    /// A click, if it is here.
    #[must_use]
    pub fn get(&self, key: &ClickKey) -> Option<&Click> {
        self.clicks.get(key)
    }

    /// Whether the store must be asked before anything is decided of this key.
    #[must_use]
    pub fn is_cold(&self, key: &ClickKey) -> bool {
        !self.clicks.contains_key(key) && key.minted_millis().is_none_or(|t| t < self.horizon)
    }

    /// Puts a click in, or replaces it.
    pub fn put(&mut self, key: ClickKey, click: Click) {
        if self.clicks.insert(key, click).is_none() {
            self.order.push_back(key);
        }
    }

    /// Evicts down to the bound, oldest first.
    pub fn bound(&mut self) {
        while self.clicks.len() > self.bound {
            let Some(key) = self.order.pop_front() else {
                break;
            };
            self.clicks.remove(&key);
            if let Some(t) = key.minted_millis() {
                self.horizon = self.horizon.max(t.saturating_add(1));
            }
        }
        if self.journeys.len() > JOURNEYS {
            self.journeys
                .retain(|_, journey| Arc::strong_count(journey) > 1);
        }
        if self.campaigns.len() > JOURNEYS {
            self.campaigns
                .retain(|_, campaign| Arc::strong_count(campaign) > 1);
        }
    }

    /// How many clicks are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.clicks.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clicks.is_empty()
    }

    /// Learns a journey's text, so that equal journeys are parsed and held once. False: it is none.
    pub fn learn_journey(&mut self, text: &str) -> bool {
        if self.journeys.contains_key(text) {
            return true;
        }
        match serde_json::from_str::<Journey>(text) {
            Ok(journey) => {
                self.journeys.insert(text.into(), Arc::new(journey));
                true
            }
            Err(_) => false,
        }
    }

    /// A learned journey.
    #[must_use]
    pub fn journey(&self, text: &str) -> Option<Arc<Journey>> {
        self.journeys.get(text).map(Arc::clone)
    }

    /// Learns a campaign's id.
    pub fn learn_campaign(&mut self, id: &str) {
        if !self.campaigns.contains_key(id) {
            self.campaigns.insert(id.into(), id.into());
        }
    }

    /// A campaign's id, shared where it was learned.
    #[must_use]
    pub fn campaign(&self, id: &str) -> Arc<str> {
        self.campaigns.get(id).map_or_else(|| id.into(), Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_schemas::ids;

    fn key(ms: i64) -> ClickKey {
        let id = ids::mint(Micros(ms * 1_000)).expect("random bytes");
        ClickKey {
            workspace: 1,
            key: id,
        }
    }

    #[test]
    fn eviction_raises_the_horizon_and_keeps_the_bound() {
        let mut slice = Slice::new(2, 0);
        let keys: Vec<ClickKey> = (1..=4).map(|t| key(t * 10)).collect();
        for k in &keys {
            assert!(!slice.is_cold(k), "a fresh minted id is known to be new");
            slice.put(*k, Click::default());
        }
        slice.bound();
        assert_eq!(slice.len(), 2);
        assert!(slice.is_cold(&keys[0]) && slice.is_cold(&keys[1]));
        assert!(!slice.is_cold(&keys[2]) && !slice.is_cold(&keys[3]));
        assert!(
            slice.is_cold(&key(20)),
            "as old as what was evicted: may be known to the store"
        );
        assert!(!slice.is_cold(&key(21)));
    }

    #[test]
    fn after_a_restart_only_later_ids_are_new() {
        let slice = Slice::new(10, 500);
        assert!(slice.is_cold(&key(500)));
        assert!(!slice.is_cold(&key(501)));
        assert!(slice.is_cold(&ClickKey::new(1, "foreign")));
    }
}
