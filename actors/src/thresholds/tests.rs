//! The vertical without a store, against itself: whatever is cut into whatever batches, rolled back, sent again, or read by an owner
//! that holds nothing, fires what one undisturbed pass fires.

use super::decide::{self, Deciding};
use super::draft::{AccountKey, Draft, Link};
use super::plan::Plan;
use super::roster::{ListKey, Members};
use super::settle;
use super::slice::{Memory, Shard, ShardKey, ShardRef, Slice, StateKey, StateRef};
use super::tracker;
use crate::modules::{Modules, compile};
use crate::runtime::vertical::{Effects, Item};
use hashbrown::HashMap;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::firing::Firing;
use millrace_schemas::frame::{Frame, ReplayWindow};
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::time::Micros;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod again;

const MANIFEST: &str = r#"
id = "game"
label = "A game"
description = "For tests."
protocol = 1

[[frame]]
kind = "base"
key = "id"

[[frame]]
kind = "clan"
key = "clan"

[[frame]]
kind = "clan.gone"
key = "clan"

[[trigger]]
id = "game.base.moved"
label = "A base changed hands"
description = "For tests."
subject_key = "base"
audience = "owner"
ceiling = "owner"
version = 1
variables = [
    { name = "base", type = "string", required = true, example = "b1" },
    { name = "level", type = "int", example = 1 },
]

[[trigger]]
id = "game.base.low"
label = "A base runs low"
description = "For tests."
subject_key = "base"
audience = "owner"
ceiling = "owner"
version = 1
variables = [{ name = "base", type = "string", required = true, example = "b1" }]

[[trigger]]
id = "game.clan.left"
label = "Somebody left"
description = "For tests."
subject_key = "clan"
audience = "members"
ceiling = "members"
version = 1
variables = [
    { name = "clan", type = "string", required = true, example = "c1" },
    { name = "who", type = "string", example = "ann" },
]

[[trigger]]
id = "game.clan.gone"
label = "A clan is gone"
description = "For tests."
subject_key = "clan"
audience = "members"
ceiling = "members"
version = 1
variables = [{ name = "clan", type = "string", required = true, example = "c1" }]

[[roster]]
id = "game.clan.members"
param = "clan"
feeds = [
    { frame = "clan", change = "replace", param = "clan", members = "members", account = "acct" },
    { frame = "clan.gone", change = "clear", param = "clan" },
]

[[mapping]]
id = "moved"
frames = ["base"]
trigger = "game.base.moved"
tracker = "changed"
value = "holder"
owner = "holder"
vars = { base = "id", level = "level" }

[[mapping]]
id = "low"
frames = ["base"]
trigger = "game.base.low"
tracker = "crossing"
value = "level"
thresholds = [2.0]
hysteresis = 2.0
direction = "falling"
owner = "holder"
vars = { base = "id" }

[[mapping]]
id = "left"
frames = ["clan"]
trigger = "game.clan.left"
tracker = "roster"
roster = "game.clan.members"
change = "left"
recipients = true
vars = { clan = "clan", who = "member.account" }

[[mapping]]
id = "gone"
frames = ["clan.gone"]
trigger = "game.clan.gone"
tracker = "roster"
roster = "game.clan.members"
change = "cleared"
recipients = true
vars = { clan = "clan" }
"#;

fn plan() -> Plan {
    plan_of(MANIFEST)
}

fn plan_of(manifest: &str) -> Plan {
    let module = compile("game.toml", manifest).unwrap_or_else(|f| panic!("{f:?}"));
    let modules = Modules::assemble(vec![("game.toml".to_owned(), module)]).unwrap();
    Plan::new(Arc::new(modules))
}

/// What a store would hold, and what was emitted and counted.
#[derive(Debug, Default, Clone, PartialEq)]
struct Store {
    windows: BTreeMap<ShardKey, ReplayWindow>,
    /// Letters with their shard and key, and whether they were overtaken.
    letters: BTreeMap<RecordId, (ShardKey, Box<str>, bool)>,
    /// What is set aside instead of decided.
    refused: BTreeSet<RecordId>,
    memories: BTreeMap<String, Memory>,
    lists: BTreeMap<ListKey, Members>,
    emitted: Vec<Firing>,
    outcomes: BTreeMap<(Outcome, String), i64>,
}

