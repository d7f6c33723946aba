//! The product's own oracle, asked as an operator would: `millrace verify` over the store of a run.

use super::scene::Scene;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::recount::{Finding, Kind};
use serde_json::Value;

/// What it names.
///
/// # Errors
/// It gave no answer.
pub async fn verify(scene: &Scene) -> anyhow::Result<Vec<Finding>> {
    let launch = scene.deployment.launch("verify")?.env("RUST_LOG", "error");
    let mut process = launch.args(["--json", "verify", "--log"]).spawn()?;
    let status = process.wait(PATIENCE).await?;
    let said = process.log_text();
    let report = said
        .find('{')
        .and_then(|at| said.get(at..))
        .and_then(|json| serde_json::from_str::<Value>(json).ok());
    let Some(report) = report else {
        anyhow::bail!("`millrace verify` ended with {status}:\n{said}");
    };
    let mut found = Vec::new();
    for check in report["checks"].as_array().into_iter().flatten() {
        let name = check["check"].as_str().unwrap_or_default();
        for example in check["examples"].as_array().into_iter().flatten() {
            let kind = match example["kind"].as_str() {
                Some("lost") => Kind::Loss,
                Some("doubled") => Kind::Double,
                _ => Kind::Wrong,
            };
            let word = |member: &str| example[member].as_str().unwrap_or_default().to_owned();
            let what = format!("verify, {name}: {}: {}", word("at"), word("what"));
            found.push(Finding { kind, what });
        }
    }
    if found.is_empty() && !status.success() {
        let what = format!("verify ended with {status}: {}", report["differences"]);
        let kind = Kind::Wrong;
        found.push(Finding { kind, what });
    }
    Ok(found)
}
