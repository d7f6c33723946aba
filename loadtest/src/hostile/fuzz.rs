//! `loadtest fuzz`: builds the fuzzer with coverage counters on the pinned toolchain, runs every target, says what was reached.
//!
//! libFuzzer needs nothing but LLVM's coverage pass, which the stable compiler has; the sanitizers, which it has not, would find
//! little where no unsafe code is ours. What each target has learned is kept under target/fuzz; `--keep` takes the smallest set of
//! it that reaches as much into the repository.

use super::corpus;
use crate::machine;
use crate::report::publish_faults;
use anyhow::{Context, bail, ensure};
use millrace_tests::fuzzing::{TABLE, Target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is fuzzed, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Minutes for each target.
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// Only these targets.
    #[arg(long = "target", value_name = "NAME")]
    pub targets: Vec<String>,
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
    let mut reports = Vec::new();
    for target in TABLE {
        if !options.targets.is_empty() && !options.targets.iter().any(|n| n == target.name) {
            continue;
        }
        let report = fuzz(&place, target, seconds, options.seed)?;
        println!(
            "{:<18} {:>10} executions  {:>6} edges  {:>5} inputs  {:>4} MiB  {}",
            target.name,
            report.executions,
            report.edges,
            report.inputs,
            report.memory,
            report.finding.as_deref().unwrap_or("nothing found"),
        );
        if options.keep && report.finding.is_none() {
            corpus::keep(&place, target)?;
        }
        reports.push(report);
    }
    publish_faults("fuzz", &section(options, seconds, &reports), !options.dry)?;
    let found: Vec<&str> = reports
        .iter()
        .filter(|r| r.finding.is_some())
        .map(|r| r.target.name)
        .collect();
    ensure!(found.is_empty(), "findings: {}", found.join(", "));
    Ok(())
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
        finding,
    })
}

fn section(options: &Options, seconds: f64, reports: &[Report]) -> String {
    let mut rows = String::new();
    for r in reports {
        rows.push_str(&format!(
            "| `{}` | {} | {} | {} | {} | {} | {} |\n",
            r.target.name,
            r.target.what,
            r.executions,
            r.edges,
            r.inputs,
            r.memory,
            r.finding.as_deref().unwrap_or("none"),
        ));
    }
    let all: u64 = reports.iter().map(|r| r.executions).sum();
    let found = reports.iter().filter(|r| r.finding.is_some()).count();
    format!(
        "## Fuzzing\n\n{}\n\nlibFuzzer, coverage counters in every crate, {seconds:.0} s each on one core, no input longer than {LONGEST} s or \
         {MEMORY} MiB; the kept corpus is where each begins. {} targets, {all} executions, findings: **{found}**.\n\n\
         | target | decodes | executions | edges | inputs | peak MiB | finding |\n|---|---|---|---|---|---|---|\n{rows}",
        machine::describe(None, options.seed),
        reports.len(),
    )
}
