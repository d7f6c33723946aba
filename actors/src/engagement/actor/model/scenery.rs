//! What the model is set in: users, triggers of every ceiling, rules and the segments that they may have.

use crate::modules::{Modules, compile};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::time::Micros;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

pub const WS: i32 = 1;
pub const SECOND: i64 = 1_000_000;
pub const START: Micros = Micros(1_796_040_000 * SECOND);
/// Partitions of each topic.
pub const PARTITIONS: usize = 2;
/// In order of their ids.
pub const USERS: [&str; 5] = ["ann", "bob", "cid", "dee", "eve"];
/// Those who have linked an account: the module's own audience.
pub const PLAYERS: [&str; 2] = ["ann", "bob"];
pub const SUBJECTS: [&str; 2] = ["a", "b"];
/// Name, audience and ceiling. The last one calls off what the first one's rules want told.
pub const TRIGGERS: [(&str, &str, Ceiling); 8] = [
    ("own", "owner", Ceiling::Owner),
    ("list", "members", Ceiling::Members),
    ("subs", "subscribers", Ceiling::Subscribers),
    ("news", "subscribers", Ceiling::Authenticated),
    ("staff", "staff", Ceiling::Staff),
    ("audit", "admin", Ceiling::Admin),
    ("all", "authenticated", Ceiling::Authenticated),
    ("saved", "owner", Ceiling::Owner),
];
pub const SAVED: usize = 7;
/// Each rule's trigger.
pub const RULES: [usize; 9] = [0, 0, 1, 1, 2, 3, 4, 5, 6];

pub fn trigger(at: usize) -> String {
    format!("g.thing.{}", TRIGGERS[at].0)
}

/// Segments that a rule may have, of every ceiling and of none: unions of a wider and a narrower audience; incomparable, unreadable,
/// of an audience that nobody declares; none, past the last.
pub fn tree(at: usize) -> Option<Value> {
    let leaf = |id: &str| json!({"audience": id});
    let group = |op: &str, nodes: &[&Value]| json!({"op": op, "nodes": nodes});
    let (staff, players, all) = (leaf("staff"), leaf("g.players"), leaf("authenticated"));
    let not_staff = group("not", &[&staff]);
    let loose = group("or", &[&all, &players]);
    let trees = [
        group("or", &[&leaf("admin"), &staff]),
        group("or", &[&players, &group("and", &[&players, &not_staff])]),
        group("and", &[&all, &loose, &not_staff]),
        group("and", &[&players, &not_staff]),
        group("and", &[&players, &staff]),
        group("and", &[&all, &players]),
        leaf("g.gone"),
        leaf("everyone"),
        loose,
        not_staff,
        players,
        staff,
    ];
    trees.get(at).cloned()
}

/// How many, the one that is gone included.
pub const TREES: usize = 13;

pub static MODULES: LazyLock<Arc<Modules>> = LazyLock::new(|| {
    let mut text = r#"
id = "g"
label = "A game"
description = "A game of things."
protocol = 1

[[audience]]
id = "g.players"
label = "Players"
description = "Whoever has linked an account."
ceiling = "members"
linked = true
"#
    .to_owned();
    for (name, audience, ceiling) in TRIGGERS {
        text += &format!(
            r#"
[[trigger]]
id = "g.thing.{name}"
label = "{name}"
description = "Something happens to a thing."
subject_key = "thing"
audience = "{audience}"
ceiling = "{ceiling}"
version = 1
variables = [ {{ name = "thing", type = "string", required = true, example = "a" }} ]
"#
        );
    }
    let module = compile("g.toml", &text).expect("a good manifest");
    Arc::new(Modules::assemble(vec![("g.toml".to_owned(), module)]).expect("one module"))
});
