//! What `rebalance` writes.

use super::{Event, Options, Pause};
use crate::machine;
use crate::report::median;
use std::fmt::Write;

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// One event, for people who watch.
pub(super) fn line(p: &Pause) -> String {
    format!(
        "{}: {}: settled after {:.1} s; {} moved, still for {:.0} ms (most {:.0}); {} untouched, {:.0} ms (most {:.0}); usual {:.0} ms",
        p.protocol,
        p.event.name(),
        p.settled,
        p.moved.len(),
        median(&p.moved),
        most(&p.moved),
        p.untouched.len(),
        median(&p.untouched),
        most(&p.untouched),
        most(&p.usual),
    )
}

fn protocol(name: &str) -> &str {
    match name {
        "consumer" => "KIP-848",
        other => other,
    }
}

pub(super) fn write(
    options: &Options,
    pauses: &[Pause],
    kafka: &str,
) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    writeln!(
        out,
        "## Rebalance: how long partitions stand still\n\n{}\n",
        machine::describe(Some(kafka), options.seed)
    )?;
    writeln!(
        out,
        "{} records/s into {} partitions while members of the group come and go, {} round{} of each protocol; two, then three, two, one\nprocesses on this machine. A standstill is the longest time between two commits of a partition that touches the time from the\nevent until the group has settled (shared out, and every partition has committed again), by the commit times that PostgreSQL\nkeeps. *Usual*: the longest in the {} s before. Sessions last 6 s (Kafka's default under KIP-848 is 45 s, and a killed member's\npartitions stand still for that long). In milliseconds, median (most).\n",
        options.rate,
        options.partitions,
        options.rounds.max(1),
        if options.rounds > 1 { "s" } else { "" },
        super::QUIET.as_secs(),
    )?;
    writeln!(
        out,
        "| protocol | event | moved partitions | untouched partitions | usual | settled after |\n|---|---|---|---|---|---|"
    )?;
    for name in &options.protocols {
        for event in [Event::Joins, Event::Leaves, Event::Killed] {
            let these: Vec<&Pause> = pauses
                .iter()
                .filter(|p| p.protocol == *name && p.event == event)
                .collect();
            let all = |of: fn(&Pause) -> &Vec<f64>| -> Vec<f64> {
                these.iter().flat_map(|p| of(p).iter().copied()).collect()
            };
            let shown = |values: &[f64]| match values.len() {
                0 => "none".to_owned(),
                n => format!("{:.0} ({:.0}), {n} of them", median(values), most(values)),
            };
            let settled: Vec<f64> = these.iter().map(|p| p.settled).collect();
            writeln!(
                out,
                "| {} | {} | {} | {} | {:.0} ({:.0}) | {:.1} s |",
                protocol(name),
                event.name(),
                shown(&all(|p| &p.moved)),
                shown(&all(|p| &p.untouched)),
                median(&all(|p| &p.usual)),
                most(&all(|p| &p.usual)),
                median(&settled),
            )?;
        }
    }
    writeln!(
        out,
        "\nNothing was lost or doubled: in every round the records sent, the records consumed and the sum of the outcomes agree; visits,\nclicks, conversions and the sum of payouts are what the generator made, each once; and `millrace verify --log` finds nothing."
    )?;
    Ok(out)
}
