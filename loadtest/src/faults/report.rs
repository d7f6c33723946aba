//! What is told of runs: a line each while they go on, a section of FAULTS.md for all, the failures whole.

use super::WHOLE;
use super::deal::Deck;
use super::hits::{self, Hits, Point};
use super::run::{LONGEST, Outcome};
use super::sabotage::Proof;
use crate::machine;
use crate::report::FAULTS_HEAD;
use anyhow::Context as _;
use comfy_table::{Table, presets};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Findings of one failure that are shown.
const SHOWN: usize = 30;
/// Findings of one failure that are written to FAULTS.md, each cut to so many characters.
const KEPT: usize = 5;
/// See [`KEPT`].
const KEPT_CHARS: usize = 300;

fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

/// One line. The time is that of all tries together.
#[must_use]
pub fn line(o: &Outcome) -> String {
    let again = if o.tries.len() > 1 {
        let each: Vec<String> = o.tries.iter().map(|t| seconds(*t)).collect();
        format!(", {} tries of {} s", each.len(), each.join(" + "))
    } else {
        String::new()
    };
    format!(
        "run {:>3}  {:<48} struck {}  {:>4} s  {}  ({} listed, {} through doors, {} messages{again})",
        o.run,
        o.card,
        o.struck,
        seconds(o.took()),
        o.verdict(),
        o.counted.listed,
        o.counted.through_doors,
        o.counted.messages,
    )
}

/// Hits of all runs.
#[must_use]
pub fn all_hits(outcomes: &[Outcome]) -> Hits {
    let mut all = Hits::new();
    for outcome in outcomes {
        hits::add(&mut all, &outcome.hits);
    }
    all
}

