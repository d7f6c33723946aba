use super::{DEEPEST, Leaf, MOST, NoCeiling, Segment, WIDEST};
use crate::api::faults::Faults;
use millrace_schemas::ceiling::Ceiling;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn audience(id: &str) -> Value {
    json!({"audience": id})
}

fn group(op: &str, nodes: &[Value]) -> Value {
    json!({"op": op, "nodes": nodes})
}

fn refused(tree: &Value) -> Vec<(String, String)> {
    let mut faults = Faults::new();
    let read = Segment::check(tree, "/expression", &mut faults);
    assert_eq!(read.is_none(), !faults.is_empty(), "{tree}");
    assert_eq!(Segment::read(tree), read);
    faults
        .into_vec()
        .into_iter()
        .map(|f| (f.code, f.path))
        .collect()
}

#[test]
fn not_stands_only_beside_something_within_an_and() {
    let (a, b) = (audience("a"), audience("b"));
    let not_b = group("not", std::slice::from_ref(&b));
    for (tree, path) in [
        (not_b.clone(), "/expression"),
        (
            group("or", &[a.clone(), not_b.clone()]),
            "/expression/nodes/1",
        ),
        (group("and", std::slice::from_ref(&not_b)), "/expression"),
        (group("and", &[not_b.clone(), not_b.clone()]), "/expression"),
        (
            group("not", std::slice::from_ref(&not_b)),
            "/expression/nodes/0",
        ),
        (
            group(
                "and",
                &[a.clone(), group("or", std::slice::from_ref(&not_b))],
            ),
            "/expression/nodes/1/nodes/0",
        ),
    ] {
        assert_eq!(
            refused(&tree),
            [("bare_not".to_owned(), path.to_owned())],
            "{tree}"
        );
    }
    assert_eq!(refused(&group("and", &[not_b, a])), []);
}

#[test]
fn other_refusals_have_their_names_too() {
    let a = audience("a");
    let mut deep = a.clone();
    for _ in 0..=DEEPEST {
        deep = group("and", &[deep]);
    }
    let ten = group("or", &vec![a.clone(); WIDEST]);
    let codes = |tree: &Value| {
        refused(tree)
            .into_iter()
            .map(|(code, _)| code)
            .collect::<Vec<_>>()
    };
    assert_eq!(codes(&deep), ["too_deep"]);
    assert_eq!(
        codes(&group("or", &vec![ten; MOST / WIDEST + 1])),
        ["too_long"]
    );
    assert_eq!(
        codes(&group("or", &vec![a.clone(); WIDEST + 1])),
        ["malformed"]
    );
    assert_eq!(codes(&group("or", &[])), ["malformed"]);
    assert_eq!(
        codes(&group("nor", std::slice::from_ref(&a))),
        ["malformed"]
    );
    assert_eq!(
        codes(&group("and", &[a.clone(), group("not", &[a.clone(), a])])),
        ["malformed"]
    );
    assert_eq!(codes(&json!({"audience": "a", "op_": 1})), ["unknown"]);
    assert_eq!(codes(&json!({"audience": 1})), ["missing"]);
    assert_eq!(
        codes(&json!({"audience": "a", "params": {"id": 1.5}})),
        ["malformed"]
    );
    assert_eq!(
        codes(&json!({"audience": "a", "params": [1]})),
        ["malformed"]
    );
    assert_eq!(codes(&json!(7)), ["malformed"]);
}

fn declared(id: &str) -> Option<Ceiling> {
    match id {
        "all" => Some(Ceiling::Authenticated),
        "guild" | "governors" => Some(Ceiling::Members),
        "staff" => Some(Ceiling::Staff),
        "admin" => Some(Ceiling::Admin),
        _ => None,
    }
}

fn ceiling(tree: &Value) -> Result<Ceiling, NoCeiling> {
    Segment::read(tree).expect("a tree").ceiling(declared)
}

