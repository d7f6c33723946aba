//! A model of all gates together: what the actors decide, over a store that the model keeps. Firings of every ceiling, rules that aim
//! anywhere, two partitions of each group with clocks of their own, records accepted late, crashes before and after a commit, and
//! people, preferences and rules that change at any moment. Whatever happens, nobody outside an event's ceiling is told of it, and
//! nobody twice within a cooldown.
//!
//! What the model adds is the store alone: who is who, and the sets that the statements of `directory::audience` select. Whom a
//! ceiling holds is written down a second time, from what it is defined as (`Bound`).

mod scenery;
mod world;

use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use proptest::prelude::*;
use proptest::sample::select;
use scenery::{PARTITIONS, RULES, SAVED, SUBJECTS, TREES, TRIGGERS, USERS};
use world::World;

/// What becomes of an actor with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    /// Nothing of the batch is left; it comes again.
    DiesBefore,
    /// All of it is; the actor knows nothing any more.
    DiesAfter,
}

/// Something that fires.
#[derive(Clone, Debug)]
struct Shot {
    trigger: usize,
    subject: usize,
    owner: Option<usize>,
    list: Option<Vec<usize>>,
    ceiling: Option<Ceiling>,
    event: u8,
    /// Seconds for which it lay somewhere after it was accepted.
    late: i64,
}

/// Whom a rule is aimed at.
#[derive(Clone, Debug)]
enum Aim {
    Audience(Option<&'static str>),
    Segment(usize),
}

#[derive(Clone, Debug)]
enum Step {
    Fire(Shot),
    /// A partition of engagement takes so many firings.
    Engage(usize, usize, Fate),
    /// A partition of recipients takes so many notices.
    Decide(usize, usize, Fate),
    Role(usize, &'static str),
    Active(usize, bool),
    /// A user's address is put on the list of the suppressed, or taken off it.
    Suppressed(usize, bool),
    /// A user says something of a trigger, or of all.
    Says(usize, Option<usize>, Channel, Mode),
    Switch(usize, bool),
    Aim(usize, Aim),
    Cool(usize, i64),
    /// The clock of the doors goes on, which stamp records.
    Doors(i64),
    /// The clock of the actors does.
    Wall(i64),
}

fn shot() -> impl Strategy<Value = Shot> {
    (
        0..TRIGGERS.len(),
        0..SUBJECTS.len(),
        proptest::option::weighted(0.8, 0..USERS.len()),
        proptest::option::weighted(0.8, proptest::collection::vec(0..USERS.len(), 0..4)),
        proptest::option::weighted(0.2, select(Ceiling::ALL.to_vec())),
        0u8..12,
        prop_oneof![3 => Just(0i64), 1 => 0i64..2_000],
    )
        .prop_map(
            |(trigger, subject, owner, list, ceiling, event, late)| Shot {
                trigger,
                subject,
                owner,
                list,
                ceiling,
                event,
                late,
            },
        )
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![4 => Just(Fate::Lives), 1 => Just(Fate::DiesBefore), 1 => Just(Fate::DiesAfter)]
}

fn aim() -> impl Strategy<Value = Aim> {
    let words: Vec<&'static str> = Ceiling::ALL.iter().map(|c| c.word()).collect();
    prop_oneof![
        2 => Just(Aim::Audience(None)),
        2 => select(words).prop_map(|word| Aim::Audience(Some(word))),
        3 => (0..TREES).prop_map(Aim::Segment),
    ]
}

fn change() -> impl Strategy<Value = Step> {
    let (users, rules) = (0..USERS.len(), 0..RULES.len());
    let modes = select(vec![Mode::Off, Mode::Digest, Mode::Instant]);
    let of = proptest::option::of(0..TRIGGERS.len());
    let says = (users.clone(), of, select(Channel::ALL.to_vec()), modes);
    prop_oneof![
        (users.clone(), select(vec!["user", "moderator", "admin"]))
            .prop_map(|(u, r)| Step::Role(u, r)),
        (users.clone(), any::<bool>()).prop_map(|(u, active)| Step::Active(u, active)),
        (users, any::<bool>()).prop_map(|(u, dead)| Step::Suppressed(u, dead)),
        says.prop_map(|(u, of, channel, mode)| Step::Says(u, of, channel, mode)),
        (rules.clone(), proptest::bool::weighted(0.7)).prop_map(|(r, on)| Step::Switch(r, on)),
        (rules.clone(), aim()).prop_map(|(r, aim)| Step::Aim(r, aim)),
        (rules, select(vec![0i64, 600, 3_600])).prop_map(|(r, s)| Step::Cool(r, s)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let takes = || (0..PARTITIONS, 1usize..6, fate());
    prop_oneof![
        8 => shot().prop_map(Step::Fire),
        4 => takes().prop_map(|(at, n, fate)| Step::Engage(at, n, fate)),
        5 => takes().prop_map(|(at, n, fate)| Step::Decide(at, n, fate)),
        4 => change(),
        2 => (0i64..1_800).prop_map(Step::Doors),
        // An actor's clock may be set back.
        1 => (-300i64..3_600).prop_map(Step::Wall),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nobody_outside_a_ceiling_and_nobody_twice_within_a_cooldown(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.drain();
        world.check();
    }
}

/// That the model tells anybody at all: with rules as they begin, each trigger reaches whom its audience names.
#[test]
fn each_audience_is_told_of_its_own() {
    let mut world = World::new();
    for trigger in 0..TRIGGERS.len() {
        world.fire(&Shot {
            trigger,
            subject: 0,
            owner: Some(0),
            list: Some(vec![1, 2, 4]),
            ceiling: None,
            event: 0,
            late: 0,
        });
    }
    // A list that is not for these: a narrower word of the firing's own leaves none of an audience that is wider.
    let (news, players) = (3, Ceiling::Members);
    world.fire(&Shot {
        trigger: news,
        subject: 1,
        owner: None,
        list: Some(vec![0]),
        ceiling: Some(players),
        event: 1,
        late: 0,
    });
    world.drain();
    world.check();
    let told: Vec<Vec<&str>> = (0..SAVED).map(|at| world.told_of(at)).collect();
    let all = vec!["ann", "bob", "cid", "dee"];
    let of_each: [Vec<&str>; SAVED] = [
        // Called off before it was decided.
        vec![],
        vec!["bob", "cid"],
        vec!["ann"],
        vec!["ann"],
        vec!["bob", "dee"],
        vec!["dee"],
        all,
    ];
    assert_eq!(told, of_each);
    let about_b = world.out.iter().filter(|o| o.subject == "b");
    assert_eq!(about_b.count(), 0);
    // The owner of another thing, which nobody saved.
    world.fire(&Shot {
        trigger: 0,
        subject: 1,
        owner: Some(0),
        list: None,
        ceiling: None,
        event: 2,
        late: 0,
    });
    world.drain();
    assert_eq!(world.told_of(0), ["ann"]);
}
