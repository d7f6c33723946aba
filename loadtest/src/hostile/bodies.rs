//! `loadtest bodies`: requests that no honest sender makes, against one process with all roles on the Postgres log.

use crate::report::publish_faults;
use crate::{machine, stack};
use anyhow::ensure;
use millrace_tests::hostile::{Ended, Stage, run as attack};

/// How many requests, and which.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Bodies that doors are sent; what is asked beside (the admin API, requests without a body, broken ones) comes on top.
    #[arg(long, default_value_t = 1_000_000)]
    pub count: u64,
    /// The generator's seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Connections at once; with the seed they decide what is sent on each.
    #[arg(long, default_value_t = 16)]
    pub connections: u64,
    /// Print only; leave FAULTS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// The greatest growth of memory that is called flat, in bytes: the log's retention and caches that are bounded by number.
const FLAT: i64 = 96 << 20;

/// Runs it.
///
/// # Errors
/// The process died, an answer was wrong, records were lost or doubled, or memory grew.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let bar = stack::bar("hostile requests");
    bar.set_length(options.count);
    let shown = bar.clone();
    let (seed, count) = (options.seed, options.count);
    let connections = options.connections.max(1);
    let ended = runtime.block_on(async {
        let mut stage = Stage::start("bodies", "warn").await?;
        attack(&mut stage, count, seed, connections, move |n| {
            shown.set_position(n);
        })
        .await
    })?;
    bar.finish_and_clear();
    publish_faults("bodies", &section(options, &ended), !options.dry)?;
    judge(&ended)
}

fn judge(ended: &Ended) -> anyhow::Result<()> {
    let tally = &ended.tally;
    for wrong in &tally.wrong {
        eprintln!("{wrong}\n");
    }
    ensure!(tally.wrongs == 0, "{} answers were wrong", tally.wrongs);
    let produced = u64::try_from(ended.produced)?;
    ensure!(
        (tally.accepted..=tally.accepted + tally.unsure).contains(&produced),
        "{} were accepted (and {} may have been), {produced} are in the log",
        tally.accepted,
        tally.unsure
    );
    let frames = u64::try_from(ended.frames)?;
    ensure!(
        (1..=tally.frames).contains(&frames),
        "{} lines were sent to feeds, {frames} frames are in the log",
        tally.frames
    );
    ensure!(
        ended.outcomes == ended.records,
        "{} outcomes of {} records",
        ended.outcomes,
        ended.records
    );
    ensure!(
        ended.growth() < FLAT,
        "memory grew by {} MiB",
        ended.growth() >> 20
    );
    Ok(())
}

fn section(options: &Options, ended: &Ended) -> String {
    let tally = &ended.tally;
    let memory: Vec<String> = ended
        .memory
        .iter()
        .map(|bytes| (bytes >> 20).to_string())
        .collect();
    let outcomes: Vec<String> = ended
        .by_outcome
        .iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    let faults: u64 = (500..600).map(|s| tally.with_status(s)).sum();
    format!(
        "## Hostile requests\n\n{}\n\n**{}** bodies to doors, among {} requests over {} connections in {:.0} s against every route of \
         the registry, all roles in one process on the Postgres log, one module enabled, {} lines said to feeds of its shards.\n\n\
         - Answers of 5xx: **{faults}** (of these 503: {}). Answers that must not be: **{}**. Without an \
         answer, the connection or the protocol broken on purpose: {} of {}.\n- Accepted by the doors' word: {} (and at most {} whose \
         answer was lost); of these in the log: **{}**; frames in the log: {}; records in all: {}; outcomes: **{}** ({}).\n- Resident \
         memory in MiB, before and at each twentieth: {}. Growth from the first fifth to the last: {} MiB.\n\n{}",
        machine::describe(None, options.seed),
        tally.to_doors(),
        tally.requests(),
        options.connections,
        ended.took.as_secs_f64(),
        tally.frames,
        tally.with_status(503),
        tally.wrongs,
        tally.with_status(0),
        tally.broken,
        tally.accepted,
        tally.unsure,
        ended.produced,
        ended.frames,
        ended.records,
        ended.outcomes,
        outcomes.join(", "),
        memory.join(" "),
        ended.growth() >> 20,
        tally.table(),
    )
}
