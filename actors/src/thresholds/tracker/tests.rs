//! Each tracker against a model that looks at the whole history of what the frames said.

use super::*;
use proptest::prelude::*;
use serde_json::json;

/// One frame: `value` and `was` as it says them; None: it does not speak of them.
type Said = (Option<Value>, Option<Value>);

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

/// Runs a tracker over frames and answers which of them fired.
fn run(tracker: &Tracker, said: &[Said]) -> Vec<bool> {
    let mut memory: Option<Memory> = None;
    said.iter()
        .map(|(now, before)| {
            let mut body = serde_json::Map::new();
            body.extend(now.clone().map(|v| ("value".to_owned(), v)));
            body.extend(before.clone().map(|v| ("was".to_owned(), v)));
            let step = step(tracker, memory.as_deref(), &Value::Object(body));
            assert!(
                step.memory.is_none() || step.memory != memory,
                "what does not change is not written"
            );
            assert!(step.memory.is_none() || remembers(tracker));
            if step.memory.is_some() {
                memory = step.memory;
            }
            step.fires
        })
        .collect()
}

/// Which of the frames fired, of values alone.
fn fired(tracker: &Tracker, values: &[Option<Value>]) -> Vec<bool> {
    let said: Vec<Said> = values.iter().map(|v| (v.clone(), None)).collect();
    run(tracker, &said)
}

fn words() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        4 => prop::sample::select(vec!["good", "late", "last", "new"]).prop_map(|w| Some(json!(w))),
        1 => Just(Some(Value::Null)),
        1 => Just(None),
    ]
}

/// The value of a frame, if it speaks of one.
fn spoken(said: Option<&Value>) -> Option<&Value> {
    said.filter(|v| !v.is_null())
}

/// The last value that was spoken of before frame `at`.
fn last(said: &[Option<Value>], at: usize) -> Option<&Value> {
    said[..at].iter().rev().find_map(|v| spoken(v.as_ref()))
}

/// The same, or null where that alone was said.
fn known(said: &[Option<Value>], at: usize) -> Option<&Value> {
    last(said, at).or_else(|| said[..at].iter().flatten().next())
}

/// A value that a frame says, says is null, or does not speak of.
fn maybe<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Option<T>>> {
    prop::option::of(prop::option::of(value))
}

fn late() -> Vec<Value> {
    vec![json!("late"), json!("last")]
}

proptest! {
    #[test]
    fn always_fires_always(said in prop::collection::vec(words(), 0..8)) {
        prop_assert!(fired(&Tracker::Always, &said).iter().all(|fires| *fires));
    }

    #[test]
    fn a_transition_is_a_change_into_the_set(said in prop::collection::vec(words(), 0..12)) {
        let tracker = Tracker::Transition { value: path("value"), set: late(), previous: None };
        for (at, fires) in fired(&tracker, &said).into_iter().enumerate() {
            let want = match (spoken(said[at].as_ref()), known(&said, at)) {
                (Some(now), Some(before)) => now != before && late().contains(now),
                _ => false,
            };
            prop_assert_eq!(fires, want, "frame {}", at);
        }
    }

    #[test]
    fn a_transition_by_the_frame_s_own_word_needs_no_memory(said in prop::collection::vec((words(), words()), 0..12)) {
        let tracker = Tracker::Transition { value: path("value"), set: late(), previous: Some(path("was")) };
        for ((now, was), fires) in said.iter().zip(run(&tracker, &said)) {
            let want = spoken(now.as_ref())
                .is_some_and(|now| late().contains(now) && spoken(was.as_ref()) != Some(now));
            prop_assert_eq!(fires, want);
        }
    }

    #[test]
    fn changed_is_another_value_than_the_last(said in prop::collection::vec(words(), 0..12)) {
        let tracker = Tracker::Changed { value: path("value") };
        for (at, fires) in fired(&tracker, &said).into_iter().enumerate() {
            let want = match (spoken(said[at].as_ref()), known(&said, at)) {
                (Some(now), Some(before)) => now != before,
                _ => false,
            };
            prop_assert_eq!(fires, want, "frame {}", at);
        }
    }

    #[test]
    fn an_edge_is_true_after_false(said in prop::collection::vec(maybe(any::<bool>()), 0..12)) {
        let values: Vec<Option<Value>> = said.iter().map(|v| v.map(|v| json!(v))).collect();
        let tracker = Tracker::Edge { value: path("value") };
        for (at, fires) in fired(&tracker, &values).into_iter().enumerate() {
            let want = said[at] == Some(Some(true)) && last(&values, at) == Some(&json!(false));
            prop_assert_eq!(fires, want, "frame {}", at);
        }
    }

    /// For each threshold by itself: it is armed once the number was seen not to be over it, and again once the number has been
    /// back since it was last over. A frame fires where it is over an armed one, and names the furthest of those it is over.
    #[test]
    fn a_crossing_fires_once_until_it_has_been_back(
        frames in prop::collection::vec(maybe(0i32..14), 0..24),
        rising in any::<bool>(),
        hysteresis in 0u8..3,
        thresholds in prop::collection::btree_set(2i32..12, 1..4),
    ) {
        let direction = if rising { Direction::Rising } else { Direction::Falling };
        let hysteresis = i32::from(hysteresis);
        let tracker = Tracker::Crossing {
            value: path("value"),
            thresholds: thresholds.iter().map(|t| f64::from(*t)).collect(),
            hysteresis: f64::from(hysteresis),
            direction,
        };
        let values: Vec<Option<Value>> = frames.iter().map(|v| v.map(|v| json!(v))).collect();
        // To a crossing null is nothing.
        let said: Vec<Option<i32>> = frames.iter().map(|v| v.flatten()).collect();
        let got = fired(&tracker, &values);
        let over = |n: i32, at: i32| if rising { n >= at } else { n <= at };
        let back = |n: i32, at: i32| !over(n, at) && if rising { n <= at - hysteresis } else { n >= at + hysteresis };
        for (place, fires) in got.into_iter().enumerate() {
            let before: Vec<i32> = said[..place].iter().flatten().copied().collect();
            let armed = |at: i32| match before.iter().rposition(|n| over(*n, at)) {
                Some(last) => before[last..].iter().any(|n| back(*n, at)),
                None => !before.is_empty(),
            };
            let want = thresholds.iter().any(|at| said[place].is_some_and(|n| over(n, *at)) && armed(*at));
            prop_assert_eq!(fires, want, "frame {} of {:?}", place, said);
        }
    }

    #[test]
    fn the_top_changes_with_its_members_and_their_order(
        said in prop::collection::vec(maybe(prop::collection::vec(0u8..3, 0..4)), 0..10),
    ) {
        let list = |l: &Vec<u8>| l.iter().map(|n| json!({"id": n, "points": 7})).collect::<Value>();
        let lists: Vec<Option<Value>> = said
            .iter()
            .map(|l| l.as_ref().map(|l| l.as_ref().map_or(Value::Null, list)))
            .collect();
        let tracker = Tracker::TopChanged { value: path("value"), top: 2, identity: Some(path("id")) };
        let tops: Vec<Option<Vec<u8>>> = said
            .iter()
            .map(|l| l.as_ref()?.as_ref().map(|l| l.iter().copied().take(2).collect()))
            .collect();
        for (at, fires) in fired(&tracker, &lists).into_iter().enumerate() {
            let before = tops[..at].iter().rev().find_map(Option::as_ref);
            let want = match (&tops[at], before) {
                (Some(now), Some(before)) => now != before && !now.is_empty(),
                // It was null at first.
                (Some(now), None) => said[..at].contains(&Some(None)) && !now.is_empty(),
                _ => false,
            };
            prop_assert_eq!(fires, want, "frame {}", at);
        }
    }

    #[test]
    fn texts_are_equal_where_values_are(a in -20i32..20, b in -20i32..20, text in "\\PC{0,200}", other in "\\PC{0,200}") {
        prop_assert_eq!(canonical(&json!(a)) == canonical(&json!(f64::from(b))), a == b);
        prop_assert_eq!(canonical(&json!(text)) == canonical(&json!(other)), text == other);
        prop_assert!(canonical(&json!([text, other])).len() <= MAX_MEMORY);
    }
}

