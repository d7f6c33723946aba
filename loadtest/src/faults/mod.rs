//! The fault runner: seeded runs of a whole deployment (doors, attribution, delivery, senders, receivers) over one Kafka, each
//! with a fault of some kind, each recounted to the last record and message. See [`kinds`] for what can happen, [`scene`] for
//! what it happens to, [`harbour`] for shards and people beside it, [`finish`] for what must hold afterwards.

mod deal;
mod finish;
mod harbour;
mod hits;
mod kinds;
mod old;
mod report;
mod role;
mod run;
mod sabotage;
mod scene;
mod step;
mod verify;

use anyhow::Context as _;
use clap::Args;
use deal::Deck;
use indicatif::{ProgressBar, ProgressStyle};
use kinds::Form;
use millrace_tests::faults::sessions;
use millrace_tests::kafka::Kafka;
use run::Outcome;
use sabotage::Proof;
use scene::Shared;
use std::sync::Arc;
use std::time::Duration;

/// How long a member of a group may be silent here.
const SESSION: Duration = Duration::from_secs(2);
/// From so many runs on, no failpoint and no kind may have zero hits.
const WHOLE: u64 = 200;

/// Seeded runs with faults; exit 0 only if every one of them balanced, and every safeguard switched off was missed.
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
    /// Instead of these runs, switches safeguards off (fence, position, claim, relay, lease, cooldown, or all), one after the other:
    /// exit 0 only if a loss or a double is reported for each.
    #[arg(long, conflicts_with_all = ["then_random", "then_sabotage"])]
    sabotage: Option<String>,
    /// So many runs more over the same cluster, of a random seed (which is printed).
    #[arg(long, default_value_t = 0)]
    then_random: u64,
    /// After the runs, over the same cluster, what `--sabotage` does. The last line counts the runs alone.
    #[arg(long)]
    then_sabotage: Option<String>,
    /// One broker instead of three, and without the kinds that need more; those that take more time, only when asked for by name.
    #[arg(long)]
    short: bool,
    /// How long one try of a run may take, in seconds. A shared machine may need more than a calm one; runs of more than 40 s are
    /// named all the same.
    #[arg(long, default_value_t = 40)]
    limit: u64,
    /// Does not append to FAULTS.md.
    #[arg(long)]
    dry: bool,
}

impl Options {
    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }

    fn form(&self) -> Form {
        if self.short { Form::Short } else { Form::Long }
    }
}

/// Runs of one seed.
#[derive(Clone, Copy)]
struct Series {
    seed: u64,
    from: u64,
    runs: u64,
}

/// What all runs, or all proofs, amount to.
#[derive(Clone, Copy, Default)]
struct Tally {
    runs: u64,
    lost: usize,
    doubled: usize,
    /// Whether something is not as it should be.
    failed: bool,
}

impl Tally {
    fn add(&mut self, more: Tally) {
        self.runs += more.runs;
        self.lost += more.lost;
        self.doubled += more.doubled;
        self.failed |= more.failed;
    }
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
        "random" => random_seed(),
        number => number.parse().context("--seed: a number, or `random`")?,
    };
    println!("seed {seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(all(options, seed))
}

/// Small enough to be typed again.
fn random_seed() -> u64 {
    deal::mixed(&[
        std::process::id().into(),
        millrace_tests::faults::now().cast_unsigned(),
    ]) % 1_000_000
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
    let alone = options
        .sabotage
        .as_deref()
        .map(sabotage::named)
        .transpose()?;
    let after = options.then_sabotage.as_deref();
    let after = after.map(sabotage::named).transpose()?.unwrap_or_default();
    let mut series = vec![Series {
        seed,
        from: options.from,
        runs: options.runs,
    }];
    if options.then_random > 0 {
        series.push(Series {
            seed: random_seed(),
            from: 1,
            runs: options.then_random,
        });
    }
    let deck = deck(options, seed)?;
    let upgrades = alone.is_none() && deck.kinds().any(|k| k.name == kinds::upgrade::NAME);
    let old = upgrades.then(old::build).transpose()?;
    let short = options.short;
    let kafka =
        tokio::task::spawn_blocking(move || Kafka::start_proxied(&sessions(SESSION), !short))
            .await?;
    let shared = Shared {
        kafka: Arc::new(kafka),
        brokers: if short { 1 } else { 3 },
        old,
        sabotage: String::new(),
    };
    let mut tally = Tally::default();
    if let Some(safeguards) = alone {
        tally = prove(&shared, &safeguards, options, seed).await?;
    } else {
        for (n, one) in series.into_iter().enumerate() {
            if n > 0 {
                println!("\nseed {}", one.seed);
            }
            tally.add(runs(&shared, options, one).await?);
        }
        if !after.is_empty() {
            println!();
            // Its losses and doubles are wanted: they are told, and do not count among those of the runs.
            tally.failed |= prove(&shared, &after, options, seed).await?.failed;
        }
    }
    let Tally {
        runs,
        lost,
        doubled,
        failed,
    } = tally;
    println!("runs {runs} lost {lost} doubled {doubled}");
    if failed {
        // The last line is the verdict; an error's text would come behind it.
        drop(shared);
        std::process::exit(1);
    }
    Ok(())
}

fn deck(options: &Options, seed: u64) -> anyhow::Result<Deck> {
    let only = options.kind.as_deref();
    let deck = Deck::of(&kinds::table(), options.form(), only, seed);
    anyhow::ensure!(
        deck.len() > 0,
        "no such kind; `--kind list` says which there are"
    );
    Ok(deck)
}

/// Runs of one seed, told and written down.
async fn runs(shared: &Shared, options: &Options, series: Series) -> anyhow::Result<Tally> {
    let seed = series.seed;
    let deck = deck(options, seed)?;
    let outcomes = deal_out(shared, &deck, series, options.limit()).await;
    let problems = report::problems(&deck, &outcomes);
    let text = report::text(&deck, &outcomes, &problems, seed, series.runs);
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
    Ok(Tally {
        runs: outcomes.len() as u64,
        lost: outcomes.iter().map(Outcome::lost).sum(),
        doubled: outcomes.iter().map(Outcome::doubled).sum(),
        failed: !problems.is_empty() || !outcomes.iter().all(Outcome::balanced),
    })
}

/// Switches safeguards off, one after the other; told and written down. It failed where one was not missed.
async fn prove(
    shared: &Shared,
    safeguards: &[&'static str],
    options: &Options,
    seed: u64,
) -> anyhow::Result<Tally> {
    let mut proofs = Vec::new();
    for &safeguard in safeguards {
        let (form, limit) = (options.form(), options.limit());
        proofs.push(sabotage::prove(shared, safeguard, form, seed, limit).await);
    }
    let text = report::sabotages(&proofs, seed);
    if !options.dry {
        report::append(&text)?;
    }
    println!("\n{text}");
    Ok(Tally {
        runs: proofs.iter().map(|p| p.runs).sum(),
        lost: proofs.iter().map(|p| p.lost).sum(),
        doubled: proofs.iter().map(|p| p.doubled).sum(),
        failed: !proofs.iter().all(Proof::noticed),
    })
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

async fn deal_out(shared: &Shared, deck: &Deck, series: Series, limit: Duration) -> Vec<Outcome> {
    let Series { seed, from, runs } = series;
    let bar = ProgressBar::new(runs);
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    let mut outcomes = Vec::new();
    for number in from..from + runs {
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