fn name(key: &StateKey) -> String {
    let StateRef { shard, key: of, .. } = key.borrowed();
    format!("{}/{}/{shard}/{of}", key.mapping, key.workspace)
}

/// Ann and Bob are users, Eve is none.
fn links(accounts: &[AccountKey]) -> HashMap<AccountKey, Vec<Link>> {
    let known = accounts.iter().filter(|a| *a.account != *"eve");
    known
        .map(|a| {
            let link = Link {
                user: format!("user-{}-{}", a.shard, a.account),
                live: true,
                linked_at: None,
                unlinked_at: None,
            };
            (a.clone(), vec![link])
        })
        .collect()
}

impl Store {
    /// A shard as an owner finds it that holds nothing.
    fn shard(&self, key: &ShardKey) -> Shard {
        let mut shard = Shard {
            window: self.windows.get(key).cloned().unwrap_or_default(),
            ..Shard::default()
        };
        for (id, (_, of, overtaken)) in self.letters.iter().filter(|(_, row)| row.0 == *key) {
            shard.letters.put(of, *id, *overtaken);
        }
        shard
    }

    /// One attempt at a batch, as the shell makes it. Not committed: what it decided is dropped.
    fn attempt(&mut self, plan: &Plan, slice: &mut Slice, items: &[Item<Frame>], commit: bool) {
        for item in items {
            let frame = &item.record;
            let shard = ShardRef {
                workspace: frame.ws,
                shard: &frame.shard,
            };
            if slice.shard(&shard).is_none() {
                slice.put_shard(shard.owned(), self.shard(&shard.owned()));
            }
            for reads in plan.readers(&frame.kind) {
                for (_, mapping, _) in reads
                    .mappings()
                    .filter(|(_, _, m)| tracker::remembers(&m.tracker))
                {
                    let key = StateRef {
                        mapping,
                        workspace: frame.ws,
                        shard: &frame.shard,
                        key: &frame.key,
                    };
                    if slice.memory(&key).is_none() {
                        let held = self.memories.get(&name(&key.owned())).cloned();
                        slice.remember(key.owned(), held);
                    }
                }
            }
        }
        let (mut draft, mut effects) = (Draft::default(), Effects::default());
        for item in items {
            if self.refused.contains(&item.id) {
                decide::set_aside(slice, &mut draft, item);
                continue;
            }
            Deciding {
                partition: 0,
                plan,
                slice,
                draft: &mut draft,
                effects: &mut effects,
            }
            .frame(item);
        }
        let needs = settle::needs(plan, &draft.steps);
        let held = |key: &ListKey| self.lists.get(key).cloned().unwrap_or_default();
        draft.found.lists = needs.lists.iter().map(|k| (k.clone(), held(k))).collect();
        let accounts = settle::accounts(plan, &draft.steps, &needs, &draft.found);
        draft.found.links = links(&accounts);
        settle::settle(plan, 2, &mut draft, &mut effects);
        if !commit {
            return;
        }
        let emitted = effects.emits.iter().map(|e| {
            let firing: Firing = serde_json::from_slice(&e.payload).unwrap();
            assert_eq!(e.key, firing.log_key().into_bytes());
            firing
        });
        self.emitted.extend(emitted);
        for (_, _, outcome, why, n) in effects.tally.changes() {
            *self.outcomes.entry((outcome, why.to_owned())).or_default() += n;
        }
        for (key, memory) in &draft.memories {
            self.memories.insert(name(key), memory.clone());
        }
        for letter in draft.letters.buried {
            let row = (letter.shard, letter.key, false);
            assert_eq!(self.letters.insert(letter.id, row), None);
        }
        for id in &draft.letters.overtaken {
            self.letters.get_mut(id).expect("a letter").2 = true;
        }
        for id in &draft.letters.gone {
            self.letters.remove(id).expect("a letter");
        }
        for (key, shard) in draft.shards {
            self.windows.insert(key.clone(), shard.window.clone());
            assert_eq!(self.shard(&key), shard, "what another owner would find");
            slice.put_shard(key, shard);
        }
        self.lists.extend(draft.lists);
        for (key, memory) in draft.memories {
            slice.remember(key, Some(memory));
        }
        slice.bound();
    }
}

