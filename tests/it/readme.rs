//! What the README tells a reader to type works: its shell blocks are run, in order, as one session; commands named in its prose
//! exist; its settings load.

mod operating;

use millrace_tests::postgres::{DedicatedServer, TestDatabase};
use millrace_tests::process::{free_address, product};
use millrace_tests::receivers::Receiver;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("README.md")
}

/// The heading of the chapter for operators, whose blocks are run by `readme::operating`.
const OPERATING: &str = "## Operating it\n";

/// README before and after that chapter, and the chapter.
fn chapters() -> (String, String) {
    let text = readme();
    let (before, rest) = text.split_once(OPERATING).expect("the chapter");
    let (chapter, after) = rest.split_once("\n## ").expect("another chapter");
    (format!("{before}\n## {after}"), chapter.to_owned())
}

/// Contents of the fenced blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}");
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match &mut block {
            None if line == open => block = Some(String::new()),
            None => {}
            Some(_) if line == "```" => found.extend(block.take()),
            Some(text) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    assert!(block.is_none(), "a block is not closed");
    found
}

/// Lines that CI runs elsewhere: `make` by `.ci/run`, and builds, which the tests' own build stands for.
fn is_run_elsewhere(line: &str) -> bool {
    line.starts_with("make ") || line.starts_with("cargo ") || line.contains("target/release")
}

/// What a reader would do with the README's `sign` before the program is stopped: hold it against a delivery that came.
const SIGNED_AS_THE_README_SAYS: &str = r#"
for _ in $(seq 300); do [ -s webhook-id ] && break; sleep 0.1; done
signature=v1,$(sign "$(cat webhook-id)" "$(cat webhook-timestamp)" <webhook-body)
[ "$signature" = "$(cat webhook-signature)" ] || { echo "signed otherwise: $signature" >&2; exit 1; }
"#;

/// The endpoint of the reader's webhook: what came first is kept in files.
async fn keep_delivery(receiver: &Receiver, directory: &Path) {
    // Where none comes the session says so itself.
    let Ok(received) = receiver.wait_for(1, Duration::from_secs(120)).await else {
        return;
    };
    let first = received.first().expect("a delivery");
    std::fs::write(directory.join("webhook-body"), &first.body).expect("the body");
    for name in ["webhook-timestamp", "webhook-signature", "webhook-id"] {
        let value = first.header(name).expect("a header of the standard");
        std::fs::write(directory.join(name), value).expect("the header");
    }
}

/// Stands for `millrace` on the path. Where a reader would look first and type then, it waits: a trace for its conversion, a
/// replay for its dead letter, a look at the outbox for its messages.
fn stand_in(product: &Path) -> String {
    format!(
        r#"#!/usr/bin/env bash
until_seen() {{
  for _ in $(seq 300); do if {product} "${{@:2}}" 2>/dev/null | grep -q "$1"; then return 0; fi; sleep 0.1; done
  echo "never seen: $1 in: millrace ${{*:2}}" >&2
  return 1
}}
case "$1 $2" in
  "trace "*) until_seen onversion "$@" || exit 1 ;;
  "outbox list") [ $# -gt 2 ] || until_seen meta "$@" || exit 1 ;;
  "dlq "*) until_seen journey_unknown dlq list || exit 1 ;;
esac
exec {product} "$@"
"#,
        product = product.display()
    )
}