#[test]
fn first_sight_is_how_things_are() {
    let value = path("value");
    for (tracker, first) in [
        (
            Tracker::Transition {
                value: value.clone(),
                set: late(),
                previous: None,
            },
            json!("last"),
        ),
        (
            Tracker::Changed {
                value: value.clone(),
            },
            json!("last"),
        ),
        (
            Tracker::Edge {
                value: value.clone(),
            },
            json!(true),
        ),
        (
            Tracker::Crossing {
                value: value.clone(),
                thresholds: vec![1.0],
                hysteresis: 1.0,
                direction: Direction::Falling,
            },
            json!(0),
        ),
        (
            Tracker::TopChanged {
                value: value.clone(),
                top: 3,
                identity: None,
            },
            json!([1, 2]),
        ),
    ] {
        assert_eq!(
            fired(&tracker, &[Some(first)]),
            [false],
            "{}",
            tracker.word()
        );
    }
    let tracker = Tracker::Transition {
        value,
        set: late(),
        previous: Some(path("was")),
    };
    assert_eq!(fired(&tracker, &[Some(json!("last"))]), [true]);
}

#[test]
fn null_is_first_sight_and_later_says_nothing() {
    let changed = Tracker::Changed {
        value: path("value"),
    };
    let null = || Some(Value::Null);
    let word = |w: &str| Some(json!(w));
    assert_eq!(
        fired(&changed, &[None, null(), None, null(), word("ann")]),
        [false, false, false, false, true]
    );
    // A later null leaves the memory as it is.
    assert_eq!(
        fired(
            &changed,
            &[word("ann"), null(), word("ann"), null(), word("bob")]
        ),
        [false, false, false, false, true]
    );
    // What it stands in is null.
    let serial = path("governor.serial");
    let changed = Tracker::Changed {
        value: serial.clone(),
    };
    let empty = json!({"governor": null});
    let first = step(&changed, None, &empty);
    assert_eq!(
        (first.memory.as_deref(), first.fires),
        (Some("null"), false)
    );
    assert!(
        step(
            &changed,
            Some("null"),
            &json!({"governor": {"serial": "0x1"}})
        )
        .fires
    );
    // The text `null` is another value, and a transition by the frame's own word keeps no memory.
    assert!(
        step(
            &changed,
            Some("null"),
            &json!({"governor": {"serial": "null"}})
        )
        .fires
    );
    let own = Tracker::Transition {
        value: serial,
        set: late(),
        previous: Some(path("was")),
    };
    assert_eq!(step(&own, None, &empty), Step::default());
}

#[test]
fn members_in_another_order_are_the_same_value() {
    let a: Value = serde_json::from_str(r#"{"x":1,"y":[2.0,"\n"]}"#).unwrap();
    let b: Value = serde_json::from_str(r#"{"y":[2,"\n"],"x":1}"#).unwrap();
    assert_eq!(canonical(&a), canonical(&b));
    assert_eq!(&*canonical(&a), r#"{"x":1,"y":[2,"\n"]}"#);
}
