//! One frame at a time, pure: is it new, does anything read it, what do its trackers make of it. Frames that fire or change a roster
//! become steps, which [`super::settle`] takes up when owners and lists are known.

use super::draft::{Draft, Part, Step};
use super::letters::{Buried, Turned};
use super::plan::{Plan, Reads};
use super::reach;
use super::roster::{self, ListKey};
use super::slice::{Shard, ShardRef, Slice, StateRef};
use super::tracker;
use crate::modules::field::Fields;
use crate::modules::module::Kind;
use crate::modules::tracker::Tracker;
use crate::runtime::vertical::{Effects, Item};
use millrace_schemas::frame::{Frame, MAX_KEY_BYTES, is_shard_id};
use millrace_schemas::outcome::{Outcome, reason};
use std::sync::Arc;

/// What may have been decided since a frame was set aside that comes again. What it says of a state is no longer so then.
#[derive(Debug, Clone, Copy, Default)]
struct Overtaken {
    /// A frame of its shard.
    by_shard: bool,
    /// A frame of its key. Without a letter that says so, any frame of its shard may have been one.
    by_key: bool,
}

impl Overtaken {
    /// The same of a kind as its module reads it now. Where that keys its frames by another path than the door did that took the
    /// frame in, its letter was watched for frames of a key that come no more.
    fn of_kind(self, frame: &Frame, kind: &Kind) -> Overtaken {
        if !self.by_shard || self.by_key {
            return self;
        }
        let key = kind.key_of(&frame.shard, frame.body.get());
        Overtaken {
            by_key: !matches!(key, Ok(Some(key)) if key == frame.key),
            ..self
        }
    }

    /// Whether a state is no longer as the frame says. `is_of_key`: frames of its key alone change that state ([`reach`]).
    fn holds(self, is_of_key: impl FnOnce() -> bool) -> bool {
        self.by_key || (self.by_shard && !is_of_key())
    }
}

/// What deciding reads and changes.
pub struct Deciding<'a> {
    /// The partition that is decided.
    pub partition: i32,
    /// The enabled modules.
    pub plan: &'a Plan,
    /// The slice.
    pub slice: &'a Slice,
    /// The overlay.
    pub draft: &'a mut Draft,
    /// Outcomes.
    pub effects: &'a mut Effects,
}

