//! A [`PartitionHost`] for tests of the log alone: it claims, takes batches, commits and remembers, as the runtime would, in
//! memory. Two hosts over one [`RecordingStore`] stand for two processes over one database.

use millrace_topics::contract::{Batch, ClaimError, InFlight, PartitionHost, StoredPosition};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One record as a host committed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The partition.
    pub partition: i32,
    /// The topic's number.
    pub topic_no: i32,
    /// The offset.
    pub offset: i64,
    /// The key.
    pub key: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
    /// The host that committed it.
    pub host: String,
}

/// What a consumer told its host, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A partition was claimed; where it starts.
    Assigned {
        /// The partition.
        partition: i32,
        /// The positions answered.
        positions: Vec<StoredPosition>,
    },
    /// A claim was refused.
    Refused {
        /// The partition.
        partition: i32,
    },
    /// A batch was taken.
    Batch {
        /// The partition.
        partition: i32,
        /// (topic number, offset) of its records, in the batch's order.
        records: Vec<(i32, i64)>,
        /// Topics whose end it carried.
        ends: Vec<i32>,
    },
    /// A batch was handed back.
    HandedBack {
        /// The partition.
        partition: i32,
    },
    /// Partitions went away.
    Revoked {
        /// The partitions.
        partitions: Vec<i32>,
        /// Whether they were lost.
        lost: bool,
    },
    /// The log refused to go on.
    Fault {
        /// The partition.
        partition: i32,
        /// Why.
        reason: String,
    },
}

/// What the database would hold: positions, owners, and the ledger of committed records.
#[derive(Default)]
pub struct RecordingStore {
    inner: Mutex<StoreState>,
    changed: Condvar,
}

#[derive(Default)]
struct StoreState {
    /// The next offset by (partition, topic).
    positions: HashMap<(i32, i32), i64>,
    epochs: HashMap<i32, u64>,
    ledger: Vec<Seen>,
    /// Records whose commit the fence or the position check refused.
    refused: usize,
}

impl RecordingStore {
    /// An empty store: every position is 0.
    #[must_use]
    pub fn new() -> Arc<RecordingStore> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where a partition of a topic starts when it is claimed next.
    pub fn set_position(&self, partition: i32, topic_no: i32, next_offset: i64) {
        self.lock()
            .positions
            .insert((partition, topic_no), next_offset);
        self.changed.notify_all();
    }

    /// The next offset of a partition of a topic.
    #[must_use]
    pub fn position(&self, partition: i32, topic_no: i32) -> i64 {
        self.lock()
            .positions
            .get(&(partition, topic_no))
            .copied()
            .unwrap_or(0)
    }

    /// Everything committed, in the order of commits.
    #[must_use]
    pub fn ledger(&self) -> Vec<Seen> {
        self.lock().ledger.clone()
    }

    /// Records whose commit the fence or the position check refused.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.lock().refused
    }

    /// How many records are committed.
    #[must_use]
    pub fn committed(&self) -> usize {
        self.lock().ledger.len()
    }

    /// Waits until the ledger holds `records` records; false when `within` passed first.
    #[must_use]
    pub fn wait_committed(&self, records: usize, within: Duration) -> bool {
        wait(&self.inner, &self.changed, within, |s| {
            s.ledger.len() >= records
        })
    }

    /// As [`RecordingStore::wait_committed`], for async tests.
    pub async fn committed_within(self: &Arc<Self>, records: usize, within: Duration) -> bool {
        let store = Arc::clone(self);
        tokio::task::spawn_blocking(move || store.wait_committed(records, within))
            .await
            .unwrap_or(false)
    }

    fn commit(&self, host: &str, epoch: u64, batch: &Batch) -> bool {
        let mut s = self.lock();
        let mut next: BTreeMap<i32, i64> = BTreeMap::new();
        let mut good = s.epochs.get(&batch.partition) == Some(&epoch);
        for r in batch.records() {
            let stored = s
                .positions
                .get(&(batch.partition, r.topic_no))
                .copied()
                .unwrap_or(0);
            let at = next.entry(r.topic_no).or_insert(stored);
            // Offsets may leave gaps (a log's own markers), but never go back.
            good &= r.offset >= *at;
            *at = r.offset + 1;
        }
        if !good {
            s.refused += batch.len();
            return false;
        }
        for (topic_no, at) in next {
            s.positions.insert((batch.partition, topic_no), at);
        }
        for r in batch.records() {
            s.ledger.push(Seen {
                partition: batch.partition,
                topic_no: r.topic_no,
                offset: r.offset,
                key: batch.key(r).to_vec(),
                payload: batch.payload(r).to_vec(),
                host: host.to_owned(),
            });
        }
        drop(s);
        self.changed.notify_all();
        true
    }
}