#[tokio::test]
async fn its_shell_blocks_run_in_order() {
    // `doctor` finds fault with a database that may forget, as the one that tests share may.
    let server = tokio::task::spawn_blocking(DedicatedServer::start_durable)
        .await
        .expect("the server starts");
    let database = TestDatabase::create_on(&server).await;
    let address = free_address().expect("a port");
    let receiver = Receiver::start().expect("a receiver");
    let hook = receiver.url("/millrace");
    let directory = std::env::temp_dir().join(format!("millrace-readme-{}", std::process::id()));
    let bin = directory.join("bin");
    std::fs::create_dir_all(&bin).expect("a directory");
    // The session is run elsewhere; the recorded one that it plays is named as from the repository's root.
    std::fs::create_dir_all(directory.join("config")).expect("a directory");
    std::os::unix::fs::symlink(root().join("config/demo"), directory.join("config/demo"))
        .expect("the recorded session");
    let millrace = bin.join("millrace");
    std::fs::write(&millrace, stand_in(&product().expect("the product"))).expect("the stand-in");
    std::fs::set_permissions(&millrace, PermissionsExt::from_mode(0o755)).expect("executable");

    let mut script =
        String::from("set -euo pipefail\ntrap 'kill -KILL $(jobs -p) 2>/dev/null || true' EXIT\n");
    let blocks = blocks(&chapters().0, "sh");
    assert!(blocks.len() >= 10, "only {} shell blocks", blocks.len());
    for block in &blocks {
        for line in block.lines().filter(|l| !is_run_elsewhere(l)) {
            if line.starts_with("kill -TERM") {
                script.push_str(SIGNED_AS_THE_README_SAYS);
            }
            script.push_str(line);
            script.push('\n');
        }
    }
    script.push_str("echo; echo THE END\n");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("PATH"));
    let mut running = tokio::task::spawn_blocking({
        let (directory, url) = (directory.clone(), database.url().to_owned());
        move || {
            Command::new("timeout")
                .args(["--kill-after=5", "120", "bash", "-c", &script])
                .current_dir(&directory)
                .env("PATH", path)
                .env("DATABASE_URL", url)
                .env("URL", format!("http://{address}"))
                .env("HOOK", hook)
                .env("MILLRACE_SECRET_KEY", "5a".repeat(32))
                .env("MILLRACE_DELIVERY__ALLOWED_NETWORKS", "127.0.0.0/8")
                // Nobody listens there: nothing may go to the real one, whatever the README says.
                .env("MILLRACE_DELIVERY__META__GRAPH_URL", "http://127.0.0.1:1")
                .env("MILLRACE_HTTP__DOORS", address.to_string())
                .env("MILLRACE_HTTP__ADMIN", address.to_string())
                // A second, not a day: the README replays what waited in vain.
                .env("MILLRACE_ATTRIBUTION__PARK_FOR_S", "1")
                .stdin(Stdio::null())
                .output()
                .expect("bash runs")
        }
    });
    let ending = async {
        tokio::select! {
            done = &mut running => done,
            () = keep_delivery(&receiver, &directory) => running.await,
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(150), ending)
        .await
        .expect("it ends")
        .expect("it ran");
    let out = String::from_utf8_lossy(&done.stdout);
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success() && out.contains("THE END"),
        "{}\n--- stdout\n{out}\n--- stderr\n{err}",
        done.status
    );
    assert_eq!(
        receiver.received().len(),
        1,
        "one message, at its first try"
    );
    let _ = std::fs::remove_dir_all(&directory);
}

/// `millrace topics switch` in the prose is `["topics", "switch"]`.
fn commands_in_prose(text: &str) -> Vec<Vec<String>> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| code.strip_prefix("millrace "))
        .map(|words| {
            words
                .split(' ')
                .take_while(|w| w.chars().all(|c| c.is_ascii_lowercase()))
                .map(str::to_owned)
                .collect()
        })
        .collect()
}

#[test]
fn commands_named_in_its_prose_exist() {
    let text = readme();
    let fenced: Vec<&str> = text.split("\n```").step_by(2).collect();
    let commands = commands_in_prose(&fenced.join("\n"));
    assert!(commands.len() >= 4, "{commands:?}");
    let product = product().expect("the product");
    for words in commands {
        let done = Command::new(&product)
            .args(&words)
            .arg("--help")
            .output()
            .expect("it runs");
        assert!(done.status.success(), "millrace {words:?} --help");
    }
}

#[test]
fn its_make_commands_are_run_by_ci() {
    let ci = std::fs::read_to_string(root().join(".ci/run")).expect(".ci/run");
    let text = blocks(&readme(), "sh").concat();
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("make ")).collect();
    assert!(!lines.is_empty(), "no make command is found");
    for line in lines {
        assert!(ci.contains(line), "{line}");
    }
}

#[test]
fn its_settings_load() {
    let blocks = blocks(&readme(), "toml");
    assert!(!blocks.is_empty(), "no settings are found");
    for (n, block) in blocks.iter().enumerate() {
        let path =
            std::env::temp_dir().join(format!("millrace-readme-{}-{n}.toml", std::process::id()));
        std::fs::write(&path, block).expect("the file");
        let loaded = millrace::settings::load(Some(&path));
        let _ = std::fs::remove_file(&path);
        assert!(loaded.is_ok(), "{block}: {:?}", loaded.err());
    }
}
