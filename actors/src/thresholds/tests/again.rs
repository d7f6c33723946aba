//! Dead letters that come again: what was decided since of their key has overtaken them, and what was decided of other keys has not.

use super::*;

/// One kind with a tracker of either sort: what was before is remembered, or told by the frame.
const TOLD: &str = r#"
[[trigger]]
id = "game.base.fell"
label = "A base fell"
description = "For tests."
subject_key = "base"
audience = "owner"
ceiling = "owner"
version = 1
variables = [{ name = "base", type = "string", required = true, example = "b1" }]

[[mapping]]
id = "fell"
frames = ["base"]
trigger = "game.base.fell"
tracker = "transition"
value = "stage"
set = ["down"]
previous = "was"
owner = "holder"
vars = { base = "id" }
"#;

/// One shard's feed, its partition and its owner.
struct World {
    plan: Plan,
    slice: Slice,
    store: Store,
    offset: i64,
    boot: String,
    seq: u64,
}

impl World {
    fn new(manifest: &str) -> World {
        World {
            plan: plan_of(manifest),
            slice: Slice::new(100),
            store: Store::default(),
            offset: 0,
            boot: "first".to_owned(),
            seq: 0,
        }
    }

    /// The next frame, at the next place of the log.
    fn next(&mut self, kind: &str, key: &str, body: &Value) -> Item<Frame> {
        self.seq += 1;
        let frame = Frame {
            v: WIRE_VERSION,
            ws: 1,
            shard: "atlantic".to_owned(),
            boot: self.boot.clone(),
            seq: self.seq,
            kind: kind.to_owned(),
            key: key.to_owned(),
            accepted_at: Micros(1_000),
            body: serde_json::value::to_raw_value(body).unwrap(),
            replay: None,
        };
        let mut items = items(&[frame], self.offset);
        self.offset += 1;
        items.remove(0)
    }

    fn base(&mut self, id: &str, holder: &str) -> Item<Frame> {
        self.next("base", id, &json!({"id": id, "holder": holder}))
    }

    fn clan(&mut self, clan: &str, who: &[&str]) -> Item<Frame> {
        let members: Vec<Value> = who.iter().map(|a| json!({"acct": a})).collect();
        self.next("clan", clan, &json!({"clan": clan, "members": members}))
    }

    fn reboot(&mut self, boot: &str) {
        self.boot = boot.to_owned();
        self.seq = 0;
    }

    /// Another owner takes the partition over, with nothing in memory.
    fn another_owner(&mut self) {
        self.slice = Slice::new(100);
    }

    fn decide(&mut self, items: &[Item<Frame>]) {
        self.store.attempt(&self.plan, &mut self.slice, items, true);
    }

    /// Sets a frame aside.
    fn dies(&mut self, item: &Item<Frame>) {
        self.store.refused.insert(item.id);
        self.decide(&[copy(item)]);
    }

    /// Mended, it comes again.
    fn comes(&mut self, letter: &Item<Frame>) {
        self.store.refused.remove(&letter.id);
        self.decide(&[again(letter)]);
    }

    fn n(&self, outcome: Outcome, why: &str) -> i64 {
        let key = (outcome, why.to_owned());
        self.store.outcomes.get(&key).copied().unwrap_or(0)
    }

    fn overtaken(&self) -> i64 {
        self.n(Outcome::Applied, reason::OVERTAKEN)
    }

    /// What was fired, by trigger and subject, since this was asked last.
    fn told(&mut self) -> Vec<String> {
        let fired = self.store.emitted.drain(..);
        fired
            .map(|f| format!("{} {}", f.trigger, f.subject))
            .collect()
    }

    /// What is remembered of who holds a base.
    fn holder(&self, id: &str) -> Option<&str> {
        let memory = self.store.memories.get(&format!("0/1/atlantic/{id}"));
        memory.map(|m| &**m)
    }

    fn members(&self, clan: &str) -> usize {
        let mut lists = self.store.lists.iter();
        lists
            .find(|(key, _)| *key.param == *clan)
            .map_or(0, |(_, members)| members.len())
    }
}

