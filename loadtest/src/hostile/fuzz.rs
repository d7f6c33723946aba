//! `loadtest fuzz`: builds the fuzzer with coverage counters on the pinned toolchain, runs every target, says what was reached.
//!
//! libFuzzer needs nothing but LLVM's coverage pass, which the stable compiler has; the sanitizers, which it has not, would find
//! little where no unsafe code is ours. What each target has learned is kept under target/fuzz; `--keep` takes the smallest set of
//! it that reaches as much into the repository.
//!
//! Targets may be fuzzed on several days: FAULTS.md has a row a target, and a run replaces the rows of its targets alone. What is
//! done stands there as soon as it is done, so an interrupted run loses only the targets that it was at.

use super::{corpus, rows};
use crate::machine;
use crate::report::{faults_section, publish_faults, write_faults};
use anyhow::{Context, bail, ensure};
use millrace_tests::fuzzing::{TABLE, Target, find};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What is fuzzed, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Minutes for each target.
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// Only these targets.
    #[arg(long = "target", value_name = "NAME")]
    pub targets: Vec<String>,
    /// Targets at the same time, each a process of its own with its own limit of time. With more of them than cores, each has
    /// less than the minutes say.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: u16,
    /// The fuzzer's seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Takes what reaches more into tests/corpus.
    #[arg(long)]
    pub keep: bool,
    /// Print only; leave FAULTS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// No input may take longer, in seconds: the slowest takes some milliseconds.
const LONGEST: u32 = 10;
/// No target may take more memory, in MiB.
const MEMORY: u32 = 1_024;

const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Where everything lies.
pub(super) struct Place {
    /// The fuzzer.
    pub program: PathBuf,
    /// A folder for what is learned, and what is found.
    pub work: PathBuf,
}

/// What a target came to.
struct Report {
    target: &'static Target,
    executions: u64,
    edges: u64,
    inputs: u64,
    memory: u64,
    /// How long the process ran: less than was asked for where it found something.
    took: Duration,
    finding: Option<String>,
}

/// Runs it.
///
/// # Errors
/// The fuzzer cannot be built, a target does not exist, or something was found.
pub fn run(options: &Options) -> anyhow::Result<()> {
    for name in &options.targets {
        ensure!(
            TABLE.iter().any(|t| t.name == name),
            "there is no target `{name}`"
        );
    }
    let place = build()?;
    let seconds = (options.minutes * 60.0).round().max(1.0);
    let targets: Vec<&'static Target> = TABLE
        .iter()
        .filter(|t| options.targets.is_empty() || options.targets.iter().any(|n| n == t.name))
        .collect();
    // Of each job: the next target that nobody has taken, until there is none or something went wrong.
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let report = one(options, &place, target, seconds).inspect_err(|_| {
                next.store(targets.len(), Ordering::Relaxed);
            })?;
            let mut done = done.lock().unwrap_or_else(|broken| broken.into_inner());
            done.push(report);
            if !options.dry {
                write_faults("fuzz", &section(options, seconds, &done))?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..options.jobs).map(|_| scope.spawn(work)).collect();
        let ended = jobs.into_iter().map(|job| match job.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<anyhow::Result<()>>()
    })?;
    let done = done
        .into_inner()
        .unwrap_or_else(|broken| broken.into_inner());
    publish_faults("fuzz", &section(options, seconds, &done), !options.dry)?;
    let found: Vec<&str> = done
        .iter()
        .filter(|r| r.finding.is_some())
        .map(|r| r.target.name)
        .collect();
    ensure!(found.is_empty(), "findings: {}", found.join(", "));
    Ok(())
}

/// One target, from its kept inputs to what is kept of it.
fn one(
    options: &Options,
    place: &Place,
    target: &'static Target,
    seconds: f64,
) -> anyhow::Result<Report> {
    let report = fuzz(place, target, seconds, options.seed)?;
    println!(
        "{:<18} {:>10} executions  {:>6} edges  {:>5} inputs  {:>4} MiB  {:>5.0} s  {}",
        target.name,
        report.executions,
        report.edges,
        report.inputs,
        report.memory,
        report.took.as_secs_f64(),
        report.finding.as_deref().unwrap_or("nothing found"),
    );
    if options.keep && report.finding.is_none() {
        corpus::keep(place, target)?;
    }
    Ok(report)
}

/// The triple of this machine's compiler: named, so that build scripts and macros are built without counters.
fn host() -> anyhow::Result<String> {
    let out = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text.lines().find_map(|l| l.strip_prefix("host: "));
    line.map(str::to_owned).context("rustc names no host")
}

fn build() -> anyhow::Result<Place> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = root.join("target/fuzz");
    let host = host()?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(["build", "--locked", "--target", &host])
        .current_dir(root.join("tests/fuzz"))
        .env(
            "CARGO_TARGET_DIR",
            target.canonicalize().unwrap_or_else(|_| target.clone()),
        )
        .env("RUSTFLAGS", COVERAGE)
        .status()?;
    ensure!(status.success(), "the fuzzer cannot be built");
    let work = target.join("work");
    std::fs::create_dir_all(&work)?;
    Ok(Place {
        program: target.join(host).join("debug/decoders").canonicalize()?,
        work: work.canonicalize()?,
    })
}

