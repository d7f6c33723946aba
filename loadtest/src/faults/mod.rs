//! The fault runner: seeded runs of a whole deployment (doors, attribution, delivery, senders, receivers) over one Kafka, each
//! with a fault of some kind, each recounted to the last record and message. See [`kinds`] for what can happen, [`scene`] for
//! what it happens to, [`finish`] for what must hold afterwards.

mod deal;
mod finish;
mod hits;
mod kinds;
mod old;
mod report;
mod run;
mod sabotage;
mod scene;
mod verify;

use anyhow::Context as _;
use clap::Args;
use deal::Deck;
use indicatif::{ProgressBar, ProgressStyle};
use kinds::Form;
use millrace_tests::faults::sessions;
use millrace_tests::kafka::Kafka;
use run::Outcome;
use scene::Shared;
use std::sync::Arc;
use std::time::Duration;

/// How long a member of a group may be silent here.
const SESSION: Duration = Duration::from_secs(2);
/// From so many runs on, no failpoint and no kind may have zero hits.
const WHOLE: u64 = 200;

/// Seeded runs with faults; exit 0 only if every one of them balanced.
#[derive(Args)]
pub struct Options {
    /// How many runs.
    #[arg(long, default_value_t = WHOLE)]
    runs: u64,
    /// Where all choices come from: a number, or `random` (which is printed).
    #[arg(long, default_value = "random")]
    seed: String,
    /// This kind alone (`list`: says which there are).
    #[arg(long)]
    kind: Option<String>,
    /// The number of the first run: `--from 17 --runs 1` repeats run 17 alone.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Switches a safeguard off (fence, position, claim, relay, lease): exit 0 only if a loss or a double is reported.
    #[arg(long)]
    sabotage: Option<String>,
    /// One broker instead of three, and without the kinds that need more.
    #[arg(long)]
    short: bool,
    /// How long one run may take, in seconds. A shared machine may need more than a calm one.
    #[arg(long, default_value_t = 40)]
    limit: u64,
    /// Does not append to FAULTS.md.
    #[arg(long)]
    dry: bool,
}

/// Runs the runs.
///
/// # Errors
/// One did not balance, or nothing could be started.
pub fn run(options: &Options) -> anyhow::Result<()> {
    if options.kind.as_deref() == Some("list") {
        for kind in kinds::table() {
            println!("{} {}", kind.name, kind.variants.join(" "));
        }
        return Ok(());
    }
    product_is_built()?;
    let seed = match options.seed.as_str() {
        "random" => {
            deal::mixed(&[
                std::process::id().into(),
                millrace_tests::faults::now().cast_unsigned(),
            ]) % 1_000_000
        }
        number => number.parse().context("--seed: a number, or `random`")?,
    };
    println!("seed {seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(all(options, seed))
}

/// The product as it is to be run stands beside this program and is of the same sources: `cargo run -p loadtest` alone does
/// not build it.
fn product_is_built() -> anyhow::Result<()> {
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = std::process::Command::new(cargo);
        build.args([
            "build",
            "-q",
            "-p",
            "millrace-tests",
            "--bin",
            "millrace-proving",
        ]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        anyhow::ensure!(build.status()?.success(), "the product does not build");
    }
    let product = millrace_tests::process::product()?;
    println!("{}", product.display());
    Ok(())
}

async fn all(options: &Options, seed: u64) -> anyhow::Result<()> {
    anyhow::ensure!(
        !millrace_tests::kafka::is_absent(),
        "the fault runner needs Apache Kafka"
    );
    let limit = Duration::from_secs(options.limit);
    let short = options.short;
    let form = if short { Form::Short } else { Form::Long };
    let deck = Deck::of(&kinds::table(), form, options.kind.as_deref(), seed);
    anyhow::ensure!(
        deck.len() > 0,
        "no such kind; `--kind list` says which there are"
    );
    let upgrades =
        options.sabotage.is_none() && deck.kinds().any(|k| k.name == kinds::upgrade::NAME);
    let old = upgrades.then(old::build).transpose()?;
    let kafka =
        tokio::task::spawn_blocking(move || Kafka::start_proxied(&sessions(SESSION), !short))
            .await?;
    let shared = Shared {
        kafka: Arc::new(kafka),
        brokers: if short { 1 } else { 3 },
        old,
        sabotage: options.sabotage.clone().unwrap_or_default(),
    };
    if let Some(what) = &options.sabotage {
        return sabotage::prove(&shared, what, seed, limit).await;
    }
    let outcomes = deal_out(&shared, &deck, options, seed, limit).await;
    let problems = report::problems(&deck, &outcomes);
    let text = report::text(&deck, &outcomes, &problems, seed, options.runs);
    if !options.dry {
        report::append(&text)?;
    }
    println!("\n{text}");
    for outcome in outcomes.iter().filter(|o| !o.balanced()) {
        report::tell(outcome, seed, &again(options, outcome.run, seed));
    }
    for problem in &problems {
        println!("{problem}");
    }
    let lost: usize = outcomes.iter().map(Outcome::lost).sum();
    let doubled: usize = outcomes.iter().map(Outcome::doubled).sum();
    println!("runs {} lost {lost} doubled {doubled}", outcomes.len());
    let balanced = problems.is_empty() && outcomes.iter().all(Outcome::balanced);
    if !balanced {
        // The last line is the verdict; an error's text would come behind it.
        drop(shared);
        std::process::exit(1);
    }
    Ok(())
}

/// The command that repeats a run.
fn again(options: &Options, run: u64, seed: u64) -> String {
    let mut command =
        format!("cargo run -p loadtest -- faults --seed {seed} --from {run} --runs 1");
    if options.short {
        command.push_str(" --short");
    }
    if let Some(kind) = &options.kind {
        command.push_str(&format!(" --kind {kind}"));
    }
    command
}

async fn deal_out(
    shared: &Shared,
    deck: &Deck,
    options: &Options,
    seed: u64,
    limit: Duration,
) -> Vec<Outcome> {
    let bar = ProgressBar::new(options.runs);
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    let mut outcomes = Vec::new();
    for number in options.from..options.from + options.runs {
        let Some(card) = deck.card(number) else { break };
        bar.set_message(format!("run {number}: {}", card.name()));
        let outcome = run::run(shared, card, seed, number, limit).await;
        let line = report::line(&outcome);
        // Without a terminal the bar shows nothing, and prints nothing either.
        if bar.is_hidden() {
            println!("{line}");
        } else {
            bar.println(line);
        }
        outcomes.push(outcome);
        bar.inc(1);
    }
    bar.finish_and_clear();
    outcomes
}
