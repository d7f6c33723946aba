//! The recorded session of the demonstration.

use millrace::ingress::feed::kinds::{self, Mapped};
use millrace::modules::shipped;
use millrace_schemas::time::Micros;
use millrace_tests::shard_session::{FRAMES, KINDS, SEED, session};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/demo/shard.ndjson")
}

/// `MILLRACE_WRITE_SCHEMAS=1` writes it instead.
#[test]
fn the_committed_session_is_that_of_its_seed() {
    let text = session(SEED);
    if std::env::var_os("MILLRACE_WRITE_SCHEMAS").is_some() {
        std::fs::write(path(), &text).expect("written");
    }
    let committed = std::fs::read_to_string(path()).unwrap_or_default();
    assert!(
        committed == text,
        "config/demo/shard.ndjson has drifted; MILLRACE_WRITE_SCHEMAS=1 writes it anew"
    );
    let lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    let frames: Vec<&Value> = lines.iter().filter(|l| l.get("seq").is_some()).collect();
    assert_eq!(frames.len(), FRAMES);
    let kinds: BTreeSet<&str> = frames.iter().filter_map(|f| f["kind"].as_str()).collect();
    for kind in KINDS {
        assert!(kinds.contains(kind), "no frame of {kind}");
    }
    let times: Vec<Micros> = frames
        .iter()
        .filter_map(|f| Micros::parse_rfc3339(f["at"].as_str()?).ok())
        .collect();
    assert!(times.is_sorted() && times.len() == FRAMES);
    // The module maps them, and finds its keys in them.
    let modules = shipped::load(&["uo".to_owned()], None).expect("the module is there");
    let map = kinds::of(Arc::new(modules).into());
    for frame in &frames {
        let kind = frame["kind"].as_str().expect("a kind");
        let mapped = map("uo", kind, &frame["body"].to_string());
        assert_eq!(mapped != Mapped::No, KINDS.contains(&kind), "{frame}");
        let keyed = ["serial", "vendorSerial", "acct", "city", "guildId", "board"]
            .iter()
            .any(|k| !frame["body"][k].is_null());
        if KINDS.contains(&kind) && keyed {
            assert!(matches!(mapped, Mapped::Under(_)), "{frame}");
        }
    }
    // Every kind that the module's manifest names is among them.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/modules/uo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap_or_default();
    for part in manifest.split("[[frame]]").skip(1) {
        let kind = part.split('"').nth(1).expect("a kind");
        assert!(kinds.contains(kind), "no frame of {kind}");
    }
}