fn fuzz(place: &Place, target: &'static Target, seconds: f64, seed: u64) -> anyhow::Result<Report> {
    let learned = corpus::learned(place, target)?;
    let found = place.work.join(format!("{}-found-", target.name));
    let begun = Instant::now();
    let out = Command::new(&place.program)
        .arg(learned)
        .arg(corpus::kept(target))
        .arg(format!("-max_total_time={seconds:.0}"))
        .arg(format!("-max_len={}", target.longest))
        .arg(format!("-timeout={LONGEST}"))
        .arg(format!("-rss_limit_mb={MEMORY}"))
        .arg(format!("-seed={}", seed.max(1)))
        .arg(format!("-artifact_prefix={}", found.display()))
        .arg("-print_final_stats=1")
        .env("MILLRACE_FUZZ_TARGET", target.name)
        .env("RUST_BACKTRACE", "1")
        .output()?;
    let took = begun.elapsed();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let finding = (!out.status.success()).then(|| {
        let log = place.work.join(format!("{}.log", target.name));
        // The log is for people; without it the finding's input still stands beside.
        let _ = std::fs::write(&log, &said);
        let panic = said.lines().skip_while(|l| !l.contains("panicked at"));
        let words: Vec<&str> = panic.take(2).collect();
        let what = if words.is_empty() {
            said.lines()
                .find(|l| l.contains("ERROR"))
                .unwrap_or("it ended badly")
                .to_owned()
        } else {
            words.join(" ")
        };
        format!("{what} ({})", log.display())
    });
    let stat = |name: &str| {
        let line = said
            .lines()
            .find_map(|l| l.strip_prefix(&format!("stat::{name}:")));
        line.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
    };
    let last = |mark: &str| {
        let line = said
            .lines()
            .rev()
            .find(|l| l.contains(" cov: "))
            .unwrap_or_default();
        let mut words = line.split_whitespace().skip_while(|w| *w != mark);
        let value = words.nth(1).unwrap_or_default();
        let digits = value.split('/').next().unwrap_or_default();
        digits.parse().unwrap_or(0)
    };
    if finding.is_none() && stat("number_of_executed_units") == 0 {
        bail!("{} did not run:\n{said}", target.name);
    }
    Ok(Report {
        target,
        executions: stat("number_of_executed_units"),
        edges: last("cov:"),
        inputs: last("corp:"),
        memory: stat("peak_rss_mb"),
        took,
        finding,
    })
}

/// How long a target's process ran, and how many of them shared the cores, where they did.
fn seconds_of(took: Duration, jobs: usize, cores: usize) -> String {
    let seconds = took.as_secs_f64();
    if jobs > cores {
        format!("{seconds:.0}, {jobs} on {cores} cores")
    } else {
        format!("{seconds:.0}")
    }
}

/// The section: what was fuzzed now, and the rows of before for what was not.
fn section(options: &Options, seconds: f64, reports: &[Report]) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let new = reports.iter().map(|r| {
        let name = r.target.name;
        let cells = [
            format!("`{name}`"),
            r.target.what.to_owned(),
            r.executions.to_string(),
            r.edges.to_string(),
            r.inputs.to_string(),
            r.memory.to_string(),
            r.finding.as_deref().unwrap_or("none").to_owned(),
            seconds_of(r.took, usize::from(options.jobs), cores),
            options.seed.max(1).to_string(),
            today.clone(),
        ];
        (name.to_owned(), cells.map(|text| rows::cell(&text)))
    });
    let table = rows::merged(rows::read(&faults_section("fuzz")), new, |name| {
        find(name).is_some()
    });
    let never: Vec<&str> = TABLE
        .iter()
        .map(|t| t.name)
        .filter(|name| !table.contains_key(*name))
        .collect();
    let never = match never.as_slice() {
        [] => "none".to_owned(),
        some => format!("`{}`", some.join("`, `")),
    };
    let found = table.values().filter(|row| row[6] != "none").count();
    let all: u64 = table
        .values()
        .filter_map(|row| row[2].parse::<u64>().ok())
        .sum();
    format!(
        "## Fuzzing\n\nLast: {}\n\nlibFuzzer, coverage counters in every crate, each target a process of one thread, in the last run {} at a \
         time on {cores} cores and asked to stop after {seconds:.0} s. Seconds are elapsed ones of the process, its start and the \
         kept corpus included; where more ran at once than there are cores, that stands beside them. No input longer than {LONGEST} s \
         or {MEMORY} MiB; the kept corpus is where each begins. Each row is of its target's last run. {} targets, {all} executions, \
         findings: **{found}**. Never fuzzed: {never}.\n\n{}",
        machine::describe(None, options.seed),
        options.jobs,
        table.len(),
        rows::table(&table),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_those_that_passed_and_name_who_shared_the_cores() {
        let took = Duration::from_millis(12_400);
        assert_eq!(seconds_of(took, 2, 2), "12");
        assert_eq!(seconds_of(took, 4, 2), "12, 4 on 2 cores");
    }
}
