//! The feeds of this process: one live feed a shard, told when another takes its place, ended together at shutdown; and how
//! far each is, written down once a second (`standing`).
//!
//! **A second feed takes over, and the first is told** (`bye`, `taken_over`). Refusing the second would lock a shard out for
//! as long as a dead connection looks alive, and a sidecar that reconnects is the common case. The second waits until what
//! the first had under way is settled, so that it is welcomed with the right sequence.

use super::standing;
use crate::postgres::Pool;
use hashbrown::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How often positions and counts are written.
const EVERY: Duration = Duration::from_secs(1);
/// How long the store may take for a hello.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
/// Kinds that are counted by name, a shard.
const MAX_KINDS: usize = 200;

/// A shard: its workspace's number and its id there.
pub(super) type Key = (i32, Box<str>);

/// Frames of one kind since they were written down last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KindCount {
    pub mapped: u64,
    pub unmapped: u64,
    pub refused: u64,
}

/// Counts by kind; `` stands for those beyond [`MAX_KINDS`] and for what has none.
#[derive(Clone, Debug, Default)]
pub(super) struct KindCounts(pub HashMap<String, KindCount>);

impl KindCounts {
    /// The count of a kind.
    pub fn of(&mut self, kind: &str) -> &mut KindCount {
        let kind = if self.0.len() < MAX_KINDS || self.0.contains_key(kind) {
            kind
        } else {
            ""
        };
        self.0.entry_ref(kind).or_default()
    }

    fn add(&mut self, other: &KindCounts) {
        for (kind, n) in &other.0 {
            let at = self.of(kind);
            at.mapped += n.mapped;
            at.unmapped += n.unmapped;
            at.refused += n.refused;
        }
    }
}

/// How far a feed is.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    /// Its number in the store; none: the store was away at its hello.
    pub session: Option<i64>,
    pub boot: String,
    pub seq: u64,
    pub connected: bool,
    /// Whether a number is being asked for: until it is known, the old one says nothing.
    pub claiming: bool,
    /// Whether it changed since it was written.
    pub moved: bool,
    pub kinds: KindCounts,
}

struct Live {
    id: u64,
    tell: watch::Sender<bool>,
    gone: watch::Receiver<()>,
    standing: Arc<Mutex<Standing>>,
}