fn body() -> impl Strategy<Value = (&'static str, &'static str, Value)> {
    let who = || prop::sample::select(vec!["ann", "bob", "eve"]);
    let base = prop::sample::select(vec!["b1", "b2"]);
    let clan = || prop::sample::select(vec!["c1", "c2"]);
    prop_oneof![
        6 => (base, prop::option::weighted(0.8, who()), prop::option::of(0i64..6)).prop_map(|(id, holder, level)| {
            ("base", id, json!({"id": id, "holder": holder, "level": level}))
        }),
        4 => (clan(), prop::collection::btree_set(who(), 0..4)).prop_map(|(clan, who)| {
            let members: Vec<Value> = who.into_iter().map(|a| json!({"acct": a})).collect();
            ("clan", clan, json!({"clan": clan, "members": members}))
        }),
        1 => clan().prop_map(|clan| ("clan.gone", clan, json!({"clan": clan}))),
        1 => Just(("weather", "x", json!({"rain": true}))),
    ]
}

/// Frames of two shards with equal keys, each numbered by its shard.
fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let one = (any::<bool>(), body());
    prop::collection::vec(one, 1..40).prop_map(|all| {
        let mut seqs = [0u64; 2];
        all.into_iter()
            .map(|(second, (kind, key, body))| {
                let seq = &mut seqs[usize::from(second)];
                *seq += 1;
                Frame {
                    v: WIRE_VERSION,
                    ws: 1,
                    shard: if second { "pacific" } else { "atlantic" }.to_owned(),
                    boot: "b".to_owned(),
                    seq: *seq,
                    kind: kind.to_owned(),
                    key: key.to_owned(),
                    accepted_at: Micros(1_000),
                    body: serde_json::value::to_raw_value(&body).unwrap(),
                    replay: None,
                }
            })
            .collect()
    })
}

fn items(frames: &[Frame], from: i64) -> Vec<Item<Frame>> {
    frames
        .iter()
        .zip(from..)
        .enumerate()
        .map(|(index, (frame, offset))| Item {
            id: RecordId {
                topic_no: 1,
                partition: 0,
                offset,
            },
            index,
            accepted_at: frame.accepted_at,
            stream: frame.accepted_at,
            replayed: false,
            record: frame.clone(),
        })
        .collect()
}

/// A firing without what its place in the log says.
fn said(firings: &[Firing]) -> Vec<Firing> {
    firings
        .iter()
        .map(|f| Firing {
            id: String::new(),
            ..f.clone()
        })
        .collect()
}

/// What happens to a batch: how many frames it takes, how often it is rolled back first, whether an owner that holds nothing goes
/// on, how many frames that were there before come again behind it.
type Turn = (usize, u8, bool, usize);

