//! CPU time and memory of processes, from /proc.

use std::path::Path;
use std::time::{Duration, Instant};

/// One process as /proc tells it.
#[derive(Clone, Copy, Debug)]
struct Stat {
    parent: u32,
    own: u64,
    reaped: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; what follows the last one is numbers.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok());
    Some(Stat {
        parent: u32::try_from(number(1)?).ok()?,
        own: number(11)? + number(12)?,
        reaped: number(13)? + number(14)?,
    })
}

fn ticks(n: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_nanos(n * 1_000_000_000 / per_second)
}

/// CPU time of a process alone, all its threads.
#[must_use]
pub fn own(pid: u32) -> Duration {
    stat(pid).map_or(Duration::ZERO, |s| ticks(s.own))
}

/// CPU time of a process and of everything that it ever started: its own, of children that ended and were waited for, and of
/// children that live.
#[must_use]
pub fn tree(pid: u32) -> Duration {
    let Some(root) = stat(pid) else {
        return Duration::ZERO;
    };
    let mut sum = root.own + root.reaped;
    for child in children(pid) {
        if let Some(s) = stat(child) {
            sum += s.own + s.reaped;
        }
    }
    ticks(sum)
}

/// Processes that it started and that live.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .filter(|p| stat(*p).is_some_and(|s| s.parent == pid))
        .collect()
}

/// Resident memory of a process, in bytes.
#[must_use]
pub fn resident(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:") * 1_024
}

/// The most it ever had, in bytes.
#[must_use]
pub fn resident_peak(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:") * 1_024
}

/// The same of a process and its children, summed.
#[must_use]
pub fn tree_peak(pid: u32) -> u64 {
    resident_peak(pid) + children(pid).into_iter().map(resident_peak).sum::<u64>()
}

fn status_kib(pid: u32, name: &str) -> u64 {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|t| {
            t.lines().find_map(|l| {
                l.strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
        })
        .unwrap_or(0)
}

/// CPU time that all processes of the machine have used, in seconds: what a measurement does not know of shows here.
#[must_use]
pub fn machine_busy() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|f| f.parse().ok())
        .collect();
    // user nice system _idle _iowait irq softirq; steal and guests are somebody else's.
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|i| fields.get(*i)).sum();
    ticks(busy)
}

/// What this program, processes with their children, and the machine had used at a time.
pub struct Clocks<const N: usize> {
    pids: [u32; N],
    own: Duration,
    trees: [Duration; N],
    machine: Duration,
    at: Instant,
}

/// What they used since.
pub struct Spent<const N: usize> {
    /// This program, alone.
    pub own: Duration,
    /// The processes, each with its children.
    pub trees: [Duration; N],
    /// All of the machine.
    pub machine: Duration,
    /// The time that passed.
    pub wall: Duration,
}

impl<const N: usize> Clocks<N> {
    /// Reads them all.
    #[must_use]
    pub fn read(pids: [u32; N]) -> Clocks<N> {
        Clocks {
            pids,
            own: own(std::process::id()),
            trees: pids.map(tree),
            machine: machine_busy(),
            at: Instant::now(),
        }
    }

    /// What was used since this reading.
    #[must_use]
    pub fn since(&self) -> Spent<N> {
        let now = Clocks::read(self.pids);
        let mut trees = now.trees;
        for (tree, before) in trees.iter_mut().zip(self.trees) {
            *tree = tree.saturating_sub(before);
        }
        Spent {
            own: now.own.saturating_sub(self.own),
            trees,
            machine: now.machine.saturating_sub(self.machine),
            wall: now.at.duration_since(self.at),
        }
    }
}

impl<const N: usize> Spent<N> {
    /// How many cores were busy with what is not `known`.
    #[must_use]
    pub fn others(&self, known: Duration) -> f64 {
        self.machine.saturating_sub(known).as_secs_f64() / self.wall.as_secs_f64()
    }
}

/// Restricts a running process, all its threads, to one CPU.
///
/// # Errors
/// There is no `taskset`, or it fails.
pub fn pin(pid: u32, cpu: u32) -> anyhow::Result<()> {
    let out = std::process::Command::new("taskset")
        .args(["-a", "-c", "-p", &cpu.to_string(), &pid.to_string()])
        .output()?;
    anyhow::ensure!(
        out.status.success() || !Path::new(&format!("/proc/{pid}")).exists(),
        "taskset: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(())
}

/// As [`pin`], for a process and its children.
///
/// # Errors
/// As [`pin`].
pub fn pin_tree(pid: u32, cpu: u32) -> anyhow::Result<()> {
    pin(pid, cpu)?;
    for child in children(pid) {
        pin(child, cpu)?;
    }
    Ok(())
}
