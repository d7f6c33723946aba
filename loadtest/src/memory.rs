//! Memory: `millrace up` that idles, without its PostgreSQL; and a partition's slice, which stays within its bound however many
//! keys pass through it.

use crate::contender::{Contender, Running, Tuning, product};
use crate::report::{publish, verdict};
use crate::stack::{Stack, WorkloadOptions};
use crate::workload::Workload;
use crate::{consume, cpu, machine};
use anyhow::ensure;
use std::process::Command;
use std::time::{Duration, Instant};

/// How to measure memory.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Records that pass through; their keys are ten times the bounded slices.
    #[arg(long, default_value_t = 1_000_000)]
    pub records: u32,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
    /// How long `up` idles before it is looked at, in seconds.
    #[arg(long, default_value_t = 15)]
    pub idle: u64,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// The most that `up` may hold when idle, in MiB.
const IDLE_MIB: f64 = 120.0;

/// Runs it.
///
/// # Errors
/// The product does not start.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (idle, peak) = idle(options).await?;
        let slices = slices(options).await?;
        let mut body = format!(
            "## Memory\n\n{}\n\n`millrace up`, idle for {} s, its PostgreSQL apart: **{idle:.0} MiB** resident, at most {peak:.0} MiB (wanted < {IDLE_MIB:.0} MiB:\n{}).\n\nSlices: {} records in two topics of one partition through one actor; resident memory of the process (MiB) when so much of\nthem was consumed.\n\n| clicks a slice may hold | distinct keys | 25 % | 50 % | 75 % | 100 % |\n|---|---|---|---|---|---|\n",
            machine::describe(None, options.seed),
            options.idle,
            verdict(idle < IDLE_MIB),
            options.records,
        );
        for slice in &slices {
            let line: Vec<String> = slice.mib.iter().map(|m| format!("{m:.0}")).collect();
            body.push_str(&format!("| {} | {} | {} |\n", slice.bound, slice.keys, line.join(" | ")));
        }
        publish("memory", &body, !options.dry)
    })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

async fn idle(options: &Options) -> anyhow::Result<(f64, f64)> {
    let folder = std::env::temp_dir().join(format!("millrace-loadtest-up-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut command = Command::new(product()?);
    command
        .arg("up")
        .current_dir(&folder)
        .env_remove("DATABASE_URL")
        .env("MILLRACE_DATABASE__DATA_DIR", folder.join("data"))
        .env("MILLRACE_HTTP__DOORS", "127.0.0.1:0")
        .env("MILLRACE_HTTP__ADMIN", "127.0.0.1:0");
    let mut up = Running::start(command, "up")?;
    let until = Instant::now() + Duration::from_secs(60);
    while !up.said("millrace is up") {
        up.check()?;
        ensure!(
            Instant::now() < until,
            "`up` is not up after a minute: {}",
            up.last_words()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(options.idle)).await;
    let seen = (
        mib(cpu::resident(up.pid())),
        mib(cpu::resident_peak(up.pid())),
    );
    up.stop().await?;
    std::fs::remove_dir_all(&folder)?;
    Ok(seen)
}

struct Slice {
    bound: usize,
    keys: u32,
    mib: Vec<f64>,
}

/// The same records with a slice of a tenth of the keys, and with one that holds them all, to see the difference.
async fn slices(options: &Options) -> anyhow::Result<Vec<Slice>> {
    let workload = WorkloadOptions {
        records: options.records,
        partitions: 1,
        seed: options.seed,
    };
    let stack = Stack::start().await?;
    let loaded = stack.preload(&workload).await?;
    let keys = Workload::keys(options.records);
    let mut seen = Vec::new();
    for bound in [keys / 100, keys / 10, keys] {
        let tuning = Tuning {
            batch: 5_000,
            arbiters: 1,
            partitions: 1,
            slice_clicks: bound as usize,
        };
        let database = stack.fresh_database(1).await?;
        let client = database.client().await;
        let mut process = Contender::Product.start(stack.brokers(), database.url(), &tuning)?;
        let mut marks = vec![0.0; 4];
        let total = loaded.totals.records;
        consume::watch(&client, Contender::Product.group(), total, |at| {
            let quarter = usize::try_from(at * 4 / total.max(1)).unwrap_or(0);
            let now = mib(cpu::resident(process.pid()));
            for mark in marks.iter_mut().take(quarter) {
                if *mark == 0.0 {
                    *mark = now;
                }
            }
            process.check()
        })
        .await?;
        process.stop().await?;
        seen.push(Slice {
            bound: bound as usize,
            keys,
            mib: marks,
        });
    }
    Ok(seen)
}
