//! `millrace doctor`: looks at everything the product depends on, and says what to do about what is not right.

mod delivery;
mod door;
mod flow;
mod log;
mod store;

use super::Context;
use super::output;
use crate::postgres::pool::Database;
use serde_json::json;
use std::process::ExitCode;
use tokio_postgres::Client;

/// Settings, the database (version, TLS, schema, partitions, clock, durability), the log and its topics, stopped and ownerless
/// partitions, the disk, the sealing key and what it seals, paused destinations and overdue messages, the doors. Every line is OK, WARN or FAIL with what to do; the exit
/// code is 1 if anything failed. It changes nothing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  millrace doctor\n  millrace --json doctor | jq '.[] | select(.state == \"fail\")'"
)]
pub(super) struct Args {}

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ok,
    Warn,
    Fail,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "OK",
            State::Warn => "WARN",
            State::Fail => "FAIL",
        }
    }
}

/// One line of the answer.
#[derive(Debug)]
struct Finding {
    what: &'static str,
    state: State,
    says: String,
    /// What to do.
    advice: Option<String>,
}

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    /// How many.
    fn len(&self) -> usize {
        self.0.len()
    }

    pub fn ok(&mut self, what: &'static str, says: impl Into<String>) {
        self.add(what, State::Ok, says, None);
    }

    pub fn warn(&mut self, what: &'static str, says: impl Into<String>, advice: &str) {
        self.add(what, State::Warn, says, Some(advice));
    }

    pub fn fail(&mut self, what: &'static str, says: impl Into<String>, advice: &str) {
        self.add(what, State::Fail, says, Some(advice));
    }

    fn add(
        &mut self,
        what: &'static str,
        state: State,
        says: impl Into<String>,
        advice: Option<&str>,
    ) {
        self.0.push(Finding {
            what,
            state,
            says: says.into(),
            advice: advice.map(str::to_owned),
        });
    }

    /// What stands in the way of looking further.
    fn broken(&mut self, what: &'static str, error: &anyhow::Error) {
        self.fail(
            what,
            format!("{error:#}"),
            "the store refused a question of the doctor's; look at its log",
        );
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for f in &self.0 {
            text.push_str(&format!(
                "{:<5} {:<12} {}\n",
                f.state.word(),
                f.what,
                f.says
            ));
            if let Some(advice) = &f.advice {
                text.push_str(&format!("{:<18} → {advice}\n", ""));
            }
        }
        let count = |state| self.0.iter().filter(|f| f.state == state).count();
        text.push_str(&format!(
            "\n{} checks: {} failed, {} to look at",
            self.0.len(),
            count(State::Fail),
            count(State::Warn)
        ));
        text
    }

    fn json(&self) -> serde_json::Value {
        self.0
            .iter()
            .map(|f| {
                json!({"check": f.what, "state": f.state.word().to_lowercase(), "says": f.says, "advice": f.advice})
            })
            .collect()
    }
}

pub(super) async fn run(context: &Context, _: Args) -> anyhow::Result<ExitCode> {
    let mut findings = Findings::default();
    findings.ok("settings", "are read, no unknown keys");
    let seals = store::secret_key(context, &mut findings);
    if let Some((database, client)) = store::database(context, &mut findings).await
        && store::schema(&client, &mut findings).await
    {
        further(context, &database, &client, seals, &mut findings).await;
    }
    store::disk(context, &mut findings);
    door::look(context, &mut findings).await;
    if context.json() {
        context.answer_json(&findings.json())?;
    } else {
        output::print(&findings.text());
    }
    let failed = findings.0.iter().any(|f| f.state == State::Fail);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What can be asked only of a database whose schema is there.
async fn further(
    context: &Context,
    database: &Database,
    client: &Client,
    seals: Option<crate::sealing::Seals>,
    findings: &mut Findings,
) {
    if let Err(e) = store::partitions(client, findings).await {
        findings.broken("partitions", &e);
    }
    if let Some(seals) = seals
        && let Err(e) = delivery::seals(client, &seals, findings).await
    {
        findings.broken("secrets", &e);
    }
    let lags = log::look(context, database, client, findings).await;
    if let Err(e) = flow::look(client, &lags, findings).await {
        findings.broken("groups", &e);
    }
    if let Err(e) = delivery::look(client, findings).await {
        findings.broken("outbox", &e);
    }
}
