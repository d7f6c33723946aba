//! One attempt at a range of a batch: load, fence, decide, claim, settle, write, commit. What it leaves in memory, it leaves
//! after the commit.

use super::{Core, Work};
use crate::runtime::books;
use crate::runtime::days;
use crate::runtime::failpoint;
use crate::runtime::ownership::{self, Advance};
use crate::runtime::session::Failure;
use crate::runtime::vertical::{DeadLetter, Effects, Item, Raw, Vertical, item_at};
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::time::{Micros, Now};
use std::collections::HashSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl<V: Vertical> Core<V> {
    pub(super) async fn attempt(
        &mut self,
        work: &Work<'_, V::Record>,
        range: Range<usize>,
        due: &[V::Due],
    ) -> Result<(), Failure> {
        self.connected().await?;
        let from = work.items.partition_point(|i| i.index < range.start);
        let to = work.items.partition_point(|i| i.index < range.end);
        let items = work.items.get(from..to).unwrap_or_default();
        // One reading for the whole attempt: rows of the wall clock's day go where its partition was just seen to.
        let wall = self.clock.wall();
        self.make_days(items, wall).await?;
        let Some(session) = &self.session else {
            return Ok(());
        };
        self.vertical.load(session, items, due).await?;
        let _ = failpoint::hit("batch.before_begin");
        ownership::begin(session, &self.claim).await?;
        let _ = failpoint::hit("batch.after_fence");

        let raw = Raw { batch: work.batch };
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
            if work.poison.contains_key(&item.index) {
                self.vertical.set_aside(&mut draft, item);
                continue;
            }
            if held {
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
        books::write(session, V::GROUP.name, &effects).await?;
        let moves = self.moves(work, &range, items);
        ownership::advance(session, &self.claim, &moves, effects.mark).await?;
        books::emit(
            session,
            V::GROUP.name,
            self.start.partition,
            &effects.emits,
            &self.emits,
        )
        .await?;
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

    async fn make_days(&mut self, items: &[Item<V::Record>], wall: Micros) -> Result<(), Failure> {
        let today = wall.day();
        let wall_tables = self.vertical.wall_tables();
        if self.wall_day != Some(today) && !wall_tables.is_empty() {
            if let Some(session) = &self.session {
                days::make(session, wall_tables, &[today]).await?;
            }
            self.wall_day = Some(today);
        }
        let mut missing: Vec<i64> = Vec::new();
        for item in items {
            let day = item.accepted_at.day();
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
        days::make(session, self.vertical.fact_tables(), &missing).await?;
        self.days.extend(missing);
        Ok(())
    }

    fn bury_poison(&self, work: &Work<'_, V::Record>, range: &Range<usize>, effects: &mut Effects) {
        for (index, (why, detail)) in work.poison.range(range.clone()) {
            let Some(raw) = work.batch.records().get(*index) else {
                continue;
            };
            let item = item_at(&work.items, *index);
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

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}
