//! One frame at a time, pure: is it new, does anything read it, what do its trackers make of it. Frames that fire or change a roster
//! become steps, which [`super::settle`] takes up when owners and lists are known.

use super::draft::{Draft, Part, Step};
use super::plan::{Plan, Reads};
use super::roster::{self, ListKey};
use super::slice::{ShardRef, Slice, StateRef};
use super::tracker;
use crate::modules::field::Fields;
use crate::modules::tracker::Tracker;
use crate::runtime::vertical::{Effects, Item};
use millrace_schemas::frame::Frame;
use millrace_schemas::outcome::{Outcome, reason};
use std::sync::Arc;

/// What deciding reads and changes.
pub struct Deciding<'a> {
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
        // A dead letter that comes again was taken in before, and changed nothing then.
        let overtaken = item.replayed && self.admit_again(frame);
        if !item.replayed && !self.admit(frame) {
            self.effects.tally.add(item.id, Outcome::Duplicate, "", 1);
            return;
        }
        if !self.plan.is_mapped(&frame.kind) {
            self.effects
                .tally
                .add(item.id, Outcome::Applied, reason::UNMAPPED, 1);
            return;
        }
        match self.parts(frame, overtaken) {
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

    /// Whether the frame has not been here before.
    fn admit(&mut self, frame: &Frame) -> bool {
        let shard = ShardRef {
            workspace: frame.ws,
            shard: &frame.shard,
        };
        if let Some(window) = self.draft.windows.get_mut(&shard) {
            return window.admit(&frame.boot, frame.seq);
        }
        let mut window = self.slice.window(&shard).cloned().unwrap_or_default();
        let new = window.admit(&frame.boot, frame.seq);
        self.draft.windows.insert(shard.owned(), window);
        new
    }

    /// Takes in a dead letter that comes again. Answers whether a later frame of its shard may have been decided since: which keys
    /// those were of is kept nowhere, so any of them may have been of its own, and what it says of a state is no longer so.
    fn admit_again(&mut self, frame: &Frame) -> bool {
        let shard = ShardRef {
            workspace: frame.ws,
            shard: &frame.shard,
        };
        let held = self.slice.window(&shard);
        let window = self
            .draft
            .windows
            .entry(shard.owned())
            .or_insert_with(|| held.cloned().unwrap_or_default());
        let overtaken = !window.is_latest(&frame.boot, frame.seq);
        window.admit_again(&frame.boot, frame.seq);
        overtaken
    }

    /// What the frame is to each module that reads it, where it is anything, and why it is not taken in as a whole. Overtaken: it
    /// neither steps a tracker that remembers nor changes a roster.
    fn parts(
        &mut self,
        frame: &Frame,
        overtaken: bool,
    ) -> Result<(Vec<Part>, &'static str), &'static str> {
        let mut parts = Vec::new();
        let mut held = reason::NONE;
        let plan = self.plan;
        for reads in plan.readers(&frame.kind) {
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
        overtaken: bool,
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
                if overtaken && !matches!(mapping.tracker, Tracker::Always) {
                    part.held = true;
                    continue;
                }
                if tracker::step(&mapping.tracker, None, fields).fires {
                    part.fired.push(at);
                }
                continue;
            }
            if overtaken {
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
            if overtaken {
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

/// The parameter of the list that a frame is about.
pub(super) fn list_param(keyed: bool, key: &str) -> Arc<str> {
    if keyed { key } else { "" }.into()
}