fn copy(item: &Item<Frame>) -> Item<Frame> {
    Item {
        record: item.record.clone(),
        ..*item
    }
}

/// A dead letter as it comes again.
fn again(letter: &Item<Frame>) -> Item<Frame> {
    Item {
        replayed: true,
        ..copy(letter)
    }
}

#[test]
fn a_list_is_cleared_though_its_shard_went_on() {
    let mut w = World::new(MANIFEST);
    let first = w.clan("c1", &["ann", "bob"]);
    w.decide(&[first]);
    let gone = w.next("clan.gone", "c1", &json!({"clan": "c1"}));
    w.dies(&gone);
    let others = [
        w.clan("c2", &["ann"]),
        w.base("b1", "ann"),
        w.base("c1x", "bob"),
    ];
    w.decide(&others);
    w.another_owner();
    assert_eq!(w.members("c1"), 2);
    w.comes(&gone);
    assert_eq!(w.told(), ["game.clan.gone c1"]);
    assert_eq!((w.members("c1"), w.members("c2")), (0, 1));
    assert_eq!(w.overtaken(), 0);
    assert!(w.store.letters.is_empty());
}

#[test]
fn a_frame_of_its_key_overtakes_it_though_nothing_changed() {
    let mut w = World::new(MANIFEST);
    let first = w.base("b1", "ann");
    w.decide(&[first]);
    let letter = w.base("b1", "bob");
    w.dies(&letter);
    let same = w.base("b1", "ann");
    w.decide(&[same]);
    w.another_owner();
    w.comes(&letter);
    assert_eq!(w.told(), Vec::<String>::new());
    assert_eq!(w.holder("b1"), Some("\"ann\""));
    assert_eq!(w.overtaken(), 1);
    assert!(w.store.letters.is_empty());
}

#[test]
fn a_frame_behind_it_in_its_own_batch_overtakes_it_and_one_before_it_does_not() {
    for (at, overtaken) in [(0, 1), (2, 0)] {
        let mut w = World::new(MANIFEST);
        let batch = ["ann", "bob", "eve"].map(|holder| w.base("b1", holder));
        let letter = copy(&batch[at]);
        w.store.refused.insert(letter.id);
        w.decide(&batch);
        // The shard goes on.
        let other = w.base("b2", "ann");
        w.decide(&[other]);
        w.comes(&letter);
        assert_eq!(w.overtaken(), overtaken);
        assert_eq!(w.holder("b1"), Some("\"eve\""));
    }
}

#[test]
fn two_letters_of_a_key_end_as_the_later_one_says_in_either_order() {
    for later_first in [false, true] {
        let mut w = World::new(MANIFEST);
        let first = w.base("b1", "ann");
        w.decide(&[first]);
        let letters = [w.base("b1", "bob"), w.base("b1", "eve")];
        for letter in &letters {
            w.dies(letter);
        }
        let other = w.base("b2", "ann");
        w.decide(&[other]);
        let [bob, eve] = &letters;
        if later_first {
            w.comes(eve);
            w.another_owner();
            w.comes(bob);
            assert_eq!((w.told().len(), w.overtaken()), (1, 1));
        } else {
            w.comes(bob);
            w.another_owner();
            w.comes(eve);
            assert_eq!((w.told().len(), w.overtaken()), (2, 0));
        }
        assert_eq!(w.holder("b1"), Some("\"eve\""));
    }
}

#[test]
fn a_boot_in_between_overtakes_nothing_and_its_frames_do() {
    for (key, overtaken) in [("b2", 0), ("b1", 1)] {
        let mut w = World::new(MANIFEST);
        let first = w.base("b1", "ann");
        w.decide(&[first]);
        let letter = w.base("b1", "bob");
        w.dies(&letter);
        for boot in ["second", "third", "fourth", "fifth", "sixth"] {
            w.reboot(boot);
            let of_boot = w.base(key, "ann");
            w.decide(&[of_boot]);
        }
        w.comes(&letter);
        assert_eq!(w.overtaken(), overtaken);
        assert_eq!(w.told().len(), usize::from(overtaken == 0));
    }
}