impl Deciding<'_> {
    /// Decides one frame.
    pub fn frame(&mut self, item: &Item<Frame>) {
        let frame = &item.record;
        let mut overtaken = Overtaken::default();
        if item.replayed {
            // A dead letter that comes again was taken in before, and changed nothing then.
            overtaken = self.admit_again(item);
        } else if !self.admit(frame) {
            self.effects.tally.add(item.id, Outcome::Duplicate, "", 1);
            return;
        }
        let plan = self.plan;
        let Some(readers) = plan.mapped(&frame.kind) else {
            self.effects
                .tally
                .add(item.id, Outcome::Applied, reason::UNMAPPED, 1);
            return;
        };
        match self.parts(frame, readers, overtaken) {
            Err(why) => self.effects.tally.add(item.id, Outcome::Rejected, why, 1),
            Ok((parts, held)) if parts.is_empty() => {
                self.effects.tally.add(item.id, Outcome::Applied, held, 1);
            }
            Ok((parts, held)) => match serde_json::from_str(frame.body.get()) {
                Ok(body) => self.draft.steps.push(Step {
                    id: item.id,
                    accepted_at: item.accepted_at,
                    // What was set aside and comes again happened when it was accepted.
                    at: if item.replayed {
                        item.accepted_at
                    } else {
                        item.stream
                    },
                    shard: frame.shard.as_str().into(),
                    frame: frame.clone(),
                    body,
                    parts,
                    held,
                }),
                Err(_) => {
                    self.effects
                        .tally
                        .add(item.id, Outcome::Rejected, reason::FRAME_UNREADABLE, 1)
                }
            },
        }
    }

    /// Whether the frame has not been here before. One that has not overtakes the letters of its key.
    fn admit(&mut self, frame: &Frame) -> bool {
        let place = place_of(frame);
        let Draft {
            shards, letters, ..
        } = &mut *self.draft;
        if let Some(shard) = shards.get_mut(&place) {
            return admit(shard, letters, frame);
        }
        let mut shard = self.slice.shard(&place).cloned().unwrap_or_default();
        let new = admit(&mut shard, letters, frame);
        shards.insert(place.owned(), shard);
        new
    }

    /// Takes in a dead letter that comes again, whose letter goes with that. Answers what may have overtaken it: without a letter, or
    /// with one that was overtaken, any later frame of its shard.
    fn admit_again(&mut self, item: &Item<Frame>) -> Overtaken {
        let frame = &item.record;
        let (shard, letters) = shard_of(self.slice, self.draft, frame);
        // What was set aside in another partition was of a topic with fewer: what was decided there since, this window cannot say.
        let by_shard =
            item.id.partition != self.partition || !shard.window.is_latest(&frame.boot, frame.seq);
        shard.window.admit_again(&frame.boot, frame.seq);
        let letter = shard.letters.take(&frame.key, item.id);
        if letter.is_some() {
            letters.gone.push(item.id);
        }
        let overtaken = &mut letters.overtaken;
        shard.letters.overtake(&frame.key, Some(item.id), overtaken);
        Overtaken {
            by_shard,
            by_key: by_shard && letter != Some(false),
        }
    }

    /// What the frame is to each module that reads it, where it is anything, and why it is not taken in as a whole. Where it is
    /// overtaken, it neither steps a tracker that remembers nor changes a roster.
    fn parts<'r>(
        &mut self,
        frame: &Frame,
        readers: impl Iterator<Item = Reads<'r>>,
        overtaken: Overtaken,
    ) -> Result<(Vec<Part>, &'static str), &'static str> {
        let mut parts = Vec::new();
        let mut held = reason::NONE;
        for reads in readers {
            let overtaken = overtaken.of_kind(frame, reads.kind);
            let fields = reads
                .kind
                .reader
                .read(frame.body.get())
                .map_err(|_| reason::FRAME_UNREADABLE)?;
            let part = self.part(&reads, frame, &fields, overtaken);
            if part.held {
                held = reason::OVERTAKEN;
            }
            if !(part.fired.is_empty() && part.changes.is_empty()) {
                parts.push(part);
            }
        }
        Ok((parts, held))
    }

    fn part(
        &mut self,
        reads: &Reads<'_>,
        frame: &Frame,
        fields: &impl Fields,
        overtaken: Overtaken,
    ) -> Part {
        let mut part = Part {
            module: reads.place,
            ..Part::default()
        };
        for (at, number, mapping) in reads.mappings() {
            if !mapping.applies(fields) {
                continue;
            }
            if matches!(mapping.tracker, Tracker::Roster { .. }) {
                part.watching.push(at);
                continue;
            }
            if !tracker::remembers(&mapping.tracker) {
                // What it says of a state is no longer so, and would call off what was said since.
                if overtaken.by_shard && !matches!(mapping.tracker, Tracker::Always) {
                    part.held = true;
                    continue;
                }
                if tracker::step(&mapping.tracker, None, fields).fires {
                    part.fired.push(at);
                }
                continue;
            }
            if overtaken.holds(|| reach::mapping_is_of_key(reads.module, mapping)) {
                part.held = true;
                continue;
            }
            let key = StateRef {
                mapping: number,
                workspace: frame.ws,
                shard: &frame.shard,
                key: &frame.key,
            };
            let before = match self.draft.memories.get(&key) {
                Some(memory) => Some(&**memory),
                None => self.slice.memory(&key).flatten(),
            };
            let step = tracker::step(&mapping.tracker, before, fields);
            if let Some(memory) = step.memory {
                self.draft.memories.insert(key.owned(), memory);
            }
            if step.fires {
                part.fired.push(at);
            }
        }
        for (at, found, feed) in reads.feeds() {
            let long = &mut self.draft.long_names;
            let Some(change) = roster::change_of(&feed.change, &frame.key, fields, long) else {
                continue;
            };
            if overtaken.holds(|| reach::change_is_of_key(reads.module, reads.kind, at, found)) {
                part.held = true;
                continue;
            }
            let list = ListKey {
                workspace: frame.ws,
                module: self.plan.module_id(reads.place),
                roster: self.plan.roster_id(reads.place, at),
                shard: frame.shard.as_str().into(),
                param: list_param(found.keyed, &frame.key),
            };
            part.changes.push((at, list, change));
        }
        part
    }
}

/// Takes note of a frame that is set aside: a letter from now on. One that was a dead letter before stays what it is.
pub fn set_aside(slice: &Slice, draft: &mut Draft, item: &Item<Frame>) {
    let frame = &item.record;
    // The store must take the letter whatever the frame says: without one it is judged by its shard when it comes.
    let is_storable =
        is_shard_id(&frame.shard) && frame.key.len() <= MAX_KEY_BYTES && !frame.key.contains('\0');
    if item.replayed || !is_storable {
        return;
    }
    // Written with its letter, the shard vouches for it.
    let (shard, letters) = shard_of(slice, draft, frame);
    // Behind later ones already, as when a position was set back: of which keys those were is not known.
    if shard.window.is_passed(&frame.boot, frame.seq)
        || !shard.letters.put(&frame.key, item.id, false)
    {
        return;
    }
    letters.buried.push(Buried {
        id: item.id,
        shard: place_of(frame).owned(),
        key: frame.key.as_str().into(),
    });
    letters.gone.extend(shard.letters.bound());
}

fn place_of(frame: &Frame) -> ShardRef<'_> {
    ShardRef {
        workspace: frame.ws,
        shard: &frame.shard,
    }
}

/// A frame's shard as the batch leaves it, and what became of letters.
fn shard_of<'d>(
    slice: &Slice,
    draft: &'d mut Draft,
    frame: &Frame,
) -> (&'d mut Shard, &'d mut Turned) {
    let place = place_of(frame);
    let shard = draft.shards.entry(place.owned());
    let shard = shard.or_insert_with(|| slice.shard(&place).cloned().unwrap_or_default());
    (shard, &mut draft.letters)
}

fn admit(shard: &mut Shard, letters: &mut Turned, frame: &Frame) -> bool {
    let new = shard.window.admit(&frame.boot, frame.seq);
    if new && !shard.letters.is_empty() {
        shard
            .letters
            .overtake(&frame.key, None, &mut letters.overtaken);
    }
    new
}

/// The parameter of the list that a frame is about.
pub(super) fn list_param(keyed: bool, key: &str) -> Arc<str> {
    if keyed { key } else { "" }.into()
}