/// Failpoints that some kind of a deck arms, and in whom.
fn armed(deck: &Deck) -> Vec<Point> {
    let mut all: Vec<Point> = deck
        .kinds()
        .flat_map(|kind| {
            kind.deals()
                .iter()
                .flat_map(|v| (kind.failpoints)(v))
                .collect::<Vec<_>>()
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What so many runs must have hit, and have not.
#[must_use]
pub fn problems(deck: &Deck, outcomes: &[Outcome]) -> Vec<String> {
    let mut problems = Vec::new();
    if (outcomes.len() as u64) < WHOLE {
        return problems;
    }
    let hits = all_hits(outcomes);
    for point in armed(deck) {
        if hits::of(&hits, point) == 0 {
            let (role, name) = point;
            problems.push(format!("failpoint {name} of {role} was never hit"));
        }
    }
    for kind in deck.kinds() {
        let struck: u32 = outcomes
            .iter()
            .filter(|o| o.kind == kind.name)
            .map(|o| o.struck)
            .sum();
        if struck == 0 {
            problems.push(format!("kind {} never struck", kind.name));
        }
    }
    problems
}

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::ASCII_MARKDOWN)
        .set_header(head.to_vec());
    table
}

/// The section of an invocation.
#[must_use]
pub fn text(
    deck: &Deck,
    outcomes: &[Outcome],
    problems: &[String],
    seed: u64,
    asked: u64,
) -> String {
    let mut by_kind: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for kind in deck.kinds() {
        by_kind.insert(kind.name, Vec::new());
    }
    for outcome in outcomes {
        by_kind.entry(outcome.kind).or_default().push(outcome);
    }
    let mut kinds = table(&[
        "kind",
        "runs",
        "struck",
        "longest, s",
        "longest try, s",
        "lost",
        "doubled",
        "failed runs",
    ]);
    for (name, of) in &by_kind {
        let failed: Vec<String> = of
            .iter()
            .filter(|o| !o.balanced())
            .map(|o| o.run.to_string())
            .collect();
        let longest = of.iter().map(|o| o.took()).max().unwrap_or_default();
        let tries = of.iter().flat_map(|o| o.tries.iter().copied());
        let longest_try = tries.max().unwrap_or_default();
        kinds.add_row(vec![
            (*name).to_owned(),
            of.len().to_string(),
            of.iter().map(|o| o.struck).sum::<u32>().to_string(),
            seconds(longest),
            seconds(longest_try),
            of.iter().map(|o| o.lost()).sum::<usize>().to_string(),
            of.iter().map(|o| o.doubled()).sum::<usize>().to_string(),
            failed.join(" "),
        ]);
    }
    let mut points = table(&["role", "failpoint", "hits"]);
    let hits = all_hits(outcomes);
    for point in armed(deck) {
        let (role, name) = point;
        points.add_row(vec![
            role.to_owned(),
            name.to_owned(),
            hits::of(&hits, point).to_string(),
        ]);
    }
    let records: usize = outcomes
        .iter()
        .map(|o| o.counted.listed + o.counted.through_doors)
        .sum();
    let messages: i64 = outcomes.iter().map(|o| o.counted.messages).sum();
    let (lost, doubled): (usize, usize) = outcomes
        .iter()
        .fold((0, 0), |(l, d), o| (l + o.lost(), d + o.doubled()));
    let mut failures: Vec<String> = outcomes
        .iter()
        .filter(|o| !o.balanced())
        .map(|o| failure(o, seed))
        .collect();
    failures.extend(problems.iter().map(|p| format!("- {p}")));
    let failures = if failures.is_empty() {
        String::new()
    } else {
        format!("\nFailures:\n\n{}\n", failures.join("\n"))
    };
    format!(
        "## {asked} runs, seed {seed}\n\n{}\n\n{records} records, {messages} messages. {}\n\n{points}\n\n{kinds}\n{failures}\n\
         **runs {} lost {lost} doubled {doubled}**\n",
        machine::describe(Some(&kafka_version()), seed),
        lengths(outcomes),
        outcomes.len(),
    )
}

/// How long the longest run took, and which took longer than a run may, whatever the limit was.
fn lengths(outcomes: &[Outcome]) -> String {
    let longest = outcomes.iter().map(Outcome::took).max().unwrap_or_default();
    let over = outcomes.iter().filter(|o| o.took() > LONGEST);
    let over: Vec<String> = over
        .map(|o| {
            let tries: Vec<String> = o.tries.iter().map(|t| seconds(*t)).collect();
            format!("run {}, {}: {} s", o.run, o.card, tries.join(" + "))
        })
        .collect();
    let over = if over.is_empty() {
        "none".to_owned()
    } else {
        over.join("; ")
    };
    format!(
        "The longest run took {} s, all its tries together. Longer than {} s: {over}.",
        seconds(longest),
        LONGEST.as_secs(),
    )
}

/// A failed run as it stands in FAULTS.md: its seed, its step, and the first of what was found.
fn failure(o: &Outcome, seed: u64) -> String {
    let mut lines = vec![format!(
        "- seed {seed}, run {}, {}: {}",
        o.run,
        o.card,
        o.verdict()
    )];
    let found = o.counted.findings.iter().take(KEPT);
    lines.extend(found.map(|f| {
        let words = f.what.lines().next().unwrap_or_default();
        let words: String = words.chars().take(KEPT_CHARS).collect();
        format!("  - {:?}: {words}", f.kind)
    }));
    let more = o.counted.findings.len().saturating_sub(KEPT);
    if more > 0 {
        lines.push(format!("  - and {more} more"));
    }
    lines.join("\n")
}

/// The section of runs with safeguards switched off.
#[must_use]
pub fn sabotages(proofs: &[Proof], seed: u64) -> String {
    let mut rows = table(&[
        "safeguard switched off",
        "runs",
        "lost",
        "doubled",
        "noticed",
    ]);
    for proof in proofs {
        rows.add_row(vec![
            proof.safeguard.to_owned(),
            proof.runs.to_string(),
            proof.lost.to_string(),
            proof.doubled.to_string(),
            if proof.noticed() { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    format!(
        "## Safeguards switched off, seed {seed}\n\n{}\n\n{rows}\n",
        machine::describe(Some(&kafka_version()), seed),
    )
}

fn kafka_version() -> String {
    let lib = std::env::var_os("MILLRACE_KAFKA_LIB").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/kafka/lib"),
        PathBuf::from,
    );
    let named = std::fs::read_dir(lib)
        .into_iter()
        .flatten()
        .flatten()
        .find_map(|e| {
            let name = e.file_name().into_string().ok()?;
            let version = name
                .strip_prefix("kafka_")?
                .strip_suffix(".jar")?
                .split_once('-')?
                .1;
            Some(version.to_owned())
        });
    named.unwrap_or_else(|| "unknown".to_owned())
}

/// Appends a section to FAULTS.md.
///
/// # Errors
/// The file cannot be written.
pub fn append(text: &str) -> anyhow::Result<()> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("FAULTS.md");
    let head = if path.exists() { "" } else { FAULTS_HEAD };
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("{}", path.display()))?;
    write!(file, "{head}\n{text}")?;
    Ok(())
}

/// Tells a failure whole.
pub fn tell(outcome: &Outcome, seed: u64, again: &str) {
    println!(
        "\nseed {seed}, run {}, {}: {}\n  {again}",
        outcome.run,
        outcome.card,
        outcome.verdict()
    );
    if let Some(failed) = &outcome.failed {
        println!("  {failed}");
    }
    for finding in outcome.counted.findings.iter().take(SHOWN) {
        println!("  {:?}: {}", finding.kind, finding.what);
    }
    let more = outcome.counted.findings.len().saturating_sub(SHOWN);
    if more > 0 {
        println!("  and {more} more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_longer_than_they_may_be_are_named_with_their_tries() {
        let run = |run, tries: &[u64]| Outcome {
            run,
            card: "poison".to_owned(),
            tries: tries.iter().map(|s| Duration::from_secs(*s)).collect(),
            ..Outcome::default()
        };
        let said = lengths(&[run(1, &[40]), run(2, &[12])]);
        let wanted = "The longest run took 40.0 s, all its tries together. Longer than 40 s: none.";
        assert_eq!(said, wanted);
        let said = lengths(&[run(1, &[40]), run(2, &[41]), run(3, &[20, 25])]);
        let over = "Longer than 40 s: run 2, poison: 41.0 s; run 3, poison: 20.0 + 25.0 s.";
        assert!(said.ends_with(over), "{said}");
    }
}