#[test]
fn a_letter_that_fails_again_is_what_it_was() {
    for overtaken in [false, true] {
        let mut w = World::new(MANIFEST);
        let first = w.base("b1", "ann");
        w.decide(&[first]);
        let letter = w.base("b1", "bob");
        w.dies(&letter);
        let other = w.base(if overtaken { "b1" } else { "b2" }, "ann");
        w.decide(&[other]);
        let before = w.store.letters.clone();
        assert_eq!(before.len(), 1);
        w.dies(&again(&letter));
        assert_eq!(w.store.letters, before);
        w.another_owner();
        w.dies(&again(&letter));
        assert_eq!(w.store.letters, before);
        w.comes(&letter);
        assert_eq!(w.overtaken(), i64::from(overtaken));
        assert!(w.store.letters.is_empty());
    }
}

#[test]
fn a_frame_of_two_sorts_is_taken_in_by_the_one_and_held_by_the_other() {
    let mut w = World::new(&format!("{MANIFEST}{TOLD}"));
    let body = |holder: &str| json!({"id": "b1", "holder": holder, "was": "up", "stage": "down"});
    let first = w.next("base", "b1", &body("ann"));
    w.decide(&[first]);
    assert_eq!(w.told(), ["game.base.fell b1"]);
    let letter = w.next("base", "b1", &body("bob"));
    w.dies(&letter);
    let other = w.base("b2", "ann");
    w.decide(&[other]);
    w.comes(&letter);
    // What was before is what the frame says it was, and another key may have had a say in that.
    assert_eq!(w.told(), ["game.base.moved b1"]);
    assert_eq!(w.holder("b1"), Some("\"bob\""));
    assert_eq!(w.overtaken(), 1);
}

/// A later event of another key may have called off what it would tell of the same subject.
#[test]
fn where_a_subject_is_no_key_any_frame_of_the_shard_overtakes() {
    let other = MANIFEST.replace(
        r#"owner = "holder"
vars = { base = "id" }
"#,
        r#"owner = "holder"
vars = { base = "holder" }
"#,
    );
    assert_ne!(other, MANIFEST);
    for (manifest, overtaken) in [(MANIFEST, 0), (&*other, 1)] {
        let mut w = World::new(manifest);
        let first = w.base("b1", "ann");
        w.decide(&[first]);
        let letter = w.base("b1", "bob");
        w.dies(&letter);
        let other = w.base("b2", "ann");
        w.decide(&[other]);
        w.comes(&letter);
        assert_eq!(w.overtaken(), overtaken);
    }
}

/// As one of before letters were kept, one that was forgotten, and one that the store cannot name.
#[test]
fn without_a_letter_any_frame_of_the_shard_overtakes() {
    for key in ["b1", "a\0b"] {
        for goes_on in [false, true] {
            let mut w = World::new(MANIFEST);
            let first = w.base("b0", "ann");
            w.decide(&[first]);
            let letter = w.next("base", key, &json!({"id": "b1", "holder": "bob"}));
            w.dies(&letter);
            assert_eq!(w.store.letters.len(), usize::from(key == "b1"));
            w.store.letters.clear();
            w.another_owner();
            if goes_on {
                let other = w.base("b2", "ann");
                w.decide(&[other]);
            }
            w.comes(&letter);
            assert_eq!(w.overtaken(), i64::from(goes_on), "{key:?}");
        }
    }
}

/// What was decided before it in time stands behind it in the log, as where a position was set back.
#[test]
fn a_frame_that_is_passed_already_leaves_no_letter() {
    let mut w = World::new(MANIFEST);
    let passed = w.base("b1", "bob");
    let later = w.base("b1", "ann");
    w.decide(&[later]);
    w.dies(&passed);
    assert!(w.store.letters.is_empty());
    w.comes(&passed);
    assert_eq!(w.overtaken(), 1);
    assert_eq!(w.holder("b1"), Some("\"ann\""));
}

/// One record of a walk: which key, whether it is a letter that comes again, and which, whether it is set aside.
type Turn = (u8, Option<usize>, bool);