#[test]
fn the_narrowest_bounds_it_and_what_is_taken_away_does_not() {
    let (all, guild, staff, admin) = (
        audience("all"),
        audience("guild"),
        audience("staff"),
        audience("admin"),
    );
    for op in ["and", "or"] {
        assert_eq!(
            ceiling(&group(op, &[all.clone(), guild.clone()])),
            Ok(Ceiling::Members)
        );
        assert_eq!(
            ceiling(&group(op, &[staff.clone(), admin.clone()])),
            Ok(Ceiling::Admin)
        );
        assert!(matches!(
            ceiling(&group(op, &[guild.clone(), staff.clone()])),
            Err(NoCeiling::Incomparable(_))
        ));
    }
    assert_eq!(
        ceiling(&group("and", &[guild.clone(), group("not", &[staff])])),
        Ok(Ceiling::Members)
    );
    // Whoever is gone makes it dormant wherever it stands: as nobody within a `not` it would widen the set.
    let gone = Err(NoCeiling::Dormant(BTreeSet::from(["gone".to_owned()])));
    assert_eq!(
        ceiling(&group(
            "and",
            &[guild.clone(), group("not", &[audience("gone")])]
        )),
        gone
    );
    assert_eq!(ceiling(&group("or", &[guild, audience("gone")])), gone);
}

#[test]
fn a_union_lends_its_ceiling_to_no_wider_part() {
    let (all, guild, staff) = (audience("all"), audience("guild"), audience("staff"));
    let read = |tree: &Value| Segment::read(tree).expect("a tree");
    let bounded = |tree: &Value| {
        let segment = read(tree);
        let ceiling = segment.ceiling(declared).expect("a ceiling");
        segment.within(ceiling, &declared).expect("something")
    };
    let (or, and) = (
        |nodes: &[Value]| group("or", nodes),
        |nodes: &[Value]| group("and", nodes),
    );
    let loose = or(&[all.clone(), guild.clone()]);
    let tight = or(std::slice::from_ref(&guild));
    assert_eq!(bounded(&loose), read(&tight));
    let admins = or(&[staff.clone(), audience("admin")]);
    assert_eq!(bounded(&admins), read(&or(&[audience("admin")])));
    let not_staff = group("not", &[staff]);
    assert_eq!(
        bounded(&and(&[all.clone(), loose.clone(), not_staff.clone()])),
        read(&and(&[all.clone(), tight, not_staff.clone()]))
    );
    // One of an intersection bounds it; what is taken away is taken away whole.
    for whole in [
        or(&[guild.clone(), audience("governors")]),
        and(&[all, guild.clone()]),
        and(&[loose.clone(), guild.clone()]),
        and(&[guild, group("not", &[loose]), not_staff]),
    ] {
        assert_eq!(bounded(&whole), read(&whole), "{whole}");
    }
}

/// A tree whose `not`s stand where they may, `depth` groups within each other, each with a `not` of its own.
fn tree(depth: u32) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just("all"),
        Just("guild"),
        Just("governors"),
        Just("staff"),
        Just("admin")
    ]
    .prop_map(audience);
    leaf.prop_recursive(depth, 24, 3, |inner| {
        (
            proptest::bool::ANY,
            proptest::collection::vec(inner.clone(), 1..4),
            proptest::collection::vec(inner, 0..2),
        )
            .prop_map(|(and, mut nodes, without)| {
                if and {
                    nodes.extend(without.into_iter().map(|w| group("not", &[w])));
                }
                group(if and { "and" } else { "or" }, &nodes)
            })
    })
}

type People = BTreeSet<u8>;

fn world() -> impl Strategy<Value = Vec<People>> {
    proptest::collection::vec(proptest::collection::btree_set(0..12u8, 0..8), 5)
}

