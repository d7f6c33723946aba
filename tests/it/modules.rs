//! `millrace modules`: what a build of a game's manifest, and an operator of their own, are told.

mod listed;
mod reload;

use millrace_tests::process::{Launch, Scratch};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// Exit code and what was said.
async fn modules(scratch: &Scratch, words: &[&str]) -> (Option<i32>, String) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let name = format!("modules-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    let launch = Launch::product(&name, scratch.path()).unwrap();
    let mut process = launch
        .env("RUST_LOG", "off")
        .setting("modules.enabled", "uo")
        .args(words.iter().copied())
        .spawn()
        .unwrap();
    let status = process.wait(SOON).await.unwrap();
    (status.code(), process.log_text())
}

fn edit(file: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(file, text.replacen(from, to, 1)).unwrap();
}

#[tokio::test]
async fn a_check_names_file_key_and_rule_and_drift_is_committed_by_hand() {
    let scratch = Scratch::new("modules").unwrap();
    let (code, said) = modules(&scratch, &["modules", "check"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("all is well"), "{said}");

    // A folder of an operator's own, begun from what is shipped.
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("config/modules");
    let dir = scratch.path().join("games");
    std::fs::create_dir_all(&dir).unwrap();
    for entry in std::fs::read_dir(&shipped).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    let check = ["modules", "check", "--dir", "games"];
    let (code, said) = modules(&scratch, &check).await;
    assert_eq!(code, Some(0), "{said}");

    // A change that was not committed is drift.
    edit(
        &dir.join("uo.toml"),
        "max_age_s = 604800",
        "max_age_s = 86400",
    );
    let (code, said) = modules(&scratch, &check).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("games/manifest.json: `uo.triggers.uo.election.opened.max_age_s`: is committed as 604800"), "{said}");
    let (code, said) = modules(&scratch, &["modules", "check", "--dir", "games", "--write"]).await;
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = modules(&scratch, &check).await;
    assert_eq!(code, Some(0), "{said}");

    // A renamed variable cannot be committed under the old version.
    edit(
        &dir.join("uo.toml"),
        "{ name = \"dismissalAt\", type = \"datetime\"",
        "{ name = \"dismissalOn\", type = \"datetime\"",
    );
    edit(
        &dir.join("uo.toml"),
        "dismissalAt = \"fees.dismissalAt\"",
        "dismissalOn = \"fees.dismissalAt\"",
    );
    let (code, said) = modules(&scratch, &["modules", "check", "--dir", "games", "--write"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("`uo.triggers.uo.vendor.expiring.version`"),
        "{said}"
    );

    // Every fault of a manifest at once, for programs too.
    edit(
        &dir.join("survival.toml"),
        "ceiling = \"staff\"",
        "ceiling = \"everybody\"",
    );
    edit(
        &dir.join("survival.toml"),
        "hysteresis = 1.0",
        "hysteresis = -1.0",
    );
    let (code, said) = modules(&scratch, &["--json", "modules", "check", "--dir", "games"]).await;
    assert_eq!(code, Some(1), "{said}");
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    let faults = told["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 2, "{said}");
    assert_eq!(faults[0]["file"], "games/survival.toml");
    assert_eq!(faults[0]["key"], "trigger.8.ceiling");
    assert_eq!(faults[1]["rule"], "must be 0 or more");
}

#[tokio::test]
async fn modules_are_listed_and_shown() {
    let scratch = Scratch::new("modules-list").unwrap();
    let (code, said) = modules(&scratch, &["--json", "modules", "list"]).await;
    assert_eq!(code, Some(0), "{said}");
    let listed: serde_json::Value = serde_json::from_str(&said).unwrap();
    let of = |id: &str| {
        listed
            .as_array()
            .unwrap()
            .iter()
            .find(|m| m["module"] == id)
            .unwrap()
            .clone()
    };
    assert_eq!(
        (&of("uo")["enabled"], &of("uo")["triggers"]),
        (&true.into(), &26.into())
    );
    assert_eq!(of("survival")["enabled"], false);
    let (code, said) = modules(&scratch, &["modules", "show", "uo"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("uo.house.idoc_warning"), "{said}");
    let (code, said) = modules(&scratch, &["modules", "show", "uo.vendor.expiring"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("periodsRemaining"), "{said}");
    let (code, said) = modules(&scratch, &["modules", "show", "chess"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("there is no module and no trigger `chess`"),
        "{said}"
    );
}