proptest! {
    /// Against a list that forgets nothing: a letter is overtaken where a record of its key that stands behind it in the log was
    /// decided since, and by nothing else.
    #[test]
    fn a_letter_is_overtaken_by_what_stands_behind_it_of_its_key(
        batches in prop::collection::vec(
            (
                prop::collection::vec((0u8..4, prop::option::weighted(0.3, 0usize..9), prop::bool::weighted(0.3)), 1..5),
                0u8..8,
            ),
            1..30,
        ),
    ) {
        let mut w = World::new(MANIFEST);
        let mut open: Vec<(Item<Frame>, bool)> = Vec::new();
        let mut expected = 0;
        let batches: Vec<(Vec<Turn>, u8)> = batches;
        for (n, (turns, event)) in batches.into_iter().enumerate() {
            let mut batch = Vec::new();
            if event == 0 || n == 0 {
                w.reboot(&format!("boot{n}"));
                batch.push(w.next("weather", "x", &json!({"rain": true})));
            }
            // A record of the log comes once in a batch, and what dies in this one comes again in another.
            let mut left: Vec<usize> = (0..open.len()).collect();
            let mut decided: Vec<RecordId> = Vec::new();
            let mut died: Vec<(Item<Frame>, bool)> = Vec::new();
            for (at, (key, letter, dies)) in turns.into_iter().enumerate() {
                let letter = letter.filter(|_| !left.is_empty()).map(|l| left.remove(l % left.len()));
                let item = match letter {
                    Some(place) => again(&open[place].0),
                    None => w.base(&format!("b{key}"), &format!("holder{n}x{at}")),
                };
                if dies {
                    w.store.refused.insert(item.id);
                    if !item.replayed {
                        died.push((copy(&item), false));
                    }
                } else {
                    w.store.refused.remove(&item.id);
                    if let Some(place) = letter {
                        expected += i64::from(open[place].1);
                        decided.push(item.id);
                    }
                    for (other, overtaken) in open.iter_mut().chain(&mut died) {
                        let before = !item.replayed || other.id < item.id;
                        *overtaken |= before && other.record.key == item.record.key;
                    }
                }
                batch.push(item);
            }
            if event == 1 {
                w.another_owner();
            }
            if event == 2 {
                w.store.attempt(&w.plan, &mut w.slice, &batch, false);
            }
            w.decide(&batch);
            open.retain(|(letter, _)| !decided.contains(&letter.id));
            open.extend(died);
            prop_assert_eq!(w.overtaken(), expected);
            let held: Vec<(RecordId, bool)> = w.store.letters.iter().map(|(id, row)| (*id, row.2)).collect();
            let mut wanted: Vec<(RecordId, bool)> = open.iter().map(|(l, overtaken)| (l.id, *overtaken)).collect();
            wanted.sort_unstable();
            prop_assert_eq!(held, wanted);
        }
    }
}

#[test]
fn where_its_kind_is_keyed_by_another_path_now_or_its_topic_was_another_its_shard_decides() {
    let keyed = "kind = \"base\"\nkey = \"id\"";
    assert!(MANIFEST.contains(keyed));
    let other_path = MANIFEST.replace(keyed, "kind = \"base\"\nkey = \"holder\"");
    for (manifest, partition, overtaken) in
        [(MANIFEST, 0, 0), (&*other_path, 0, 1), (MANIFEST, 1, 1)]
    {
        let mut w = World::new(MANIFEST);
        let mut letter = w.base("b1", "ann");
        letter.id.partition = partition;
        w.dies(&letter);
        let later = w.base("b2", "bob");
        // Another partition's frames are not in this one's window.
        if partition == 0 {
            w.decide(&[later]);
        }
        w.plan = plan_of(manifest);
        w.another_owner();
        if partition == 1 {
            w.store.letters.clear();
        }
        w.comes(&letter);
        assert_eq!(w.overtaken(), overtaken, "{partition}");
        assert_eq!(w.holder("b1").is_some(), overtaken == 0);
    }
}
