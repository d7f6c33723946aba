//! The alert rules name nothing that a running process does not export, and `promtool` likes them where it is installed.

use millrace_tests::process::{Launch, Scratch, eventually, free_address};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("config/alerts.yml")
}

/// What a rule says by `key:`, on its line or on the lines below it.
fn values(text: &str, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let Some(value) = line
            .trim_start()
            .trim_start_matches("- ")
            .strip_prefix(key)
            .and_then(|v| v.strip_prefix(':'))
        else {
            continue;
        };
        let mut value = value.trim().to_owned();
        if value == "|" {
            value.clear();
            while let Some(more) = lines.next_if(|l| l.len() - l.trim_start().len() > indent) {
                value.push_str(more.trim());
                value.push(' ');
            }
        }
        found.push(value.trim().to_owned());
    }
    found
}

/// Words of the language that are no metric and no function.
const WORDS: &[&str] = &["and", "or", "unless", "by", "without", "on", "ignoring"];
const FUNCTIONS: &[&str] = &[
    "max",
    "min",
    "sum",
    "rate",
    "deriv",
    "absent",
    "histogram_quantile",
];

/// Metrics of an expression, each with the labels that are asked of it: by a matcher, or by the grouping of the expression.
fn metrics(expr: &str) -> BTreeMap<String, BTreeSet<String>> {
    let depth = expr.chars().try_fold(0_i32, |depth, c| {
        let depth = match c {
            '(' | '{' | '[' => depth + 1,
            ')' | '}' | ']' => depth - 1,
            _ => depth,
        };
        (depth >= 0).then_some(depth)
    });
    assert_eq!(depth, Some(0), "brackets: {expr}");
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // One comparison after another: the grouping of one is not asked of the next.
    for part in expr.split(" and ") {
        let mut rest = part;
        let (mut names, mut grouping) = (Vec::new(), BTreeSet::new());
        while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
            rest = &rest[start..];
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            let next = after.trim_start();
            if word == "by" {
                let (labels, after) = next[1..].split_once(')').unwrap();
                grouping.extend(labels.split(',').map(|l| l.trim().to_owned()));
                rest = after;
            } else if FUNCTIONS.contains(&word) || WORDS.contains(&word) {
                // Its arguments are looked at next.
            } else {
                assert!(!next.starts_with('('), "no function `{word}`: {expr}");
                let mut labels = BTreeSet::new();
                if let Some(matchers) = next.strip_prefix('{') {
                    let (matchers, after) = matchers.split_once('}').unwrap();
                    for matcher in matchers.split(',') {
                        let at = matcher.find(['=', '!']).unwrap();
                        labels.insert(matcher[..at].trim().to_owned());
                    }
                    rest = after;
                }
                // `[5m]` is no name.
                rest = rest.trim_start();
                if let Some(after) = rest.strip_prefix('[') {
                    rest = after.split_once(']').unwrap().1;
                }
                names.push((word.to_owned(), labels));
            }
        }
        for (name, labels) in names {
            let asked = found.entry(name).or_default();
            asked.extend(labels);
            asked.extend(grouping.iter().cloned());
        }
    }
    // Prometheus adds these: where it scraped.
    for labels in found.values_mut() {
        labels.retain(|l| l != "instance" && l != "job");
    }
    found
}

