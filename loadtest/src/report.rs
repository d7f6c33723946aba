//! BENCHMARKS.md: one section a command, replaced whole when the command runs again.

use anyhow::Context;
use std::path::PathBuf;

const HEAD: &str = "# Benchmarks\n\nEach section is written by the command that it names, from one run: ratios compare what ran side by side on the same\nmachine, in turns. Absolute figures are that machine's. `cargo run --release -p loadtest -- --help` lists the commands.\n";

/// Where sections go.
#[must_use]
pub fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("BENCHMARKS.md")
}

/// Puts a section into a text: in place of the one of that name, else at the end.
#[must_use]
pub fn with_section(text: &str, name: &str, body: &str) -> String {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let section = format!("{open}{}\n{close}", body.trim_end());
    let text = if text.is_empty() { HEAD } else { text };
    match (text.find(&open), text.find(&close)) {
        (Some(from), Some(to)) if from < to => {
            let tail = text.get(to + close.len()..).unwrap_or_default();
            format!("{}{section}{tail}", text.get(..from).unwrap_or_default())
        }
        _ => format!("{}\n\n{section}", text.trim_end()),
    }
}

/// Prints a section and, unless it is a short run, writes it to the file.
///
/// # Errors
/// The file cannot be written.
pub fn publish(name: &str, body: &str, write: bool) -> anyhow::Result<()> {
    println!("\n{body}");
    if write {
        let path = file();
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(&path, with_section(&old, name, body))
            .with_context(|| format!("{}", path.display()))?;
        println!("(written to {})", path.display());
    }
    Ok(())
}

/// How FAULTS.md begins.
pub const FAULTS_HEAD: &str = "# Faults\n\nWhat was done to Millrace, and what became of it. The command stands in each section: those of fault runs are appended, one an\ninvocation, from oldest to newest; those of fuzzing and of hostile requests stand between marks, and are replaced by the next run.\n\n`cargo run -p loadtest -- faults --help` says what can be asked for, `--kind list` which kinds of faults there are. A run is a\ndeployment of its own: doors, attribution and delivery as processes, senders that number what they send, receivers that count, and\nfor some kinds shards that stream frames and people who are told, over one Apache Kafka of the invocation. *Struck* counts faults\nthat came while there was work left. A fault that came too late is tried again, up to three times: `--limit` is that of a try, a\nrun's time that of all its tries. With a safeguard switched off, a loss or a double must be reported. Clocks of doors, attribution\nand delivery step by up to 50 minutes, but delivery's is right again before attribution's steps: what a sender ahead of Meta's clock\nlets go too early, Meta refuses for good (README, What delivery promises).\n";

/// As [`publish`], into FAULTS.md.
///
/// # Errors
/// The file cannot be written.
pub fn publish_faults(name: &str, body: &str, write: bool) -> anyhow::Result<()> {
    println!("\n{body}");
    if write {
        let path = write_faults(name, body)?;
        println!("(written to {})", path.display());
    }
    Ok(())
}

/// Puts a section into FAULTS.md without a word; answers where that is.
///
/// # Errors
/// The file cannot be written.
pub fn write_faults(name: &str, body: &str) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("FAULTS.md");
    let old = std::fs::read_to_string(&path).unwrap_or_else(|_| FAULTS_HEAD.to_owned());
    std::fs::write(&path, with_section(&old, name, body))
        .with_context(|| format!("{}", path.display()))?;
    Ok(path)
}

/// What FAULTS.md says under this name; nothing where it has no such section.
#[must_use]
pub fn faults_section(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("FAULTS.md");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    section_of(&text, name).unwrap_or_default().to_owned()
}

/// The section of this name in a text.
fn section_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let (_, rest) = text.split_once(&open)?;
    rest.split_once(&close).map(|(section, _)| section)
}

/// The middle one, or the mean of the two in the middle.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
    match n {
        0 => 0.0,
        n if n % 2 == 1 => at(n / 2),
        n => f64::midpoint(at(n / 2 - 1), at(n / 2)),
    }
}

/// `reached` or `missed`, for a table.
#[must_use]
pub fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "**missed**" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_the_others_stay() {
        let one = with_section("", "a", "first");
        let two = with_section(&one, "b", "second");
        let three = with_section(&two, "a", "third");
        assert!(three.contains("third") && three.contains("second") && !three.contains("first"));
        assert!(three.find("third") < three.find("second"));
        assert!(three.starts_with("# Benchmarks"));
        assert_eq!(section_of(&three, "a"), Some("third\n"));
        assert_eq!(section_of(&three, "c"), None);
    }

    #[test]
    fn faults_begin_as_they_are_told_to() {
        assert!(include_str!("../FAULTS.md").starts_with(FAULTS_HEAD));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
