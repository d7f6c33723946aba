//! The list of failpoints is complete, and nothing of them is in the program as it ships.

use crate::faults_delivery::OF_DELIVERY;
use crate::faults_kill::OF_BATCHES;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Failpoints off the path of a batch's transaction: `faults_door.rs` kills at those of the doors that take lines, `feed/kill.rs` at
/// those of the feed's, `faults_consumer.rs` panics in the consumer's thread, `echo.rs` kills an emitter at the relay's. The fault
/// runner passes all of them; it alone those of the doors that take one record.
const ELSEWHERE: [&str; 8] = [
    "batch_door.before_produce",
    "batch_door.produced",
    "consumer.batch",
    "door.before_produce",
    "door.produced",
    "feed_door.before_produce",
    "feed_door.produced",
    "relay.sent",
];

fn sources(under: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(under);
    walk(&root, &mut found);
    found
}

fn named_after(text: &str, call: &str) -> Vec<String> {
    text.split(call)
        .skip(1)
        .filter_map(|rest| {
            let rest = rest.trim_start().strip_prefix('"')?;
            Some(rest.split_once('"')?.0.to_owned())
        })
        .collect()
}

#[test]
fn every_failpoint_has_its_run() {
    let mut found = BTreeSet::new();
    for path in sources("actors/src").iter().chain(&sources("topics/src")) {
        let text = std::fs::read_to_string(path).unwrap();
        found.extend(named_after(&text, "failpoint::hit("));
    }
    let known: BTreeSet<String> = OF_BATCHES
        .iter()
        .chain(&OF_DELIVERY)
        .chain(&ELSEWHERE)
        .map(|n| (*n).to_owned())
        .collect();
    assert_eq!(
        found, known,
        "add the new one to a run, or drop the old one"
    );
}

#[test]
fn every_safeguard_that_can_be_switched_off_is_proved() {
    let mut found = BTreeSet::new();
    for path in sources("actors/src") {
        let text = std::fs::read_to_string(path).unwrap();
        found.extend(named_after(&text, "sabotaged("));
    }
    let known = ["claim", "cooldown", "fence", "lease", "position", "relay"].map(str::to_owned);
    let proofs =
        "see faults_proof.rs, faults_lease.rs, echo.rs, and .ci/faults.sh for the cooldown";
    assert_eq!(found, BTreeSet::from(known), "{proofs}");
}

/// What tests arm by environment stands in these files alone, and there under the feature.
#[test]
fn what_tests_arm_exists_in_the_proving_build_alone() {
    let mut found = BTreeSet::new();
    for path in sources("actors/src").iter().chain(&sources("topics/src")) {
        let text = std::fs::read_to_string(path).unwrap();
        for variable in [
            "MILLRACE_FAILPOINT",
            "MILLRACE_SABOTAGE",
            "MILLRACE_CLOCK_FILE",
        ] {
            let code = text
                .lines()
                .filter(|l| !l.trim_start().starts_with("//"))
                .any(|l| l.contains(variable));
            if code {
                found.insert(variable);
                assert!(
                    text.contains("cfg(feature = \"proving\")"),
                    "{} reads {variable}",
                    path.display()
                );
            }
        }
    }
    assert_eq!(found.len(), 3, "{found:?}");
    let manifest = include_str!("../../actors/Cargo.toml");
    assert!(
        manifest.contains("default = []"),
        "the feature must be asked for"
    );
}
