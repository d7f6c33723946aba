//! The alert rules are what Prometheus takes for rules, and name nothing that a running process does not export.

use millrace_tests::process::{Launch, Scratch, eventually, free_address};
use promql_parser::parser::{Expr, LabelModifier, VectorSelector};
use serde::Deserialize;
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

/// The file as Prometheus reads it: what it does not know is no rule file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    lasting: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn rules(text: &str) -> Vec<Rule> {
    let file: RuleFile = serde_saphyr::from_str(text).unwrap();
    let names: BTreeSet<&str> = file.groups.iter().map(|g| g.name.as_str()).collect();
    assert_eq!(names.len(), file.groups.len(), "a group's name twice");
    file.groups.into_iter().flat_map(|g| g.rules).collect()
}

type Asked = BTreeMap<String, BTreeSet<String>>;

/// Metrics of an expression, each with the labels that are asked of it: by a matcher, or by the grouping of what stands around it.
fn metrics(expr: &str) -> Asked {
    let parsed = promql_parser::parser::parse(expr);
    let parsed = parsed.unwrap_or_else(|e| panic!("{e}: {expr}"));
    let mut found = Asked::new();
    walk(&parsed, &BTreeSet::new(), &mut found);
    // Prometheus adds these: where it scraped.
    for labels in found.values_mut() {
        labels.retain(|l| l != "instance" && l != "job");
    }
    found
}

fn walk(expr: &Expr, grouping: &BTreeSet<String>, found: &mut Asked) {
    match expr {
        Expr::Aggregate(of) => {
            let mut grouping = grouping.clone();
            match &of.modifier {
                Some(LabelModifier::Include(by)) => grouping.extend(by.labels.iter().cloned()),
                Some(LabelModifier::Exclude(_)) => panic!("`without` says what is left: {expr}"),
                None => {}
            }
            walk(&of.expr, &grouping, found);
        }
        Expr::Unary(of) => walk(&of.expr, grouping, found),
        Expr::Paren(of) => walk(&of.expr, grouping, found),
        Expr::Subquery(of) => walk(&of.expr, grouping, found),
        Expr::Binary(of) => {
            walk(&of.lhs, grouping, found);
            walk(&of.rhs, grouping, found);
        }
        Expr::Call(of) => {
            for argument in &of.args.args {
                walk(argument, grouping, found);
            }
        }
        Expr::VectorSelector(of) => select(of, grouping, found),
        Expr::MatrixSelector(of) => select(&of.vs, grouping, found),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

fn select(of: &VectorSelector, grouping: &BTreeSet<String>, found: &mut Asked) {
    let name = of.name.clone().unwrap_or_else(|| panic!("no name: {of}"));
    let asked = found.entry(name).or_default();
    asked.extend(of.matchers.matchers.iter().map(|m| m.name.clone()));
    asked.extend(grouping.iter().cloned());
}

/// Labels of the alert that a text tells.
fn told(text: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("{{") {
        let (template, after) = after.split_once("}}").unwrap();
        let mut words = template.split_whitespace();
        let what = words.next().unwrap();
        match what.strip_prefix("$labels.") {
            Some(label) => {
                labels.insert(label.to_owned());
            }
            None => assert_eq!(what, "$value", "{text}"),
        }
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some("|"), Some(function), None) => assert!(
                ["humanize1024", "humanizeDuration", "humanizePercentage"].contains(&function),
                "{text}"
            ),
            more => panic!("{more:?}: {text}"),
        }
        rest = after;
    }
    assert!(!rest.contains("}}"), "{text}");
    labels
}

#[test]
fn expressions_are_read_as_they_are_meant() {
    let read =
        metrics(r#"sum by (le, door) (rate(a_bucket{x="1", y!="2"}[5m])) > 0 and absent(b) > 1"#);
    let want = [("a_bucket", vec!["door", "le", "x", "y"]), ("b", vec![])];
    let want: Asked = want
        .into_iter()
        .map(|(n, l)| (n.to_owned(), l.into_iter().map(str::to_owned).collect()))
        .collect();
    assert_eq!(read, want);
    let none = [
        "sum by (le (a)",
        "rate(a) > 0",
        "rates(a[5m])",
        "a{x=1}",
        "a > 0 and",
        "rate(a[5m)",
        "",
    ];
    for wrong in none {
        assert!(promql_parser::parser::parse(wrong).is_err(), "{wrong}");
    }
}

/// As `promtool check rules` reads them, which reads them too where it is installed.
#[test]
fn the_rules_are_rules_of_prometheus() {
    let text = std::fs::read_to_string(path()).unwrap();
    let rules = rules(&text);
    assert!(rules.len() >= 17);
    let names: BTreeSet<&str> = rules.iter().map(|r| r.alert.as_str()).collect();
    assert_eq!(names.len(), rules.len(), "a name twice");
    for rule in &rules {
        let Rule { alert, labels, .. } = rule;
        let word = |c: char| c.is_ascii_alphanumeric();
        assert!(alert.starts_with("Millrace") && alert.chars().all(word));
        let lasting = promql_parser::util::parse_duration(&rule.lasting);
        assert!(lasting.is_ok_and(|d| !d.is_zero()), "{alert}: for");
        let severity = labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("page" | "warn")), "{alert}");
        let keys: Vec<&str> = rule.annotations.keys().map(String::as_str).collect();
        assert_eq!(keys, ["do", "summary"], "{alert}");
        let mut has: BTreeSet<String> = metrics(&rule.expr).into_values().flatten().collect();
        has.insert("instance".to_owned());
        for text in rule.annotations.values() {
            let told = told(text);
            assert!(told.is_subset(&has), "{alert} tells {told:?} of {has:?}");
        }
    }
    let promtool = std::process::Command::new("promtool")
        .args(["check", "rules"])
        .arg(path())
        .output();
    if let Ok(said) = promtool {
        let words = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "{words}");
    }
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
    let mut asked = Asked::new();
    for rule in rules(&text) {
        for (name, labels) in metrics(&rule.expr) {
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
