//! Cooldowns held hot: a bounded cache of what the store knows. Nobody else writes these keys, so what is here is true; what is
//! not here is asked for.

use hashbrown::HashMap;
use millrace_schemas::time::Micros;
use uuid::Uuid;

/// A key in 16 bytes that lie on eight: an entry takes 24, where a 128-bit number would take 32.
type Key = [u64; 2];

fn key(id: Uuid) -> Key {
    let (high, low) = id.as_u64_pair();
    [high, low]
}

/// The cooldowns of one partition, at most about `bound` of them. Two halves: what is touched goes into the young one; when that is
/// full it becomes the old one, and what was old is forgotten.
#[derive(Debug, Default)]
pub struct Cooldowns {
    young: HashMap<Key, i64>,
    old: HashMap<Key, i64>,
    bound: usize,
}

impl Cooldowns {
    /// Holds at most `bound` keys.
    #[must_use]
    pub fn new(bound: usize) -> Cooldowns {
        Cooldowns {
            bound: bound.max(2),
            ..Cooldowns::default()
        }
    }

    /// When the key fired last, if it is known here.
    #[must_use]
    pub fn get(&self, id: Uuid) -> Option<Micros> {
        let key = key(id);
        let found = self.young.get(&key).or_else(|| self.old.get(&key));
        found.map(|at| Micros(*at))
    }

    /// It fired.
    pub fn put(&mut self, id: Uuid, at: Micros) {
        if self.young.len() >= self.bound / 2 && !self.young.contains_key(&key(id)) {
            // The old half's room is used again.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key(id), at.0);
    }

    /// Keys held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the tables have allocated.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.young.allocation_size() + self.old.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_forgets_the_oldest() {
        let mut cooldowns = Cooldowns::new(1_000);
        let id =
            |n: u128| Uuid::from_u128(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834));
        for n in 0..10_000 {
            cooldowns.put(id(n), Micros(n as i64));
            assert!(cooldowns.len() <= 1_000);
        }
        assert_eq!(cooldowns.get(id(0)), None);
        assert_eq!(cooldowns.get(id(9_999)), Some(Micros(9_999)));
        assert_eq!(cooldowns.get(id(9_500)), Some(Micros(9_500)));
        // A later one replaces an earlier one, wherever that stands.
        cooldowns.put(id(9_500), Micros(1));
        assert_eq!(cooldowns.get(id(9_500)), Some(Micros(1)));
    }
}