proptest! {
    #[test]
    fn crashes_replays_and_batches_change_nothing(
        frames in frames(),
        turns in prop::collection::vec((1usize..7, 0u8..3, any::<bool>(), 0usize..5), 40),
        bound in 0usize..6,
    ) {
        let plan = plan();
        let mut calm = Store::default();
        calm.attempt(&plan, &mut Slice::new(100), &items(&frames, 0), true);

        let mut rough = Store::default();
        let mut slice = Slice::new(bound);
        let (mut at, mut offset, mut again) = (0, 0, 0);
        let turns: Vec<Turn> = turns;
        for (take, rollbacks, fresh, repeats) in turns {
            if at >= frames.len() {
                break;
            }
            let end = (at + take).min(frames.len());
            let mut batch = frames[at..end].to_vec();
            batch.extend_from_slice(&frames[at.saturating_sub(repeats)..at]);
            again += at - at.saturating_sub(repeats);
            let items = items(&batch, offset);
            offset += items.len() as i64;
            at = end;
            for _ in 0..rollbacks {
                rough.attempt(&plan, &mut slice, &items, false);
            }
            if fresh {
                slice = Slice::new(bound);
            }
            rough.attempt(&plan, &mut slice, &items, true);
        }
        prop_assert_eq!(said(&rough.emitted), said(&calm.emitted));
        prop_assert_eq!(&rough.memories, &calm.memories);
        prop_assert_eq!(&rough.lists, &calm.lists);
        let duplicates = rough.outcomes.remove(&(Outcome::Duplicate, String::new()));
        prop_assert_eq!(duplicates.unwrap_or(0), again as i64);
        prop_assert_eq!(&rough.outcomes, &calm.outcomes);
        let weather = frames.iter().filter(|f| f.kind == "weather").count() as i64;
        let unmapped = (Outcome::Applied, reason::UNMAPPED.to_owned());
        prop_assert_eq!(calm.outcomes.get(&unmapped).copied().unwrap_or(0), weather);
        let mut ids: Vec<&str> = rough.emitted.iter().map(|f| &*f.id).collect();
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        prop_assert_eq!(ids.len(), all, "each firing has an id of its own");
    }

    /// What one shard's frames fire is what they fire alone.
    #[test]
    fn shards_never_meet(frames in frames()) {
        let plan = plan();
        let mut both = Store::default();
        both.attempt(&plan, &mut Slice::new(100), &items(&frames, 0), true);
        for shard in ["atlantic", "pacific"] {
            let own: Vec<Frame> = frames.iter().filter(|f| f.shard == shard).cloned().collect();
            let mut alone = Store::default();
            alone.attempt(&plan, &mut Slice::new(100), &items(&own, 0), true);
            let of_both: Vec<Firing> = both.emitted.iter().filter(|f| f.shard == shard).cloned().collect();
            prop_assert_eq!(said(&of_both), said(&alone.emitted));
        }
    }
}

#[test]
fn a_number_beyond_all_range_is_rejected_and_a_deep_body_too() {
    let plan = plan();
    let frame = |seq, body: String| Frame {
        v: WIRE_VERSION,
        ws: 1,
        shard: "atlantic".to_owned(),
        boot: "b".to_owned(),
        seq,
        kind: "base".to_owned(),
        key: "b1".to_owned(),
        accepted_at: Micros(1),
        body: serde_json::value::RawValue::from_string(body).unwrap(),
        replay: None,
    };
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let frames = [
        frame(1, r#"{"id":"b1","holder":"ann","level":1e999}"#.to_owned()),
        frame(2, format!(r#"{{"id":"b1","holder":{deep}}}"#)),
        frame(3, r#"{"id":"b1","holder":"ann","level":5}"#.to_owned()),
        // It fires, and what no mapping reads cannot be held.
        frame(4, r#"{"id":"b1","holder":"bob","other":1e999}"#.to_owned()),
        frame(5, r#"{"id":"b1","holder":"bob","level":"many"}"#.to_owned()),
        frame(6, r#"{"id":"b1","holder":"ann","level":"many"}"#.to_owned()),
    ];
    let mut store = Store::default();
    store.attempt(&plan, &mut Slice::new(9), &items(&frames, 0), true);
    let n = |outcome, why: &str| {
        let key = (outcome, why.to_owned());
        store.outcomes.get(&key).copied().unwrap_or(0)
    };
    assert_eq!(n(Outcome::Rejected, reason::FRAME_UNREADABLE), 3);
    assert_eq!(n(Outcome::Rejected, "variable_type"), 1);
    assert_eq!(n(Outcome::Applied, ""), 2);
    assert!(store.emitted.is_empty());
}
