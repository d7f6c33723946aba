//! No source of the core names a module's word.
//!
//! The words are not listed here but derived: every word of every shipped manifest's ids, frame kinds, keys, paths, watched values and
//! variables. Words that the core speaks itself, or that belong to no game (`login`, `price`), are in [`PLAIN`] by name: an addition
//! to a manifest that happens to be plain English is put there, and nothing else. Whole ids (`a.b.c`) have no such exemption. What
//! is looked at is code with its string literals, split into words at every change of case; comments and tests are prose.

use super::super::shipped::SHIPPED;
use crate::modules::manifest::Manifest;
use figment::Figment;
use figment::providers::{Format, Toml};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Words of manifests that are nobody's.
const PLAIN: &str = "
account accounts action active actor admin after amount appointed at audit auto base board by capped changed character city civic
collapse collapsed command complete crashed death denied destroyed detected down drop elected election estimated expiring failed filed
flying for from gain grid hello hold hours how id incoming ip item items join kind label lands leader learned leave left level like
linked listing location login low map member members message milestone milestones new next obj occurred online opened operators owner
page periods phase pick points previous price rank reason refreshed remaining remove report restarting result roster rows rule rules
save saved seconds security set shard shop shutdown size skillful sold spawn staff stage started state status supply target text to top
type unlinked unlocked until up update upkeep url voting warning was when world assets sale server
";

/// Lower-case words, split at anything but letters and where small letters turn to large.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut small = false;
    for c in text.chars() {
        if !c.is_ascii_alphabetic() || (small && c.is_ascii_uppercase()) {
            words.push(std::mem::take(&mut word));
        }
        if c.is_ascii_alphabetic() {
            word.push(c.to_ascii_lowercase());
        }
        small = c.is_ascii_lowercase();
    }
    words.push(word);
    words.retain(|w| w.len() > 1);
    words
}

/// What the manifests speak of: whole ids, and single words.
fn spoken() -> (BTreeSet<String>, BTreeSet<String>) {
    let mut ids = BTreeSet::new();
    let mut pieces: Vec<String> = Vec::new();
    for (_, text) in SHIPPED {
        let m: Manifest = Figment::from(Toml::string(text)).extract().unwrap();
        ids.extend(m.legacy_ids.iter().cloned());
        ids.extend(m.triggers.iter().map(|t| t.id.clone()));
        ids.extend(m.streams.iter().map(|s| s.id.clone()));
        ids.extend(m.rosters.iter().map(|r| r.id.clone()));
        ids.extend(m.audiences.iter().map(|a| a.id.clone()));
        ids.extend(
            m.frames
                .iter()
                .filter(|f| f.kind.contains('.'))
                .map(|f| f.kind.clone()),
        );
        pieces.push(m.id.clone());
        pieces.extend(
            m.frames
                .iter()
                .flat_map(|f| [f.kind.clone(), f.key.clone().unwrap_or_default()]),
        );
        pieces.extend(
            m.triggers
                .iter()
                .flat_map(|t| t.variables.iter().map(|v| v.name.clone())),
        );
        for mapping in &m.mappings {
            pieces.push(mapping.id.clone());
            pieces.extend(mapping.set.iter().flatten().map(ToString::to_string));
            pieces.extend(
                [&mapping.value, &mapping.owner, &mapping.previous]
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
        }
    }
    pieces.extend(ids.iter().cloned());
    let plain: BTreeSet<&str> = PLAIN.split_whitespace().collect();
    let of = pieces.iter().flat_map(|p| words(p));
    (ids, of.filter(|w| !plain.contains(w.as_str())).collect())
}

/// Code alone: no comments, nothing behind the first `#[cfg(test)]`.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]").next().unwrap_or_default();
    let lines = text.lines().map(|line| {
        // A URL's slashes are no comment.
        match line.find("//") {
            Some(at) if !line[..at].ends_with(':') => &line[..at],
            _ => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path
            .file_stem()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && name != "tests" {
            found.push(path);
        }
    }
}

/// Whether a file is compiled for tests alone, by its name or that of a folder of tests, or plays a game on purpose: the demo
/// streams a recorded session of a module.
fn is_core(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let of_tests = ["/tests/", "/modules/shipped/", "/cli/demo/"];
    !of_tests.iter().any(|part| text.contains(part))
}

#[test]
fn no_core_source_names_a_modules_word() {
    let (ids, forbidden) = spoken();
    assert!(
        forbidden.len() > 30,
        "the derivation found hardly anything: {forbidden:?}"
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for folder in ["actors/src", "topics/src", "schemas/src"] {
        sources(&root.join(folder), &mut files);
    }
    let mut found = Vec::new();
    for path in files.iter().filter(|p| is_core(p)) {
        let text = code(&std::fs::read_to_string(path).unwrap());
        let here: BTreeSet<String> = words(&text).into_iter().collect();
        let named = here.intersection(&forbidden).cloned();
        let named = named.chain(ids.iter().filter(|id| text.contains(id.as_str())).cloned());
        found.extend(named.map(|word| format!("{}: {word}", path.display())));
    }
    assert!(
        found.is_empty(),
        "a module's words in the core:\n{}",
        found.join("\n")
    );
}

#[test]
fn words_are_found_however_they_are_written() {
    assert_eq!(
        words("decayStatus idoc_warning IDOC \"house.decay\""),
        [
            "decay", "status", "idoc", "warning", "idoc", "house", "decay"
        ]
    );
    assert_eq!(
        code("let a = 1; // a house\nlet url = \"http://house\";\n#[cfg(test)]\nhouse"),
        "let a = 1; \nlet url = \"http://house\";"
    );
    let (ids, forbidden) = spoken();
    for word in ["guild", "house", "vendor", "governor", "airdrop", "uo"] {
        assert!(forbidden.contains(word), "{word}");
    }
    assert!(ids.iter().any(|id| id.ends_with("idoc_warning")));
}
