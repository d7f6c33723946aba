//! The slice: a bounded cache of what trackers remember, and what is known of the shards: the windows of their frames and their
//! letters. Losing it costs a reload.

use super::letters::Letters;
use hashbrown::{Equivalent, HashMap};
use millrace_schemas::frame::ReplayWindow;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What a tracker saw last, as canonical JSON text ([`super::tracker::canonical`]).
pub type Memory = Box<str>;

/// Whose memory: a mapping of the plan, and a key of a shard of a workspace.
///
/// Shard and key stand in one text behind one pointer: where a key is compared, each text of its own would be one more place of memory
/// that is waited for, and those waits were a fifth of what a mapped frame cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateKey {
    /// The mapping's number in the plan.
    pub mapping: u32,
    /// The workspace's number.
    pub workspace: i32,
    /// How much of the text is the shard's id, in bytes.
    shard: usize,
    /// The shard's id and the key.
    place: Arc<str>,
}

/// A [`StateKey`] that owns nothing.
#[derive(Debug, Clone, Copy)]
pub struct StateRef<'a> {
    /// The mapping's number in the plan.
    pub mapping: u32,
    /// The workspace's number.
    pub workspace: i32,
    /// The shard's id.
    pub shard: &'a str,
    /// The key.
    pub key: &'a str,
}

impl StateRef<'_> {
    /// One that owns its texts.
    #[must_use]
    pub fn owned(&self) -> StateKey {
        StateKey {
            mapping: self.mapping,
            workspace: self.workspace,
            shard: self.shard.len(),
            place: [self.shard, self.key].concat().into(),
        }
    }
}

impl StateKey {
    /// The same, borrowed.
    #[must_use]
    pub fn borrowed(&self) -> StateRef<'_> {
        // It was put together of the two, so it can be cut there.
        let (shard, key) = self.place.split_at_checked(self.shard).unwrap_or_default();
        StateRef {
            mapping: self.mapping,
            workspace: self.workspace,
            shard,
            key,
        }
    }
}

impl Hash for StateRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.mapping.hash(state);
        self.workspace.hash(state);
        self.shard.hash(state);
        self.key.hash(state);
    }
}

impl Hash for StateKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.borrowed().hash(state);
    }
}

impl Equivalent<StateKey> for StateRef<'_> {
    fn equivalent(&self, key: &StateKey) -> bool {
        let place = key.place.as_bytes();
        self.mapping == key.mapping
            && self.workspace == key.workspace
            && self.shard.len() == key.shard
            && place.strip_prefix(self.shard.as_bytes()) == Some(self.key.as_bytes())
    }
}

/// A shard of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardKey {
    /// The workspace's number.
    pub workspace: i32,
    /// The shard's id.
    pub shard: Box<str>,
}

/// A [`ShardKey`] that owns nothing.
#[derive(Debug, Clone, Copy, Hash)]
pub struct ShardRef<'a> {
    /// The workspace's number.
    pub workspace: i32,
    /// The shard's id.
    pub shard: &'a str,
}

impl ShardRef<'_> {
    /// One that owns its text.
    #[must_use]
    pub fn owned(&self) -> ShardKey {
        ShardKey {
            workspace: self.workspace,
            shard: self.shard.into(),
        }
    }
}

impl Equivalent<ShardKey> for ShardRef<'_> {
    fn equivalent(&self, key: &ShardKey) -> bool {
        self.workspace == key.workspace && *self.shard == *key.shard
    }
}

/// What is known of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shard {
    /// Which of its frames were decided.
    pub window: ReplayWindow,
    /// Its open letters.
    pub letters: Letters,
    /// Frames were decided by a program that marks no letters: all that were there are overtaken, which the store does not say yet.
    pub doubted: bool,
}

/// The slice of one partition.
#[derive(Debug, Default)]
pub struct Slice {
    /// None: the store knows nothing of it either.
    memories: HashMap<StateKey, Option<Memory>>,
    order: VecDeque<StateKey>,
    bound: usize,
    shards: HashMap<ShardKey, Shard>,
}