fn wait<T>(
    state: &Mutex<T>,
    changed: &Condvar,
    within: Duration,
    ready: impl Fn(&T) -> bool,
) -> bool {
    let deadline = Instant::now() + within;
    let mut s = state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if ready(&s) {
            return true;
        }
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            return false;
        };
        s = changed
            .wait_timeout(s, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

#[derive(Default)]
struct HostState {
    events: Vec<Event>,
    /// Epoch of every partition that this host holds.
    owned: BTreeMap<i32, u64>,
    stopped: BTreeSet<i32>,
    ends: BTreeMap<i32, BTreeSet<i32>>,
    refuse: HashMap<i32, (usize, ClaimError)>,
    wanted: Vec<i32>,
    /// Batches taken and not committed yet (only while held).
    waiting: Vec<(u64, Batch)>,
    hold: bool,
    no_room: bool,
    panic_on_claim: bool,
}

/// The host. By default it claims everything and commits each batch at once.
pub struct RecordingHost {
    name: String,
    topics: Vec<i32>,
    store: Arc<RecordingStore>,
    inner: Mutex<HostState>,
    changed: Condvar,
}

impl RecordingHost {
    /// A host by the name `name`, for a group of topics (by number), over `store`.
    #[must_use]
    pub fn new(name: &str, topics: &[i32], store: &Arc<RecordingStore>) -> Arc<RecordingHost> {
        Arc::new(RecordingHost {
            name: name.to_owned(),
            topics: topics.to_vec(),
            store: Arc::clone(store),
            inner: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, mut s: MutexGuard<'_, HostState>, event: Event) {
        s.events.push(event);
        drop(s);
        self.changed.notify_all();
    }

    /// Everything that happened so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// Partitions held now.
    #[must_use]
    pub fn owned(&self) -> Vec<i32> {
        self.lock().owned.keys().copied().collect()
    }

    /// Topics of a partition whose end was told and after which no record came.
    #[must_use]
    pub fn at_end(&self, partition: i32) -> Vec<i32> {
        let s = self.lock();
        s.ends
            .get(&partition)
            .map(|t| t.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Refuses the next `times` claims of a partition.
    pub fn refuse_claims(&self, partition: i32, times: usize, error: ClaimError) {
        self.lock().refuse.insert(partition, (times, error));
    }

    /// Panics at the next claim.
    pub fn panic_on_next_claim(&self) {
        self.lock().panic_on_claim = true;
    }

    /// While held, batches are taken and stay under way; [`RecordingHost::release`] commits them.
    pub fn hold(&self) {
        self.lock().hold = true;
    }

    /// Commits what was held, in order, and holds no longer.
    pub fn release(&self) {
        let mut s = self.lock();
        s.hold = false;
        for (epoch, batch) in std::mem::take(&mut s.waiting) {
            self.store.commit(&self.name, epoch, &batch);
        }
        drop(s);
        self.changed.notify_all();
    }

    /// Whether batches are handed back.
    pub fn set_no_room(&self, no_room: bool) {
        self.lock().no_room = no_room;
    }

    /// Gives a partition up as an actor that stopped by itself does, and asks for it again.
    pub fn want_again(&self, partition: i32) {
        let mut s = self.lock();
        s.owned.remove(&partition);
        s.waiting.retain(|(_, b)| b.partition != partition);
        s.stopped.remove(&partition);
        s.wanted.push(partition);
    }

    /// Waits until the events satisfy `ready`; false when `within` passed first.
    #[must_use]
    pub fn wait_events(&self, within: Duration, ready: impl Fn(&[Event]) -> bool) -> bool {
        wait(&self.inner, &self.changed, within, |s| ready(&s.events))
    }

    /// Waits until exactly these partitions are held.
    #[must_use]
    pub fn wait_owned(&self, within: Duration, ready: impl Fn(&[i32]) -> bool) -> bool {
        wait(&self.inner, &self.changed, within, |s| {
            ready(&s.owned.keys().copied().collect::<Vec<_>>())
        })
    }

    /// As [`RecordingHost::wait_events`], for async tests.
    pub async fn events_within(
        self: &Arc<Self>,
        within: Duration,
        ready: impl Fn(&[Event]) -> bool + Send + 'static,
    ) -> bool {
        let host = Arc::clone(self);
        tokio::task::spawn_blocking(move || host.wait_events(within, ready))
            .await
            .unwrap_or(false)
    }

    /// As [`RecordingHost::wait_owned`], for async tests.
    pub async fn owned_within(
        self: &Arc<Self>,
        within: Duration,
        ready: impl Fn(&[i32]) -> bool + Send + 'static,
    ) -> bool {
        let host = Arc::clone(self);
        tokio::task::spawn_blocking(move || host.wait_owned(within, ready))
            .await
            .unwrap_or(false)
    }

    fn claim(&self, partition: i32) -> Result<Vec<StoredPosition>, ClaimError> {
        let mut s = self.lock();
        assert!(
            !std::mem::take(&mut s.panic_on_claim),
            "asked to panic at a claim"
        );
        if let Some((times, error)) = s.refuse.get_mut(&partition) {
            if *times > 0 {
                *times -= 1;
                let error = error.clone();
                self.tell(s, Event::Refused { partition });
                return Err(error);
            }
            s.refuse.remove(&partition);
        }
        s.stopped.remove(&partition);
        s.ends.remove(&partition);
        s.waiting.retain(|(_, b)| b.partition != partition);
        let mut store = self.store.lock();
        let epoch = store.epochs.entry(partition).or_insert(0);
        *epoch += 1;
        let epoch = *epoch;
        let positions: Vec<StoredPosition> = self
            .topics
            .iter()
            .map(|&topic_no| StoredPosition {
                topic_no,
                next_offset: store
                    .positions
                    .get(&(partition, topic_no))
                    .copied()
                    .unwrap_or(0),
            })
            .collect();
        drop(store);
        s.owned.insert(partition, epoch);
        self.tell(
            s,
            Event::Assigned {
                partition,
                positions: positions.clone(),
            },
        );
        Ok(positions)
    }
}

impl PartitionHost for RecordingHost {
    fn assigned(
        &self,
        partitions: &[i32],
        _wait: Duration,
    ) -> Vec<(i32, Result<Vec<StoredPosition>, ClaimError>)> {
        partitions.iter().map(|&p| (p, self.claim(p))).collect()
    }

    fn batch(&self, batch: Batch) -> Result<(), Batch> {
        let mut s = self.lock();
        let partition = batch.partition;
        if s.no_room {
            self.tell(s, Event::HandedBack { partition });
            return Err(batch);
        }
        let Some(epoch) = s.owned.get(&partition).copied() else {
            // The actor is gone; what still comes is nobody's.
            return Ok(());
        };
        let records: Vec<(i32, i64)> = batch
            .records()
            .iter()
            .map(|r| (r.topic_no, r.offset))
            .collect();
        let ends = batch.ends.clone();
        let at_end = s.ends.entry(partition).or_default();
        for (topic_no, _) in &records {
            at_end.remove(topic_no);
        }
        at_end.extend(ends.iter().copied());
        if s.hold {
            s.waiting.push((epoch, batch));
        } else if !self.store.commit(&self.name, epoch, &batch) {
            // Fenced: the partition belongs to another host now.
            s.owned.remove(&partition);
        }
        self.tell(
            s,
            Event::Batch {
                partition,
                records,
                ends,
            },
        );
        Ok(())
    }

    fn in_flight(&self, partition: i32) -> InFlight {
        let s = self.lock();
        s.waiting
            .iter()
            .filter(|(_, b)| b.partition == partition)
            .fold(InFlight::default(), |f, (_, b)| InFlight {
                records: f.records + b.len(),
                bytes: f.bytes + b.bytes(),
            })
    }

    fn revoked(&self, partitions: &[i32], lost: bool) {
        let mut s = self.lock();
        for p in partitions {
            s.owned.remove(p);
            s.ends.remove(p);
        }
        s.waiting
            .retain(|(_, b)| !partitions.contains(&b.partition));
        self.tell(
            s,
            Event::Revoked {
                partitions: partitions.to_vec(),
                lost,
            },
        );
    }

    fn fault(&self, partition: i32, reason: String) {
        let mut s = self.lock();
        s.owned.remove(&partition);
        s.stopped.insert(partition);
        self.tell(s, Event::Fault { partition, reason });
    }

    fn wants_reassignment(&self) -> Vec<i32> {
        std::mem::take(&mut self.lock().wanted)
    }

    fn progress(&self) -> Vec<(i32, StoredPosition)> {
        let owned: Vec<i32> = self.lock().owned.keys().copied().collect();
        owned
            .iter()
            .flat_map(|&p| {
                self.topics.iter().map(move |&topic_no| {
                    (
                        p,
                        StoredPosition {
                            topic_no,
                            next_offset: self.store.position(p, topic_no),
                        },
                    )
                })
            })
            .collect()
    }
}
