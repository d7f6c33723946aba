//! What a figure was measured on: machine, versions, date.

use std::process::Command;
use std::sync::OnceLock;

fn first_line(command: &mut Command) -> String {
    command
        .output()
        .ok()
        .filter(|o| o.status.success())
        .and_then(|o| {
            let text = String::from_utf8_lossy(&o.stdout).into_owned();
            text.lines().next().map(str::to_owned)
        })
        .unwrap_or_else(|| "unknown".to_owned())
}

fn proc_field(file: &str, name: &str) -> String {
    std::fs::read_to_string(file)
        .unwrap_or_default()
        .lines()
        .find_map(|l| {
            l.strip_prefix(name)?
                .split_once(':')
                .map(|(_, v)| v.trim().to_owned())
        })
        .unwrap_or_else(|| "unknown".to_owned())
}

/// The commit that is checked out, as it was when first asked for; `-dirty` behind it where files differ from it, those that
/// measurements write aside, and `-given` where the program is one that `MILLRACE_BIN` names, of sources that nobody knows here.
pub fn commit() -> &'static str {
    static COMMIT: OnceLock<String> = OnceLock::new();
    COMMIT.get_or_init(|| {
        let head = first_line(Command::new("git").args(["rev-parse", "--short", "HEAD"]));
        let changed = Command::new("git")
            .args(["status", "--porcelain", "--", ":(top)"])
            .arg(":(top,exclude)loadtest/*.md")
            .output();
        let named = match changed {
            Ok(out) if out.status.success() && out.stdout.is_empty() => head,
            Ok(out) if out.status.success() => format!("{head}-dirty"),
            // No repository: then there is no commit either.
            _ => head,
        };
        match std::env::var_os("MILLRACE_BIN") {
            Some(_) => format!("{named}-given"),
            None => named,
        }
    })
}

/// One paragraph for a report; `seed` is the generator's. None: what is measured is made by counting, and the report says so.
#[must_use]
pub fn describe(kafka: Option<&str>, seed: impl Into<Option<u64>>) -> String {
    // All of the machine's, however this process is pinned.
    let cores = std::fs::read_to_string("/proc/cpuinfo")
        .unwrap_or_default()
        .lines()
        .filter(|l| l.starts_with("processor"))
        .count();
    let memory = proc_field("/proc/meminfo", "MemTotal")
        .split_whitespace()
        .next()
        .and_then(|t| t.parse::<u64>().ok())
        .map_or(0, |kib| kib >> 20);
    let postgres = first_line(
        Command::new(millrace_tests::postgres::binaries().join("postgres")).arg("--version"),
    );
    let mut versions = vec![
        format!("commit {}", commit()),
        first_line(Command::new("rustc").arg("--version")),
        postgres,
    ];
    if let Some(kafka) = kafka {
        let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
        versions.push(format!("Apache Kafka {kafka}"));
        versions.push(format!("librdkafka {librdkafka}"));
    }
    versions.push(match seed.into() {
        Some(seed) => format!("seed {seed}"),
        None => "nothing random".to_owned(),
    });
    format!(
        "{} · {cores} × {} · {memory} GiB · Linux {} · {} · `{}`",
        jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC"),
        proc_field("/proc/cpuinfo", "model name"),
        first_line(Command::new("uname").arg("-r")),
        versions.join(" · "),
        command_line(),
    )
}

/// The command that was given, as one would type it.
#[must_use]
pub fn command_line() -> String {
    let profile = if cfg!(debug_assertions) {
        ""
    } else {
        " --release"
    };
    let args: Vec<String> = std::env::args().skip(1).collect();
    format!("cargo run{profile} -p loadtest -- {}", args.join(" "))
}