#[test]
fn expressions_are_read_as_they_are_meant() {
    let read =
        metrics(r#"sum by (le, door) (rate(a_bucket{x="1", y!="2"}[5m])) > 0 and absent(b) > 1"#);
    let want = [("a_bucket", vec!["door", "le", "x", "y"]), ("b", vec![])];
    let want: BTreeMap<String, BTreeSet<String>> = want
        .into_iter()
        .map(|(n, l)| (n.to_owned(), l.into_iter().map(str::to_owned).collect()))
        .collect();
    assert_eq!(read, want);
}

/// Whether some exported line has that name and those labels.
fn is_exported(exported: &str, name: &str, labels: &BTreeSet<String>) -> bool {
    exported.lines().any(|line| {
        let rest = line.strip_prefix(name);
        let end = |c: char| c == '{' || c == ' ';
        rest.is_some_and(|r| r.starts_with(end))
            && labels.iter().all(|l| line.contains(&format!("{l}=\"")))
    })
}

#[tokio::test]
async fn every_metric_of_the_rules_is_exported_by_a_running_process() {
    let text = std::fs::read_to_string(path()).unwrap();
    assert!(!text.contains('\t'));
    let names = values(&text, "alert");
    let expressions = values(&text, "expr");
    assert!(names.len() >= 12 && names.len() == expressions.len());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for key in ["for", "summary", "do"] {
        assert_eq!(values(&text, key).len(), names.len(), "{key}");
    }
    let mut asked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for expression in &expressions {
        for (name, labels) in metrics(expression) {
            asked.entry(name).or_default().extend(labels);
        }
    }
    assert!(asked.len() >= 12, "{asked:?}");

    let scratch = Scratch::new("alerts").unwrap();
    let at = free_address().unwrap();
    let launch = |name: &str| {
        Launch::product(name, scratch.path())
            .unwrap()
            .setting("http.doors", at)
            .setting("http.admin", at)
    };
    let mut process = launch("up").arg("up").spawn().unwrap();
    process.wait_for_log("millrace is up", SOON).await.unwrap();
    let command = async |name: &str, words: &[&str]| {
        let launch = launch(name).env("RUST_LOG", "off");
        launch.args(words.iter().copied()).run(SOON).await.unwrap()
    };
    command("ws", &["workspace", "create", "acme"]).await;
    let scopes = "full,ingest:write";
    let key = command(
        "key",
        &[
            "--json",
            "key",
            "create",
            "--workspace",
            "acme",
            "--name",
            "k",
            "--scopes",
            scopes,
        ],
    )
    .await;
    let (_, secret) = key.split_once("\"key\": \"").unwrap();
    let key = secret.split('"').next().unwrap();
    // No TLS is spoken here, but the client wants a provider to be there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let post = async |path: &str, body: Value| -> Value {
        let asked = http.post(format!("http://{at}{path}")).bearer_auth(key);
        let answer = asked.json(&body).send().await.unwrap();
        answer.error_for_status().unwrap().json().await.unwrap()
    };
    post(
        "/v1/webhooks",
        json!({"name": "w", "url": "https://x.invalid/", "events": ["visit"]}),
    )
    .await;
    let offer = post(
        "/v1/offers",
        json!({"name": "o", "payout": "5", "currency": "USD", "url_template": "https://shop.example/?cid={click_id}"}),
    )
    .await;
    let routing = json!({"offers": [{"offer": offer["id"]}]});
    post(
        "/v1/campaigns",
        json!({"id": "spring", "name": "s", "routing": routing}),
    )
    .await;
    // One acknowledgement in sixteen is timed, by each of two workers.
    let door = format!("http://{at}/c/spring");
    let mut taken = 0;
    eventually("clicks are taken", SOON, async || {
        taken += usize::from(http.get(&door).send().await?.status().is_redirection());
        Ok((taken >= 64).then_some(()))
    })
    .await
    .unwrap();
    let url = format!("http://{at}/metrics");
    let mut missing = Vec::new();
    let seen = eventually("all are exported", SOON, async || {
        let exported = http.get(&url).send().await?.text().await?;
        missing = asked
            .iter()
            .filter(|(name, labels)| !is_exported(&exported, name, labels))
            .map(|(name, labels)| format!("{name} {labels:?}"))
            .collect();
        Ok(missing.is_empty().then_some(()))
    });
    if let Err(e) = seen.await {
        panic!("{e}: {missing:?}\n{}", process.last_words(20));
    }
    assert_eq!(process.terminate(SOON).await.unwrap().code(), Some(0));
}

#[test]
fn promtool_likes_the_rules_where_it_is_installed() {
    let done = std::process::Command::new("promtool")
        .args(["check", "rules"])
        .arg(path())
        .output();
    let Ok(done) = done else {
        eprintln!("not run: there is no promtool");
        return;
    };
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
}
