//! What a partition's actor does with a batch, without the actor: attempts, isolation of poison, recovery from an unknown
//! commit. One transaction carries facts, outcomes and positions; nothing of a failed attempt survives.

use super::books;
use super::clock::SharedClock;
use super::failpoint;
use super::ownership::{self, Advance, Claim, Progress};
use super::poison::PoisonGauge;
use super::session::{Connect, Failure, Session};
use super::vertical::{
    DeadLetter, DecodeError, Decoded, Effects, Frontier, Item, Raw, Start, Vertical,
};
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::time::{Micros, Now};
use millrace_topics::contract::{Batch, RecordRef, StoredPosition, TopicRef};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How far ahead of the wall clock an `accepted_at` may lie before it is clamped, in seconds.
const ACCEPTED_SKEW_SECS: i64 = 300;

/// Why an actor ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// Another owner holds the partition.
    Fenced,
    /// A batch follows upon records that were never processed: something was lost on the way from the consumer. The partition
    /// is claimed anew and read again from its stored position.
    Gap,
    /// Stopped red: a person looks.
    Stopped(String),
    /// Told to stop.
    Cancelled,
}

/// The state of one partition's actor.
pub struct Core<V: Vertical> {
    vertical: V,
    session: Option<Session>,
    connect: Connect,
    clock: SharedClock,
    topics: Arc<[TopicRef]>,
    claim: Claim,
    start: Start,
    progress: Vec<Progress>,
    ends: Vec<bool>,
    stream: Micros,
    poison: PoisonGauge,
    days: HashSet<i64>,
    stop: Arc<AtomicBool>,
}

/// A batch as decoded: items in order, and what is set aside instead of decided.
struct Work<'a, R> {
    batch: &'a Batch,
    items: Vec<Item<R>>,
    poison: BTreeMap<usize, (&'static str, String)>,
    /// Records from here on are not touched: the partition stops there, for this reason.
    cut: Option<(usize, String)>,
}

impl<V: Vertical> Core<V> {
    /// Claims the partition and reads its state.
    ///
    /// # Errors
    /// [`millrace_topics::contract::ClaimError`].
    pub async fn launch(
        mut vertical: V,
        connect: Connect,
        clock: SharedClock,
        topics: Arc<[TopicRef]>,
        partition: i32,
        owner: &str,
        stop: Arc<AtomicBool>,
    ) -> Result<Core<V>, millrace_topics::contract::ClaimError> {
        use millrace_topics::contract::ClaimError;
        let session = Session::new(connect().await.map_err(ClaimError::Later)?);
        let claim = ownership::claim(&session, V::GROUP.name, partition, owner).await?;
        let _ = failpoint::hit("claim.after");
        let partitions = topics.first().map_or(1, |t| t.partitions);
        let (progress, mark) = ownership::progress(&session, &claim, &topics)
            .await
            .map_err(|f| ClaimError::Later(format!("{f:?}")))?;
        let start = Start {
            partition,
            partitions,
            mark,
        };
        vertical.reset(&start);
        let stream = stream_of(&progress);
        let ends = vec![false; topics.len()];
        Ok(Core {
            vertical,
            session: Some(session),
            connect,
            clock,
            topics,
            claim,
            start,
            progress,
            ends,
            stream,
            poison: PoisonGauge::default(),
            days: HashSet::new(),
            stop,
        })
    }

    /// The stored positions as this actor knows them.
    #[must_use]
    pub fn positions(&self) -> Vec<StoredPosition> {
        self.progress.iter().map(Progress::stored).collect()
    }

    /// The claim, for stopping the partition from outside.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Processes a batch to its end: every record decided and committed, or the reason why the actor ends.
    ///
    /// # Errors
    /// [`Exit`].
    pub async fn process(&mut self, batch: &Batch) -> Result<(), Exit> {
        for (topic, end) in self.topics.iter().zip(self.ends.iter_mut()) {
            *end &= !batch.records().iter().any(|r| r.topic_no == topic.no);
        }
        for (topic_no, from) in batch.follows() {
            let next = self.next_offset(*topic_no);
            if *from > next {
                metrics::counter!("batch_gaps_total", "group" => V::GROUP.name).increment(1);
                tracing::error!(
                    partition = self.start.partition,
                    topic_no,
                    from,
                    next,
                    "a batch was lost on its way"
                );
                return Err(Exit::Gap);
            }
        }
        let mut work = self.decode(batch);
        let until = work.cut.as_ref().map_or(batch.len(), |(at, _)| *at);
        let mut ranges: Vec<Range<usize>> = std::iter::once(0..until).collect();
        while let Some(range) = ranges.pop() {
            if range.is_empty() {
                continue;
            }
            match self.run(&mut work, range.clone(), &[]).await? {
                Ran::Done => {}
                Ran::Again => ranges.push(range),
                Ran::Split => {
                    let middle = range.start + range.len() / 2;
                    ranges.push(middle..range.end);
                    ranges.push(range.start..middle);
                }
            }
        }
        if let Some((_, why)) = work.cut {
            return Err(self.stop_red(why).await);
        }
        for (topic, end) in self.topics.iter().zip(self.ends.iter_mut()) {
            *end |= batch.ends.contains(&topic.no);
        }
        self.sweep().await
    }