/// The feeds of a process.
pub struct Feeds {
    live: Mutex<HashMap<Key, Live>>,
    /// Where feeds of this process ended: with the store away it is all that is known.
    last: Mutex<HashMap<Key, (String, u64)>>,
    /// Standings of feeds that are over, until they are written.
    parted: Mutex<Vec<(Key, Arc<Mutex<Standing>>)>>,
    left: Notify,
    ending: watch::Sender<bool>,
    ids: AtomicU64,
    pool: Option<Pool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feeds {
    /// None yet. Without a pool nothing is written down. Needs a tokio runtime where there is one.
    pub(in crate::ingress) fn new(pool: Option<Pool>) -> Arc<Feeds> {
        let feeds = Arc::new(Feeds {
            live: Mutex::default(),
            last: Mutex::default(),
            parted: Mutex::default(),
            left: Notify::new(),
            ending: watch::channel(false).0,
            ids: AtomicU64::new(1),
            pool,
        });
        if feeds.pool.is_some() {
            let weak = Arc::downgrade(&feeds);
            tokio::spawn(async move {
                let mut tick = tokio::time::interval(EVERY);
                tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                let mut away = false;
                loop {
                    tick.tick().await;
                    let Some(feeds) = weak.upgrade() else { return };
                    match feeds.write_down().await {
                        Ok(()) => away = false,
                        Err(error) if !away => {
                            away = true;
                            tracing::warn!(%error, "how far the feeds are cannot be written down; it is tried again");
                        }
                        Err(_) => {}
                    }
                }
            });
        }
        feeds
    }

    /// Tells whether the process is shutting down.
    pub(super) fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// Ends all feeds: they read no more, wait for what is under way, and say goodbye. Waits for them, at most `patience`.
    pub async fn end(&self, patience: Duration) {
        self.ending.send_replace(true);
        let all_left = async {
            loop {
                let left = self.left.notified();
                if lock(&self.live).is_empty() {
                    return;
                }
                left.await;
            }
        };
        if tokio::time::timeout(patience, all_left).await.is_err() {
            tracing::warn!("feeds were cut off; their sidecars replay what was not acknowledged");
        }
        let written = tokio::time::timeout(CLAIM_TIMEOUT, self.write_down()).await;
        if !matches!(written, Ok(Ok(()))) {
            tracing::warn!(
                "how far the feeds were could not be written down; they replay some more"
            );
        }
    }

    /// Takes the shard's place; whoever holds it is told and waited for, at most `patience`.
    pub(super) async fn seat(self: &Arc<Self>, key: &Key, patience: Duration) -> Seat {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let held = {
                let mut live = lock(&self.live);
                let late = tokio::time::Instant::now() >= deadline;
                match live.get(key) {
                    Some(held) if !late => {
                        held.tell.send_replace(true);
                        held.gone.clone()
                    }
                    _ => {
                        let (tell, told) = watch::channel(false);
                        let (gone_tx, gone) = watch::channel(());
                        let standing = Arc::new(Mutex::new(Standing::default()));
                        if let Some(former) = live.insert(
                            key.clone(),
                            Live {
                                id,
                                tell,
                                gone,
                                standing: Arc::clone(&standing),
                            },
                        ) {
                            // It was waited for in vain.
                            former.tell.send_replace(true);
                        }
                        metrics::gauge!("feeds_connected").set(live.len() as f64);
                        return Seat {
                            id,
                            key: key.clone(),
                            told,
                            standing,
                            feeds: Arc::clone(self),
                            _gone: gone_tx,
                        };
                    }
                }
            };
            let mut held = held;
            // It resolves once the sender is gone: nothing is ever sent.
            let _ = tokio::time::timeout_at(deadline, held.changed()).await;
        }
    }

    /// The sequence that a hello of `boot`, which says that it will not send `seq` again, is welcomed with.
    pub(super) async fn begin(&self, seat: &Seat, boot: &str, seq: u64) -> u64 {
        let remembered = lock(&self.last)
            .get(&seat.key)
            .filter(|(b, _)| b == boot)
            .map_or(0, |(_, s)| *s);
        let mut welcome = seq.max(remembered);
        let mut session = None;
        lock(&seat.standing).claiming = true;
        if let Some(pool) = &self.pool {
            let claim = standing::claim(pool, &seat.key, boot, welcome);
            match tokio::time::timeout(CLAIM_TIMEOUT, claim).await {
                Ok(Ok((number, stored))) => {
                    session = Some(number);
                    welcome = welcome.max(stored);
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, shard = %seat.key.1, "the store is away; the feed goes on from what its sidecar says");
                }
                Err(_) => {
                    tracing::warn!(shard = %seat.key.1, "the store is slow; the feed goes on from what its sidecar says");
                }
            }
        }
        let mut standing = lock(&seat.standing);
        standing.claiming = false;
        standing.session = session;
        boot.clone_into(&mut standing.boot);
        standing.seq = welcome;
        standing.connected = true;
        standing.moved = true;
        welcome
    }

    /// Writes what moved; tells feeds that another process has taken over.
    async fn write_down(&self) -> Result<(), standing::StandingError> {
        let Some(pool) = &self.pool else {
            return Ok(());
        };
        let mut all: Vec<(Key, Arc<Mutex<Standing>>)> = lock(&self.live)
            .iter()
            .map(|(key, live)| (key.clone(), Arc::clone(&live.standing)))
            .collect();
        let parted = std::mem::take(&mut *lock(&self.parted));
        let living = all.len();
        all.extend(parted.iter().cloned());
        if all.is_empty() {
            return Ok(());
        }
        let taken: Vec<(Key, Standing)> = all
            .iter()
            .map(|(key, standing)| {
                let mut standing = lock(standing);
                let copy = standing.clone();
                standing.moved = false;
                standing.kinds = KindCounts::default();
                (key.clone(), copy)
            })
            .collect();
        match standing::write(pool, &taken).await {
            Ok(held) => {
                let live = lock(&self.live);
                for (key, standing) in taken.iter().take(living) {
                    if let (Some(session), Some(l)) = (standing.session, live.get(key))
                        && !held.contains(&(key.clone(), session))
                    {
                        let now = lock(&l.standing);
                        if now.session == Some(session) && !now.claiming {
                            l.tell.send_replace(true);
                        }
                    }
                }
                Ok(())
            }
            Err(error) => {
                for ((_, standing), (_, copy)) in all.iter().zip(&taken) {
                    let mut standing = lock(standing);
                    standing.moved |= copy.moved;
                    standing.kinds.add(&copy.kinds);
                }
                lock(&self.parted).extend(parted);
                Err(error)
            }
        }
    }
}

