//! What gates 6 to 8 remember: as the store had it when the batch locked it, with what the open batch has claimed on top. Gates look
//! first and claim last: a message that a later gate refuses has claimed nothing of an earlier one.

use super::hour::Hour;
use super::slice::Cooldowns;
use hashbrown::{HashMap, HashSet};
use millrace_schemas::time::Micros;
use uuid::Uuid;

/// The ledger of one attempt at a batch.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Hours of rules, locked.
    hours: HashMap<Uuid, Hour>,
    /// Rules whose hours have changed.
    counted: HashSet<Uuid>,
    /// Cooldowns: when each key fired last.
    cooldowns: HashMap<Uuid, Micros>,
    /// Those that this batch has moved.
    cooled: HashMap<Uuid, Micros>,
    /// Sent keys that exist.
    sent: HashSet<Uuid>,
    /// Those of this batch, with their messages.
    told: Vec<(Uuid, Uuid)>,
}

impl Ledger {
    /// A rule's hour was read.
    pub fn hour_is(&mut self, key: Uuid, hour: Hour) {
        self.hours.insert(key, hour);
    }

    /// A key fired last at that moment.
    pub fn cooldown_is(&mut self, key: Uuid, at: Micros) {
        self.cooldowns.insert(key, at);
    }

    /// A key was sent.
    pub fn is_sent(&mut self, key: Uuid) {
        self.sent.insert(key);
    }

    /// Takes what is known hot; answers the keys that the store must be asked for.
    pub fn warm(&mut self, slice: &Cooldowns, keys: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
        let mut cold = Vec::new();
        for key in keys {
            if self.cooldowns.contains_key(&key) {
                continue;
            }
            match slice.get(key) {
                Some(at) => {
                    self.cooldowns.insert(key, at);
                }
                None => cold.push(key),
            }
        }
        cold.sort_unstable();
        cold.dedup();
        cold
    }

    /// Gate 6: whether the rule's rolling hour has room. A rule whose hour was not read has none.
    pub fn has_room(&mut self, key: Uuid, wall: Micros, cap: i64) -> bool {
        let Some(hour) = self.hours.get_mut(&key) else {
            return false;
        };
        hour.turn(wall);
        hour.sent() < cap
    }

    /// Gate 7: whether the key has cooled.
    #[must_use]
    pub fn has_cooled(&self, key: Uuid, stream: Micros, cooldown_s: i64) -> bool {
        self.cooldowns
            .get(&key)
            .is_none_or(|at| at.plus_secs(cooldown_s) <= stream)
    }

    /// Gate 8: whether the key was sent.
    #[must_use]
    pub fn was_sent(&self, key: Uuid) -> bool {
        self.sent.contains(&key)
    }

    /// A message passed all gates: claims what it needs of them.
    pub fn claim(
        &mut self,
        hour: Uuid,
        cooldown: Option<Uuid>,
        sent: Uuid,
        message: Uuid,
        stream: Micros,
    ) {
        if let Some(counted) = self.hours.get_mut(&hour) {
            counted.add();
            self.counted.insert(hour);
        }
        if let Some(key) = cooldown {
            self.cooldowns.insert(key, stream);
            self.cooled.insert(key, stream);
        }
        self.sent.insert(sent);
        self.told.push((sent, message));
    }

    /// Hours that changed, by key.
    #[must_use]
    pub fn changed_hours(&self) -> Vec<(Uuid, &Hour)> {
        let found = |key: &Uuid| self.hours.get(key).map(|h| (*key, h));
        let mut all: Vec<_> = self.counted.iter().filter_map(found).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    /// Cooldowns that this batch moved, by key.
    #[must_use]
    pub fn cooled(&self) -> Vec<(Uuid, Micros)> {
        let mut all: Vec<_> = self.cooled.iter().map(|(k, at)| (*k, *at)).collect();
        all.sort_unstable();
        all
    }

    /// Keys sent by this batch, with their messages.
    #[must_use]
    pub fn told(&self) -> &[(Uuid, Uuid)] {
        &self.told
    }
}