fn of(world: &[People]) -> impl Fn(&Leaf) -> People + '_ {
    |leaf| {
        let at = ["all", "guild", "governors", "staff", "admin"]
            .iter()
            .position(|id| *id == leaf.audience);
        world[at.expect("a known audience")].clone()
    }
}

proptest! {
    /// Nobody is reached who is in no audience that it keeps, and its ceiling is within each of theirs.
    #[test]
    fn it_never_reaches_further_than_its_parts(tree in tree(2), world in world()) {
        let segment = Segment::read(&tree).expect("well formed");
        let mut kept = Vec::new();
        segment.collect(false, &mut kept);
        let parts: People = kept.iter().flat_map(|leaf| of(&world)(leaf)).collect();
        prop_assert!(segment.members(&of(&world)).is_subset(&parts));
        if let Ok(ceiling) = segment.ceiling(declared) {
            for leaf in kept {
                prop_assert!(declared(&leaf.audience).expect("declared").permits(ceiling));
            }
            // Within its own ceiling there is always something, nobody new, and nothing that a second look would take away.
            let bounded = segment.within(ceiling, &declared).expect("something");
            prop_assert!(bounded.members(&of(&world)).is_subset(&segment.members(&of(&world))));
            prop_assert_eq!(bounded.within(ceiling, &declared), Some(bounded.clone()));
        }
    }

    /// Another audience within an `and`, or another `not`, never adds anybody, nor widens the ceiling.
    #[test]
    fn narrowing_narrows(tree in tree(1), other in tree(1), world in world()) {
        let read = |t: &Value| Segment::read(t).expect("well formed");
        let before = read(&tree).members(&of(&world));
        for more in [other.clone(), group("not", std::slice::from_ref(&other))] {
            // One group deeper than the generator goes.
            let both = read(&group("and", &[tree.clone(), more]));
            prop_assert!(both.members(&of(&world)).is_subset(&before));
            if let (Ok(wide), Ok(narrow)) = (read(&tree).ceiling(declared), both.ceiling(declared)) {
                prop_assert!(wide.permits(narrow));
            }
        }
        // Uniting may add people, and still never widens what is allowed.
        if let (Ok(one), Ok(both)) = (read(&tree).ceiling(declared), read(&group("or", &[tree, other])).ceiling(declared)) {
            prop_assert!(one.permits(both));
        }
    }

    /// A less (B or C) is A less B less C; A less (B and C) is (A less B) or (A less C); and the other laws of sets.
    #[test]
    fn it_keeps_the_laws_of_sets(a in tree(1), b in tree(1), c in tree(1), world in world()) {
        let members = |t: &Value| Segment::read(t).map(|s| s.members(&of(&world)));
        let without = |from: &Value, what: &Value| group("and", &[from.clone(), group("not", std::slice::from_ref(what))]);
        let (or, and) = (group("or", &[b.clone(), c.clone()]), group("and", &[b.clone(), c.clone()]));
        // Trees here may be deeper than is allowed; then both sides say nothing.
        let equal = |x: Value, y: Value| match (members(&x), members(&y)) {
            (Some(x), Some(y)) => x == y,
            _ => true,
        };
        prop_assert!(equal(without(&a, &or), group("and", &[a.clone(), group("not", std::slice::from_ref(&b)), group("not", std::slice::from_ref(&c))])));
        prop_assert!(equal(without(&a, &and), group("or", &[without(&a, &b), without(&a, &c)])));
        prop_assert!(equal(group("and", &[a.clone(), or]), group("or", &[group("and", &[a.clone(), b.clone()]), group("and", &[a.clone(), c.clone()])])));
        prop_assert!(equal(group("and", &[a.clone(), b.clone()]), group("and", &[b.clone(), a.clone()])));
        prop_assert_eq!(members(&without(&a, &a)).map(|m| m.len()), Some(0));
    }

    #[test]
    fn anything_may_be_stored(text in ".{0,80}") {
        let tree = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let _ = Segment::read(&tree);
    }
}