/// The place of one shard's feed, held for as long as it lives.
pub(super) struct Seat {
    id: u64,
    key: Key,
    /// Turns true when another feed wants the place.
    pub told: watch::Receiver<bool>,
    standing: Arc<Mutex<Standing>>,
    feeds: Arc<Feeds>,
    _gone: watch::Sender<()>,
}

impl Seat {
    /// Says how far the feed is.
    pub fn stand(&self, seq: u64, kinds: &mut KindCounts) {
        let mut standing = lock(&self.standing);
        if standing.seq != seq {
            standing.seq = seq;
            standing.moved = true;
        }
        standing.kinds.add(kinds);
        kinds.0.clear();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let at = {
            let mut standing = lock(&self.standing);
            standing.connected = false;
            standing.moved = true;
            (standing.boot.clone(), standing.seq)
        };
        // What was settled first, the place last: who takes it must find the former.
        lock(&self.feeds.last).insert(self.key.clone(), at);
        if self.feeds.pool.is_some() {
            lock(&self.feeds.parted).push((self.key.clone(), Arc::clone(&self.standing)));
        }
        let mut live = lock(&self.feeds.live);
        if live.get(&self.key).is_some_and(|l| l.id == self.id) {
            live.remove(&self.key);
        }
        metrics::gauge!("feeds_connected").set(live.len() as f64);
        drop(live);
        self.feeds.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        (1, "atlantic".into())
    }

    #[actix_web::test]
    async fn a_second_feed_waits_for_the_first_and_goes_on_where_it_ended() {
        let feeds = Feeds::new(None);
        let patience = Duration::from_secs(60);
        let first = feeds.seat(&key(), patience).await;
        assert_eq!(feeds.begin(&first, "b1", 3).await, 3);
        let mut told = first.told.clone();
        let second = tokio::spawn({
            let feeds = Arc::clone(&feeds);
            async move { feeds.seat(&key(), patience).await }
        });
        told.wait_for(|t| *t).await.expect("told");
        first.stand(9, &mut KindCounts::default());
        drop(first);
        let second = second.await.expect("it sits");
        assert_eq!(feeds.begin(&second, "b1", 3).await, 9);
        assert_eq!(feeds.begin(&second, "b2", 0).await, 0, "another boot");
        drop(second);
        feeds.end(patience).await;
    }

    #[actix_web::test]
    async fn the_end_waits_for_every_feed() {
        let feeds = Feeds::new(None);
        let seat = feeds.seat(&key(), Duration::ZERO).await;
        let mut ending = feeds.ending();
        let end = tokio::spawn({
            let feeds = Arc::clone(&feeds);
            async move { feeds.end(Duration::from_secs(60)).await }
        });
        ending.wait_for(|e| *e).await.expect("told");
        assert!(!end.is_finished());
        drop(seat);
        end.await.expect("ended");
    }

    #[test]
    fn kinds_are_counted_by_name_up_to_a_bound() {
        let mut counts = KindCounts::default();
        for n in 0..MAX_KINDS + 50 {
            counts.of(&format!("kind{n}")).unmapped += 1;
        }
        counts.of("kind0").mapped += 2;
        assert_eq!(counts.0.len(), MAX_KINDS + 1);
        assert_eq!(counts.of("").unmapped, 50);
        assert_eq!(counts.of("kind0").mapped, 2);
    }
}
