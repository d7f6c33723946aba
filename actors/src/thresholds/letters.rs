//! Letters: frames among the dead letters, which may come again. Of each is known whether a later frame of its key has been decided
//! since, by the order of the log; of frames of other keys it says nothing. Pure.

use super::slice::ShardKey;
use hashbrown::HashMap;
use millrace_schemas::ids::RecordId;
use smallvec::SmallVec;
use std::sync::Arc;

/// Letters of a shard that are known. Of one more the oldest is forgotten: it is judged by its shard when it comes.
pub const MOST: usize = 1024;

/// The open letters of one shard. A copy is as good as free until one of the two changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Letters(Option<Arc<Held>>);

/// At least one letter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Held {
    by_key: HashMap<Box<str>, SmallVec<[Letter; 1]>>,
    n: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Letter {
    id: RecordId,
    overtaken: bool,
}

/// What a batch made of letters, for the store.
#[derive(Debug, Default)]
pub struct Turned {
    /// New ones. None of them was overtaken when it was set aside.
    pub buried: Vec<Buried>,
    /// Those that were overtaken, new ones among them.
    pub overtaken: Vec<RecordId>,
    /// Those that were decided or forgotten, new ones among them.
    pub gone: Vec<RecordId>,
}

/// A new letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buried {
    /// Its coordinates.
    pub id: RecordId,
    /// Its shard.
    pub shard: ShardKey,
    /// Its key.
    pub key: Box<str>,
}

impl Letters {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |held| held.n)
    }

    /// Puts a letter in. False: it is there, and stays as it is.
    pub fn put(&mut self, key: &str, id: RecordId, overtaken: bool) -> bool {
        let held = Arc::make_mut(self.0.get_or_insert_default());
        let of_key = held.by_key.entry(key.into()).or_default();
        if of_key.iter().any(|letter| letter.id == id) {
            return false;
        }
        of_key.push(Letter { id, overtaken });
        held.n += 1;
        true
    }

    /// Takes a letter out. Answers whether it was overtaken, if it was there.
    pub fn take(&mut self, key: &str, id: RecordId) -> Option<bool> {
        let held = self.0.as_mut()?;
        let at = held.by_key.get(key)?.iter().position(|l| l.id == id)?;
        let held = Arc::make_mut(held);
        let of_key = held.by_key.get_mut(key)?;
        let letter = of_key.remove(at);
        if of_key.is_empty() {
            held.by_key.remove(key);
        }
        held.n -= 1;
        if held.n == 0 {
            self.0 = None;
        }
        Some(letter.overtaken)
    }

    /// Takes the oldest out where there are more than [`MOST`].
    pub fn bound(&mut self) -> Option<RecordId> {
        let held = self.0.as_ref().filter(|held| held.n > MOST)?;
        let (id, key) = held
            .by_key
            .iter()
            .flat_map(|(key, of_key)| of_key.iter().map(move |letter| (letter.id, key)))
            .min()
            .map(|(id, key)| (id, key.clone()))?;
        self.take(&key, id);
        Some(id)
    }

    /// A frame of a key was decided: the key's letters are overtaken from now on, of a replay those alone that stand before it in the
    /// log. Adds those that were not to `overtaken`.
    pub fn overtake(&mut self, key: &str, replay: Option<RecordId>, overtaken: &mut Vec<RecordId>) {
        let Some(held) = &mut self.0 else {
            return;
        };
        let meant =
            |letter: &Letter| !letter.overtaken && replay.is_none_or(|again| letter.id < again);
        if !held.by_key.get(key).is_some_and(|l| l.iter().any(meant)) {
            return;
        }
        let of_key = Arc::make_mut(held).by_key.get_mut(key);
        for letter in of_key.into_iter().flatten() {
            if meant(letter) {
                letter.overtaken = true;
                overtaken.push(letter.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(offset: i64) -> RecordId {
        RecordId {
            topic_no: 1,
            partition: 0,
            offset,
        }
    }

    #[test]
    fn a_frame_overtakes_the_letters_of_its_key_alone() {
        let mut letters = Letters::default();
        assert!(letters.put("k", id(1), false) && letters.put("k", id(3), false));
        assert!(letters.put("other", id(2), false));
        assert!(!letters.put("k", id(3), true), "it is there");
        let before = letters.clone();
        let mut overtaken = Vec::new();
        letters.overtake("nobody", None, &mut overtaken);
        assert_eq!((&letters, overtaken.len()), (&before, 0));
        letters.overtake("k", None, &mut overtaken);
        assert_eq!(overtaken, [id(1), id(3)]);
        letters.overtake("k", None, &mut overtaken);
        assert_eq!(overtaken.len(), 2, "they were");
        assert_eq!(letters.take("other", id(2)), Some(false));
        assert_eq!(letters.take("k", id(2)), None);
        assert_eq!(letters.take("k", id(1)), Some(true));
        assert_eq!(letters.take("k", id(1)), None);
        assert_eq!(letters.take("k", id(3)), Some(true));
        assert!(letters.is_empty());
        assert_eq!(before.len(), 3, "a copy is another");
    }

    #[test]
    fn a_replay_overtakes_what_stands_before_it_in_the_log() {
        let mut letters = Letters::default();
        for offset in [1, 2, 3] {
            letters.put("k", id(offset), false);
        }
        assert_eq!(letters.take("k", id(2)), Some(false));
        let mut overtaken = Vec::new();
        letters.overtake("k", Some(id(2)), &mut overtaken);
        assert_eq!(overtaken, [id(1)]);
        assert_eq!(letters.take("k", id(3)), Some(false));
        assert_eq!(letters.take("k", id(1)), Some(true));
    }

    #[test]
    fn the_oldest_is_forgotten_where_there_are_too_many() {
        let mut letters = Letters::default();
        for offset in (0..1_000).rev().chain(1_000..1_024) {
            assert!(letters.put(&format!("k{}", offset % 7), id(offset), false));
            assert_eq!(letters.bound(), None);
        }
        letters.put("k", id(5_000), false);
        assert_eq!(letters.bound(), Some(id(0)));
        assert_eq!((letters.len(), letters.bound()), (MOST, None));
        assert_eq!(letters.take("k0", id(0)), None);
        assert_eq!(letters.take("k1", id(1)), Some(false));
    }
}
