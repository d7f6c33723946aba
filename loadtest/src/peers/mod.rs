//! The product beside its peers on the same work in the same run: workload W on a real Kafka, every contender ending with each
//! row committed once in the same PostgreSQL.
//!
//! Each contender is processes of its own, in turns; what they, Kafka and PostgreSQL used is counted from their start. A
//! contender whose rows or payouts are not what the generator made has failed, and the run with it.

mod build;
mod content;
mod kill;
mod measure;
mod peer;
mod section;
mod short;
mod topics;

use crate::contender::Tuning;
use crate::report::publish;
use crate::stack::{self, Stack};
use anyhow::Context;
use measure::Round;
use peer::Peer;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// How to measure the peers.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub workload: stack::WorkloadOptions,
    /// Rounds of each contender, in turns.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// These alone.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Peer>,
    /// Other settings of a peer, to try them: `streams:sink.batch=20000,sink.threads=1`.
    #[arg(long = "try", value_name = "PEER:NAME=VALUE,..")]
    pub tried: Vec<String>,
    /// Records a transaction of the product and the bare loop.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
    /// Arbiters of the product, consumers of the bare loop.
    #[arg(long, default_value_t = 2)]
    pub arbiters: usize,
    /// Leave out topic to topic.
    #[arg(long)]
    pub no_topics: bool,
    /// The product and the bare loop alone, gated at 0.6 of the target by CPU and by the best rate of up to five goes: what a merge
    /// is checked by. Writes nothing.
    #[arg(long)]
    pub short: bool,
    /// Measures nothing: each contender is killed by SIGKILL twice at its work and started again, and its rows are counted.
    #[arg(long, conflicts_with = "short")]
    pub kill: bool,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// The least rate of the product, as a share of the bare loop's.
pub const LEAST_OF_BARE: f64 = 0.7;
/// How many times the best peer of the same guarantee it must be.
pub const TIMES_BEST: f64 = 2.0;
/// No more than this share of the bare loop is asked for, however fast a peer is.
pub const MOST_OF_BARE: f64 = 0.9;

/// All rounds, by contender.
pub type Rounds = BTreeMap<Peer, Vec<Round>>;

/// Runs it.
///
/// # Errors
/// Something of the stack or of a peer is missing or fails, or a ledger is not what the workload says.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    if options.short {
        return runtime.block_on(short::run(options));
    }
    runtime.block_on(measure(options))
}

fn tuning(options: &Options) -> Tuning {
    Tuning {
        batch: options.batch,
        arbiters: options.arbiters,
        partitions: options.workload.partitions,
        slice_clicks: crate::consume::slice(&options.workload),
    }
}

/// What is to be tried of each peer, in place of its settings file.
fn tried(options: &Options) -> anyhow::Result<BTreeMap<Peer, String>> {
    options
        .tried
        .iter()
        .map(|text| {
            let (peer, settings) = text.split_once(':').context("--try PEER:NAME=VALUE")?;
            let peer = <Peer as clap::ValueEnum>::from_str(peer, true)
                .map_err(|e| anyhow::anyhow!("--try {text}: {e}"))?;
            Ok((peer, settings.to_owned()))
        })
        .collect()
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let wanted: Vec<Peer> = <Peer as clap::ValueEnum>::value_variants()
        .iter()
        .copied()
        .filter(|p| options.only.is_empty() || options.only.contains(p))
        .collect();
    let tried = tried(options)?;
    for peer in &wanted {
        build::make(*peer)?;
    }
    let stack = Stack::start().await?;
    let loaded = stack.preload(&options.workload).await?;
    let bench = measure::Bench {
        stack: &stack,
        tuning: tuning(options),
        totals: loaded.totals,
        tried: &tried,
        rows: OnceLock::new(),
    };
    if options.kill {
        return kill::run(options, &bench, &wanted).await;
    }
    // Unmeasured: the broker compiles its way of fetching, PostgreSQL makes the WAL files that all later rounds use again.
    bench.round(Peer::Bare).await?.show("warming up");
    let mut rounds = Rounds::new();
    for n in 0..options.rounds.max(1) {
        // Who goes first changes from round to round.
        let mut order = wanted.clone();
        order.rotate_left(n % wanted.len());
        for peer in order {
            let round = bench.round(peer).await?;
            round.show(peer.name());
            rounds.entry(peer).or_default().push(round);
        }
    }
    let mut through = Rounds::new();
    if !options.no_topics {
        let able: Vec<Peer> = wanted
            .iter()
            .copied()
            .filter(|p| p.topic_to_topic())
            .collect();
        for n in 0..options.rounds.max(1) {
            let mut order = able.clone();
            order.rotate_left(n % able.len().max(1));
            for peer in order {
                let round = topics::round(&bench, peer).await?;
                round.show(&format!("{}, topic to topic", peer.name()));
                through.entry(peer).or_default().push(round);
            }
        }
    }
    let body = section::write(options, &bench, &rounds, &through)?;
    publish("peers", &body, !options.dry)
}
