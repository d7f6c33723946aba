//! The kept inputs of every fuzz target, run through the same functions as the fuzzer's: what was once found stays mended.

use millrace_tests::fuzzing::{OF_TOPICS, TABLE, corpus, decode, find};
use millrace_topics::catalogue::topic_names;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// What the repository keeps at most, in bytes.
const LARGEST: u64 = 2 << 20;

/// No input takes a decoder anywhere near as long, on any machine.
const LONGEST: Duration = Duration::from_secs(30);

#[test]
fn every_kept_input_is_taken_or_refused_without_harm() {
    let mut seen = BTreeSet::new();
    let (mut bytes, mut inputs) = (0, 0);
    for folder in std::fs::read_dir(corpus()).expect("the corpus is there") {
        let folder = folder.expect("a folder");
        let name = folder.file_name().to_string_lossy().into_owned();
        let target = TABLE
            .iter()
            .find(|t| t.name == name)
            .unwrap_or_else(|| panic!("tests/corpus/{name} belongs to no target"));
        let mut of_this = 0;
        for file in std::fs::read_dir(folder.path()).expect("a folder") {
            let file = file.expect("a file").path();
            let data = std::fs::read(&file).expect("it reads");
            bytes += data.len() as u64;
            of_this += 1;
            let started = Instant::now();
            let ran = catch_unwind(AssertUnwindSafe(|| (target.run)(&data)));
            assert!(ran.is_ok(), "{}", file.display());
            let took = started.elapsed();
            assert!(took < LONGEST, "{} took {took:?}", file.display());
        }
        assert!(of_this > 1, "tests/corpus/{name} holds next to nothing");
        inputs += of_this;
        seen.insert(name);
    }
    for target in TABLE {
        assert!(seen.contains(target.name), "no corpus of {}", target.name);
        // Nothing, and a little of everything, need no file.
        (target.run)(b"");
        for byte in 0..=255 {
            (target.run)(&[byte]);
        }
    }
    assert!(bytes < LARGEST, "{inputs} inputs of {bytes} bytes");
}

#[test]
fn targets_are_named_once_and_in_order() {
    let names: Vec<_> = TABLE.iter().map(|t| t.name).collect();
    let sorted: BTreeSet<_> = names.iter().copied().collect();
    assert_eq!(names, sorted.into_iter().collect::<Vec<_>>());
}

/// Whoever adds a topic adds the target that decodes its records, and the actor that reads them to the one of newer versions.
#[test]
fn every_topic_has_a_target_that_decodes_its_records() {
    for topic in topic_names() {
        let found = OF_TOPICS.iter().find(|(name, _)| *name == topic);
        let (_, target) = found.unwrap_or_else(|| panic!("no target decodes records of `{topic}`"));
        assert!(find(target).is_some(), "there is no target `{target}`");
        let read = decode(topic, b"").unwrap_or_else(|| panic!("no actor reads `{topic}`"));
        assert!(read.is_err(), "{topic}: nothing is no record");
    }
    for (topic, _) in OF_TOPICS {
        assert!(topic_names().contains(topic), "there is no topic `{topic}`");
    }
}