    /// Does what time alone brings about.
    ///
    /// # Errors
    /// [`Exit`].
    pub async fn sweep(&mut self) -> Result<(), Exit> {
        loop {
            let frontier = self.frontier();
            let mut stream = self.stream;
            if frontier.at_end() {
                stream = stream.max(self.clock.wall());
            }
            if !self.vertical.may_be_due(stream) {
                return Ok(());
            }
            let due = match self.due(stream, &frontier).await {
                Ok(due) if due.is_empty() => return Ok(()),
                Ok(due) => due,
                Err(failure) => {
                    self.recover_from(failure, &mut Duration::from_millis(100))
                        .await?;
                    continue;
                }
            };
            let empty = Batch::new(self.start.partition);
            let mut work = Work {
                batch: &empty,
                items: Vec::new(),
                poison: BTreeMap::new(),
                cut: None,
            };
            if let Ran::Split = self.run(&mut work, 0..0, &due).await? {
                let why = "the store refuses what a due record would write".to_owned();
                return Err(self.stop_red(why).await);
            }
        }
    }

    async fn due(&mut self, stream: Micros, frontier: &Frontier) -> Result<Vec<V::Due>, Failure> {
        self.connected().await?;
        let Some(session) = &self.session else {
            return Ok(Vec::new());
        };
        self.vertical.due(session, stream, frontier).await
    }

    fn frontier(&self) -> Frontier {
        let topics = self
            .progress
            .iter()
            .zip(&self.ends)
            .map(|(p, end)| (Micros(p.stream_time), *end))
            .collect();
        Frontier { topics }
    }

    fn next_offset(&self, topic_no: i32) -> i64 {
        self.progress
            .iter()
            .find(|p| p.topic_no == topic_no)
            .map_or(i64::MAX, |p| p.next_offset)
    }

    /// Whether the stored position says that a record is consumed. Wherever an attempt asks that, it asks here: what is
    /// delivered again, or run again after a commit whose reply was lost, is booked once for this reason alone.
    fn is_behind(&self, raw: &RecordRef) -> bool {
        raw.offset < self.next_offset(raw.topic_no) && !failpoint::sabotaged("position")
    }

