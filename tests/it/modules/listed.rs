//! `millrace rules list`: what a workspace's rules are, and why one sleeps.

use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use serde_json::Value;

async fn run(at: &Deployment) -> anyhow::Result<()> {
    let launch = async |name: &str, enabled: &str, words: &[&str]| {
        let launch = at.launch(name)?.env("RUST_LOG", "off");
        let launch = launch.setting("modules.enabled", enabled);
        launch.args(words.iter().copied()).run(PATIENCE).await
    };
    launch("made", "survival", &["workspace", "create", "acme"]).await?;
    let list = async |name: &str, enabled: &str, more: &[&str]| -> anyhow::Result<Vec<Value>> {
        let mut words = vec!["--json", "rules", "list", "--workspace", "acme"];
        words.extend(more);
        Ok(serde_json::from_str(&launch(name, enabled, &words).await?)?)
    };
    let all = list("all", "survival", &[]).await?;
    anyhow::ensure!(all.len() > 5, "{all:?}");
    for rule in &all {
        anyhow::ensure!(
            rule["enabled"] == false && rule["dormant"] == Value::Array(Vec::new()),
            "{rule}"
        );
    }
    let raided = list("one", "survival", &["--trigger", "survival.base.raided"]).await?;
    anyhow::ensure!(raided.len() == 1, "{raided:?}");
    anyhow::ensure!(
        (&raided[0]["audience"], &raided[0]["cap"]) == (&"owner".into(), &100.into()),
        "{raided:?}"
    );
    let store = at.store().await;
    let id = raided[0]["rule"].as_str().unwrap_or_default();
    let sql = "UPDATE rules SET enabled = true WHERE rule_id = $1";
    store.execute(sql, &[&id]).await?;
    let on = list("on", "survival", &["--enabled"]).await?;
    anyhow::ensure!(on.len() == 1 && on[0]["rule"] == id, "{on:?}");
    // Its module is not enabled any more: it is listed all the same, and says why it reaches nobody.
    let asleep = list("asleep", "uo", &["--enabled"]).await?;
    anyhow::ensure!(
        asleep[0]["dormant"][0] == "unknown_trigger survival.base.raided",
        "{asleep:?}"
    );
    let table = launch(
        "table",
        "survival",
        &["rules", "list", "--workspace", "acme"],
    )
    .await?;
    anyhow::ensure!(table.contains("survival.base.raided"), "{table}");
    let absent = ["rules", "list", "--workspace", "nobody"];
    let refused = launch("absent", "survival", &absent).await;
    anyhow::ensure!(refused.is_err(), "an unknown workspace has rules");
    Ok(())
}

#[tokio::test]
async fn rules_are_listed_at_the_terminal() {
    let at = Deployment::start("rules-list", Log::Postgres, 1)
        .await
        .unwrap();
    run(&at)
        .await
        .unwrap_or_else(|e| panic!("{e:#}\n{}", at.last_words()));
}
