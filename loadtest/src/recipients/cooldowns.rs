//! What cooldowns take while they are held hot. A process of its own for each way: in one that had freed anything before, that would
//! be used again, and the process would grow by less.

use super::NOW;
use crate::cpu;
use anyhow::{Context, ensure};
use millrace::recipients::slice::Cooldowns;
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use uuid::Uuid;

/// What passes through, and what may be held of it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Cooldowns that pass through.
    #[arg(long)]
    pub keys: usize,
    /// Slices that share them, one a partition.
    #[arg(long)]
    pub slices: usize,
    /// What a slice holds at most.
    #[arg(long)]
    pub bound: usize,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Held {
    /// Cooldowns that are held at the end.
    pub held: usize,
    /// Bytes that the tables have allocated then.
    pub tables: usize,
    /// Bytes of the tables a cooldown at its worst, with half of what is ever held or more: right after a table has grown.
    pub worst: f64,
    /// By how many bytes the process had grown, at its peak, when half of the cooldowns had passed.
    pub halfway: u64,
    /// The same when all had.
    pub grown: u64,
}

impl Held {
    /// Bytes of the tables a cooldown, at the end.
    pub fn each(&self) -> f64 {
        self.tables as f64 / self.held.max(1) as f64
    }

    /// How much more memory the second half of the cooldowns took: 1, if none.
    pub fn growth(&self) -> f64 {
        self.grown as f64 / self.halfway.max(1) as f64
    }
}

/// Runs it in a process of its own.
///
/// # Errors
/// That process fails.
pub fn measure(options: Options) -> anyhow::Result<Held> {
    let out = Command::new(std::env::current_exe()?)
        .arg("hot-cooldowns")
        .args(["--keys", &options.keys.to_string()])
        .args(["--slices", &options.slices.to_string()])
        .args(["--bound", &options.bound.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(out.status.success(), "hot-cooldowns: {}", out.status);
    serde_json::from_slice(&out.stdout).context("what hot-cooldowns says")
}

/// Measures in this process, and says it as JSON.
///
/// # Errors
/// A slice holds more than it may, or forgot what it was told last.
pub fn run(options: &Options) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(&here(options)?)?);
    Ok(())
}

fn here(options: &Options) -> anyhow::Result<Held> {
    let before = cpu::resident(std::process::id());
    let grown = || cpu::resident_peak(std::process::id()).saturating_sub(before);
    let slices = options.slices.max(1);
    let mut all: Vec<Cooldowns> = (0..slices).map(|_| Cooldowns::new(options.bound)).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut last = Uuid::nil();
    let (mut worst, mut halfway): (f64, u64) = (0.0, 0);
    let ever = options.keys.min(slices.saturating_mul(options.bound));
    for n in 0..options.keys {
        last = Uuid::from_u64_pair(next(), next());
        all[n % slices].put(last, NOW);
        let held: usize = all.iter().map(Cooldowns::len).sum();
        if held >= ever / 2 {
            let tables: usize = all.iter().map(Cooldowns::allocated).sum();
            worst = worst.max(tables as f64 / held.max(1) as f64);
        }
        if n == options.keys / 2 {
            halfway = grown();
        }
    }
    let grown = grown();
    for slice in &all {
        ensure!(
            slice.len() <= options.bound.max(2),
            "{} of {} are held",
            slice.len(),
            options.bound
        );
    }
    let newest = all[(options.keys.max(1) - 1) % slices].get(last);
    ensure!(
        options.keys == 0 || newest.is_some(),
        "the last is forgotten"
    );
    Ok(Held {
        held: all.iter().map(Cooldowns::len).sum(),
        tables: all.iter().map(Cooldowns::allocated).sum(),
        worst,
        halfway,
        grown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_through_is_held_up_to_the_bound() {
        let held = |keys, slices, bound| {
            let options = Options {
                keys,
                slices,
                bound,
            };
            here(&options).expect("it holds")
        };
        // A slice forgets a half at a time.
        let few = held(10_000, 4, 100);
        assert!((200..=400).contains(&few.held), "{few:?}");
        let all = held(10_000, 1, 20_000);
        assert_eq!(all.held, 10_000);
        assert!(all.tables > 20 * few.tables, "{all:?} {few:?}");
        assert!(all.worst >= all.each());
    }
}