    fn decode<'a>(&mut self, batch: &'a Batch) -> Work<'a, V::Record> {
        let latest = self.clock.wall().plus_secs(ACCEPTED_SKEW_SECS);
        let mut work = Work {
            batch,
            items: Vec::with_capacity(batch.len()),
            poison: BTreeMap::new(),
            cut: None,
        };
        let mut stream = self.stream;
        for (index, raw) in batch.records().iter().enumerate() {
            if self.is_behind(raw) {
                continue;
            }
            let Some(topic) = self.topics.iter().find(|t| t.no == raw.topic_no) else {
                continue;
            };
            match self.vertical.decode(topic, batch.payload(raw)) {
                Ok(Decoded {
                    accepted_at,
                    replay,
                    record,
                    ..
                }) => {
                    if self.poison.note(false) {
                        // A good record never passes the cap by itself; what stands before it was let through already.
                        tracing::debug!(partition = batch.partition, "poison gauge above its cap");
                    }
                    let mut at = accepted_at;
                    if at > latest {
                        metrics::counter!("accepted_at_clamped_total").increment(1);
                        at = latest;
                    }
                    if replay.is_none() {
                        stream = stream.max(at);
                    }
                    let own = RecordId {
                        topic_no: raw.topic_no,
                        partition: batch.partition,
                        offset: raw.offset,
                    };
                    work.items.push(Item {
                        id: replay.unwrap_or(own),
                        index,
                        accepted_at: at,
                        stream,
                        replayed: replay.is_some(),
                        record,
                    });
                }
                Err(DecodeError::Newer(v)) => {
                    let why = format!(
                        "a record of wire version {v} at {}:{} needs a newer build",
                        topic.name, raw.offset
                    );
                    work.cut = Some((index, why));
                    break;
                }
                Err(DecodeError::Undecodable(detail)) => {
                    if self.poison.note(true) {
                        let why = format!(
                            "too many records that cannot be read, the last at {}:{}",
                            topic.name, raw.offset
                        );
                        work.cut = Some((index, why));
                        break;
                    }
                    work.poison.insert(index, (reason::UNDECODABLE, detail));
                }
            }
        }
        work
    }

    /// One attempt after another, until the range is committed or must be seen differently.
    async fn run(
        &mut self,
        work: &mut Work<'_, V::Record>,
        range: Range<usize>,
        due: &[V::Due],
    ) -> Result<Ran, Exit> {
        let mut delay = Duration::from_millis(20);
        loop {
            if self.stop.load(Ordering::SeqCst) {
                return Err(Exit::Cancelled);
            }
            let failure = match self.attempt(work, range.clone(), due).await {
                Ok(()) => return Ok(Ran::Done),
                Err(failure) => failure,
            };
            if let Some(session) = &self.session
                && !session.client().is_closed()
            {
                let _ = session.batch("ROLLBACK").await;
            }
            match failure {
                Failure::Data(text) if range.len() > 1 || !due.is_empty() => {
                    tracing::warn!(partition = self.start.partition, %text, "data refused: isolating");
                    return Ok(Ran::Split);
                }
                Failure::Data(text) => {
                    self.set_aside(work, range.start, reason::DATA_REFUSED, text)
                        .await?;
                }
                Failure::Panicked(index, text) => {
                    self.set_aside(work, index, reason::PANICKED, text).await?;
                }
                Failure::Unknown(text) => {
                    tracing::warn!(partition = self.start.partition, %text, "outcome of a commit unknown");
                    self.recover_from(Failure::Unknown(text), &mut delay)
                        .await?;
                    self.forget_consumed(work);
                    // With due records alone the caller asks the store again what is due.
                    return Ok(if due.is_empty() && self.any_left(work, &range) {
                        Ran::Again
                    } else {
                        Ran::Done
                    });
                }
                other => self.recover_from(other, &mut delay).await?,
            }
        }
    }

    fn any_left(&self, work: &Work<'_, V::Record>, range: &Range<usize>) -> bool {
        work.batch
            .records()
            .get(range.clone())
            .unwrap_or_default()
            .iter()
            .any(|r| !self.is_behind(r))
    }

    fn forget_consumed(&self, work: &mut Work<'_, V::Record>) {
        let left = |index: usize| {
            work.batch
                .records()
                .get(index)
                .is_some_and(|r| !self.is_behind(r))
        };
        work.items.retain(|i| left(i.index));
        work.poison.retain(|index, _| left(*index));
    }

    async fn set_aside(
        &mut self,
        work: &mut Work<'_, V::Record>,
        index: usize,
        reason: &'static str,
        detail: String,
    ) -> Result<(), Exit> {
        tracing::warn!(partition = self.start.partition, index, reason, %detail, "record set aside");
        if self.poison.turned_bad() {
            let why = format!("too many records that cannot be processed, the last: {detail}");
            return Err(self.stop_red(why).await);
        }
        work.poison.insert(index, (reason, detail));
        Ok(())
    }

    /// Brings the actor to where the batch may run again, or ends it.
    async fn recover_from(&mut self, failure: Failure, delay: &mut Duration) -> Result<(), Exit> {
        match failure {
            Failure::Fenced => Err(Exit::Fenced),
            Failure::Stop(text) => Err(self.stop_red(text).await),
            Failure::Data(text) | Failure::Panicked(_, text) => Err(self.stop_red(text).await),
            Failure::RolledBack(text) => {
                tracing::warn!(partition = self.start.partition, %text, "rolled back; again soon");
                metrics::counter!("batch_retries_total", "group" => V::GROUP.name).increment(1);
                if self
                    .session
                    .as_ref()
                    .is_some_and(|s| s.client().is_closed())
                {
                    self.session = None;
                }
                self.pause(delay).await
            }
            Failure::Unknown(_) => {
                self.session = None;
                loop {
                    if self.stop.load(Ordering::SeqCst) {
                        return Err(Exit::Cancelled);
                    }
                    match self.claim_again().await {
                        Ok(()) => return Ok(()),
                        Err(Failure::Fenced) => return Err(Exit::Fenced),
                        Err(failure) => {
                            tracing::warn!(
                                partition = self.start.partition,
                                ?failure,
                                "cannot claim again yet"
                            );
                            self.session = None;
                            self.pause(delay).await?;
                        }
                    }
                }
            }
        }
    }

    async fn pause(&mut self, delay: &mut Duration) -> Result<(), Exit> {
        let mut left = *delay;
        *delay = (*delay * 2).min(Duration::from_secs(2));
        while !left.is_zero() {
            if self.stop.load(Ordering::SeqCst) {
                return Err(Exit::Cancelled);
            }
            let step = left.min(Duration::from_millis(50));
            tokio::time::sleep(step).await;
            left -= step;
        }
        Ok(())
    }

    async fn connected(&mut self) -> Result<(), Failure> {
        if self
            .session
            .as_ref()
            .is_some_and(|s| !s.client().is_closed())
        {
            return Ok(());
        }
        let client = (self.connect)().await.map_err(Failure::RolledBack)?;
        self.session = Some(Session::new(client));
        Ok(())
    }

    async fn claim_again(&mut self) -> Result<(), Failure> {
        self.connected().await?;
        let Some(session) = &self.session else {
            return Ok(());
        };
        let claim = ownership::reclaim(session, &self.claim).await?;
        let (progress, mark) = ownership::progress(session, &claim, &self.topics).await?;
        self.claim = claim;
        self.stream = self.stream.max(stream_of(&progress));
        self.progress = progress;
        self.start.mark = mark;
        self.vertical.reset(&self.start);
        Ok(())
    }

    async fn stop_red(&mut self, why: String) -> Exit {
        tracing::error!(group = V::GROUP.name, partition = self.start.partition, %why, "partition stopped");
        let mut delay = Duration::from_millis(100);
        for _ in 0..20 {
            let written = match self.connected().await {
                Ok(()) => match &self.session {
                    Some(session) => ownership::stop(session, &self.claim, &why).await,
                    None => Ok(()),
                },
                Err(failure) => Err(failure),
            };
            if written.is_ok() || self.pause(&mut delay).await.is_err() {
                break;
            }
        }
        Exit::Stopped(why)
    }

    async fn make_days(&mut self, items: &[Item<V::Record>]) -> Result<(), Failure> {
        let mut missing: Vec<i64> = Vec::new();
        for item in items {
            let day = item.accepted_at.0.div_euclid(86_400_000_000);
            if !self.days.contains(&day) && !missing.contains(&day) {
                missing.push(day);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let Some(session) = &self.session else {
            return Ok(());
        };
        super::days::make(session, self.vertical.fact_tables(), &missing).await?;
        self.days.extend(missing);
        Ok(())
    }

    async fn attempt(
        &mut self,
        work: &Work<'_, V::Record>,
        range: Range<usize>,
        due: &[V::Due],
    ) -> Result<(), Failure> {
        self.connected().await?;
        let from = work.items.partition_point(|i| i.index < range.start);
        let to = work.items.partition_point(|i| i.index < range.end);
        let items = work.items.get(from..to).unwrap_or_default();
        self.make_days(items).await?;
        let Some(session) = &self.session else {
            return Ok(());
        };
        self.vertical.load(session, items, due).await?;
        let _ = failpoint::hit("batch.before_begin");
        ownership::begin(session, &self.claim).await?;
        let _ = failpoint::hit("batch.after_fence");

        let raw = Raw { batch: work.batch };
        let wall = self.clock.wall();
        let mut replays: Vec<RecordId> =
            items.iter().filter(|i| i.replayed).map(|i| i.id).collect();
        let open = books::open_letters(session, &replays).await?;
        replays.retain(|id| open.contains_key(id));
        replays.sort_unstable();
        replays.dedup();

        let mut draft = V::Draft::default();
        let mut effects = Effects::default();
        let mut now = Now {
            stream: self.stream,
            wall,
        };
        for due in due {
            self.vertical.decide_due(&mut draft, &mut effects, due, now);
        }
        let mut seen: HashSet<RecordId> = HashSet::new();
        for item in items {
            let held = item.replayed && (!open.contains_key(&item.id) || !seen.insert(item.id));
            if held || work.poison.contains_key(&item.index) {
                continue;
            }
            now.stream = item.stream;
            catch_unwind(AssertUnwindSafe(|| {
                self.vertical
                    .decide(&mut draft, &mut effects, item, &raw, now);
            }))
            .map_err(|panic| Failure::Panicked(item.index, panic_text(&*panic)))?;
        }
        self.vertical.claim(session, &mut draft).await?;
        let _ = failpoint::hit("batch.after_claims");
        catch_unwind(AssertUnwindSafe(|| {
            self.vertical.settle(&mut draft, &mut effects, now)
        }))
        .map_err(|panic| Failure::Data(panic_text(&*panic)))?;

        self.bury_poison(work, &range, &mut effects);
        for (id, why) in &open {
            effects
                .tally
                .add(*id, Outcome::DeadLettered, why.clone(), -1);
        }
        self.vertical.write(session, &draft, items, now).await?;
        books::mark_replayed(session, &replays).await?;
        books::write(session, V::GROUP.name, self.start.partition, &effects).await?;
        let moves = self.moves(work, &range, items);
        ownership::advance(session, &self.claim, &moves, effects.mark).await?;
        if failpoint::hit("batch.before_commit") {
            return Err(Failure::RolledBack("failpoint".to_owned()));
        }
        match session.batch("COMMIT").await {
            Ok(()) => {}
            // Deadlocks and refused data are told before anything is durable. Whatever else the server says of a COMMIT, a
            // shutdown above all, may come after it was.
            Err(e)
                if e.code()
                    .is_some_and(|c| matches!(c.code().get(..2), Some("40" | "23"))) =>
            {
                return Err(e.into());
            }
            Err(e) => return Err(Failure::Unknown(e.to_string())),
        }
        if failpoint::hit("batch.after_commit") {
            return Err(Failure::Unknown("failpoint".to_owned()));
        }

        for done in &moves {
            if let Some(p) = self
                .progress
                .iter_mut()
                .find(|p| p.topic_no == done.topic_no)
            {
                p.next_offset = done.next;
                p.stream_time = p.stream_time.max(done.stream_time);
            }
        }
        self.stream = self.stream.max(now.stream);
        self.vertical.merge(draft);
        for (_, _, outcome, why, n) in effects.tally.changes() {
            if let Ok(n) = u64::try_from(n) {
                metrics::counter!("outcomes_total", "group" => V::GROUP.name, "outcome" => outcome.name(), "reason" => why.to_owned())
                    .increment(n);
            }
        }
        Ok(())
    }

    fn bury_poison(&self, work: &Work<'_, V::Record>, range: &Range<usize>, effects: &mut Effects) {
        for (index, (why, detail)) in work.poison.range(range.clone()) {
            let Some(raw) = work.batch.records().get(*index) else {
                continue;
            };
            let item = work
                .items
                .binary_search_by_key(index, |i| i.index)
                .ok()
                .and_then(|at| work.items.get(at));
            let own = RecordId {
                topic_no: raw.topic_no,
                partition: work.batch.partition,
                offset: raw.offset,
            };
            let id = item.map_or(own, |i| i.id);
            effects.tally.add(id, Outcome::DeadLettered, *why, 1);
            effects.dead.push(DeadLetter {
                id,
                workspace: None,
                key: work.batch.key(raw).to_vec(),
                payload: work.batch.payload(raw).to_vec(),
                reason: why,
                detail: detail.clone(),
                accepted_at: item.map(|i| i.accepted_at),
            });
        }
    }

    /// How the positions move when this range is done.
    fn moves(
        &self,
        work: &Work<'_, V::Record>,
        range: &Range<usize>,
        items: &[Item<V::Record>],
    ) -> Vec<Advance> {
        let mut moves: Vec<Advance> = Vec::with_capacity(self.topics.len());
        for p in &self.progress {
            let mut advance = Advance {
                topic_no: p.topic_no,
                expected: p.next_offset,
                next: p.next_offset,
                ..Advance::default()
            };
            for raw in work.batch.records().get(range.clone()).unwrap_or_default() {
                if raw.topic_no == p.topic_no && !self.is_behind(raw) {
                    advance.next = raw.offset + 1;
                    advance.consumed += 1;
                }
            }
            if advance.consumed > 0 {
                moves.push(advance);
            }
        }
        for item in items {
            let Some(raw) = work.batch.records().get(item.index) else {
                continue;
            };
            let Some(advance) = moves.iter_mut().find(|m| m.topic_no == raw.topic_no) else {
                continue;
            };
            if item.replayed {
                advance.consumed -= 1;
                advance.replayed += 1;
            } else {
                advance.stream_time = advance.stream_time.max(item.accepted_at.0);
            }
        }
        moves
    }
}

/// What came of an attempt.
enum Ran {
    /// Committed.
    Done,
    /// State was read anew: run what is left of the range.
    Again,
    /// The store refuses some record of it: run its halves.
    Split,
}

fn stream_of(progress: &[Progress]) -> Micros {
    Micros(progress.iter().map(|p| p.stream_time).max().unwrap_or(0))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}