impl Slice {
    /// An empty slice that holds at most `bound` memories between batches.
    #[must_use]
    pub fn new(bound: usize) -> Slice {
        Slice {
            bound,
            ..Slice::default()
        }
    }

    /// What is remembered, if that is here; `Some(None)`: nothing, and the store knows no more.
    #[must_use]
    pub fn memory(&self, key: &StateRef<'_>) -> Option<Option<&str>> {
        self.memories.get(key).map(|memory| memory.as_deref())
    }

    /// Puts a memory in, or replaces it.
    pub fn remember(&mut self, key: StateKey, memory: Option<Memory>) {
        if self.memories.insert(key.clone(), memory).is_none() {
            self.order.push_back(key);
        }
    }

    /// Evicts down to the bound, oldest first.
    pub fn bound(&mut self) {
        while self.memories.len() > self.bound {
            let Some(key) = self.order.pop_front() else {
                break;
            };
            self.memories.remove(&key);
        }
    }

    /// Drops all memories; the shards stay, since what is known of them is of frames and not of mappings.
    pub fn forget_memories(&mut self) {
        self.memories.clear();
        self.order.clear();
    }

    /// How many memories are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memories.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memories.is_empty()
    }

    /// What is known of a shard, if that is here.
    #[must_use]
    pub fn shard(&self, shard: &ShardRef<'_>) -> Option<&Shard> {
        self.shards.get(shard)
    }

    /// Puts a shard in, or replaces it. Shards are few and are never evicted.
    pub fn put_shard(&mut self, key: ShardKey, shard: Shard) {
        self.shards.insert(key, shard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> StateKey {
        StateRef {
            mapping: n % 3,
            workspace: 1,
            shard: "atlantic",
            key: &format!("0x{n}"),
        }
        .owned()
    }

    #[test]
    fn what_is_known_to_be_nothing_is_held_too_and_the_bound_is_kept() {
        let mut slice = Slice::new(2);
        for n in 0..5 {
            let memory = (n % 2 == 0).then(|| "true".into());
            slice.remember(key(n), memory);
        }
        slice.bound();
        assert_eq!(slice.len(), 2);
        assert_eq!(slice.memory(&key(2).borrowed()), None);
        assert_eq!(slice.memory(&key(3).borrowed()), Some(None));
        assert_eq!(slice.memory(&key(4).borrowed()), Some(Some("true")));
        slice.remember(key(4), Some("false".into()));
        assert_eq!(slice.len(), 2);
        assert_eq!(slice.memory(&key(4).borrowed()), Some(Some("false")));
    }

    #[test]
    fn two_shards_or_workspaces_never_share_a_key() {
        let mut slice = Slice::new(10);
        slice.remember(key(1), Some("1".into()));
        let same = key(1);
        for (workspace, shard) in [(2, "atlantic"), (1, "pacific")] {
            let other = StateRef {
                workspace,
                shard,
                ..same.borrowed()
            };
            assert_eq!(slice.memory(&other), None);
        }
        slice.put_shard(
            ShardRef {
                workspace: 1,
                shard: "atlantic",
            }
            .owned(),
            Shard::default(),
        );
        let other = ShardRef {
            workspace: 1,
            shard: "pacific",
        };
        assert!(slice.shard(&other).is_none());
    }

    #[test]
    fn shard_and_key_are_two_names_though_they_stand_in_one_text() {
        let of = |shard, key| StateRef {
            mapping: 1,
            workspace: 1,
            shard,
            key,
        };
        let mut slice = Slice::new(10);
        slice.remember(of("ab", "cd").owned(), Some("1".into()));
        assert_eq!(slice.memory(&of("ab", "cd")), Some(Some("1")));
        for (shard, key) in [
            ("abc", "d"),
            ("a", "bcd"),
            ("", "abcd"),
            ("abcd", ""),
            ("ab", "ce"),
        ] {
            assert_eq!(slice.memory(&of(shard, key)), None);
            assert_ne!(of(shard, key).owned(), of("ab", "cd").owned());
        }
        assert_eq!(of("ab", "cd").owned().borrowed().shard, "ab");
        assert_eq!(of("ab", "cd").owned().borrowed().key, "cd");
    }
}
