//! What `soak` writes: the intervals, what is flat and what is not, the latencies of all.

use super::processes::ROLES;
use super::record::Shares;
use super::watch::{Interval, Latencies};
use super::{Options, Outcome};
use crate::machine;
use crate::report::{median, verdict};
use std::fmt::Write;

/// The last quarter's median to the second quarter's, at most.
const RISE: f64 = 1.1;
/// Door to ledger, p99 in milliseconds.
const LEDGER_MS: f64 = 250.0;

/// One interval for people who watch.
pub(super) fn line(n: usize, i: &Interval) -> String {
    let [answered, ledger, sent, _] = i.latencies;
    let held: Vec<String> = i
        .held
        .iter()
        .map(|h| format!("{:.0} MiB {:.0} files", h.mib, h.files))
        .collect();
    format!(
        "{}: {:.0}/s; answered {}; ledger {}; sent {}; lag {:.0} (most {:.0}); outbox {:.0} (most {:.0}); {}",
        n + 1,
        i.rate,
        ms(answered),
        ms(ledger),
        ms(sent),
        i.lag[0],
        i.lag[1],
        i.outbox[0],
        i.outbox[1],
        held.join(", "),
    )
}

fn ms(s: Shares) -> String {
    format!("{:.1} / {:.1} / {:.1}", s.p50, s.p99, s.p999)
}

/// What is judged as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Memory,
    Files,
    Lag,
    Latency,
}

impl Kind {
    const ALL: [(Kind, &'static str); 4] = [
        (Kind::Memory, "memory"),
        (Kind::Files, "open files"),
        (Kind::Lag, "lag and open messages"),
        (Kind::Latency, "latency"),
    ];
}

/// What must not grow: its name, its value in an interval, and by how much it may differ without having grown.
struct Flat {
    kind: Kind,
    name: String,
    of: Box<dyn Fn(&Interval) -> f64>,
    floor: f64,
}

fn flats(rate: f64) -> Vec<Flat> {
    let mut all: Vec<Flat> = Vec::new();
    for (i, role) in ROLES.iter().enumerate() {
        all.push(Flat {
            kind: Kind::Memory,
            name: format!("memory of {role}, MiB"),
            of: Box::new(move |x| x.held.get(i).map_or(0.0, |h| h.mib)),
            floor: 2.0,
        });
        all.push(Flat {
            kind: Kind::Files,
            name: format!("open files of {role}"),
            of: Box::new(move |x| x.held.get(i).map_or(0.0, |h| h.files)),
            floor: 2.0,
        });
    }
    all.push(Flat {
        kind: Kind::Lag,
        name: "lag, records".to_owned(),
        of: Box::new(|x| x.lag[0]),
        // A twentieth of a second of the load.
        floor: rate / 20.0,
    });
    all.push(Flat {
        kind: Kind::Lag,
        name: "open messages".to_owned(),
        of: Box::new(|x| x.outbox[0]),
        floor: rate / 20.0,
    });
    for (i, name) in ["door to answer", "door to ledger", "due to sent"]
        .iter()
        .enumerate()
    {
        all.push(Flat {
            kind: Kind::Latency,
            name: format!("{name}, p50 ms"),
            of: Box::new(move |x| x.latencies.get(i).map_or(0.0, |s| s.p50)),
            floor: 1.0,
        });
        all.push(Flat {
            kind: Kind::Latency,
            name: format!("{name}, p99 ms"),
            of: Box::new(move |x| x.latencies.get(i).map_or(0.0, |s| s.p99)),
            floor: 10.0,
        });
    }
    all
}

/// Medians of the second and of the last quarter.
fn quarters(intervals: &[Interval], of: &dyn Fn(&Interval) -> f64) -> (f64, f64) {
    let n = intervals.len();
    let part = |from: usize, to: usize| {
        let values: Vec<f64> = intervals
            .get(from..to.max(from + 1).min(n))
            .unwrap_or_default()
            .iter()
            .map(of)
            .collect();
        median(&values)
    };
    (part(n / 4, n / 2), part(n - (n / 4).max(1).min(n), n))
}

fn is_flat(second: f64, last: f64, floor: f64) -> bool {
    last <= second * RISE || last - second <= floor
}

pub(super) fn write(
    options: &Options,
    outcome: &Outcome,
    latencies: &Latencies,
    kafka: &str,
) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    writeln!(
        out,
        "## Soak: the whole system, {:.0} minutes at {}\n\n{}\n",
        outcome.seconds / 60.0,
        match outcome.maximum {
            Some(_) => "half of its maximum",
            None => "a given rate",
        },
        machine::describe(Some(kafka), options.seed)
    )?;
    let maximum = match outcome.maximum {
        Some(maximum) => format!(
            "Measured maximum: **{maximum:.0}** requests/s (all that {} connections got answered in {} s, after {} s to warm up,\nuntil the last was in the ledger and its messages were sent). ",
            options.connections, options.calibrate, options.warm_up
        ),
        None => String::new(),
    };
    writeln!(
        out,
        "{maximum}Load: **{:.0}** requests/s, evenly: 80 % `GET /c/…` (each a visit and its click), 10 % `POST /e`, 10 % `GET /pb` (each a\nconversion: a webhook and an event to Meta's stand-in). Doors, attribution and delivery are a process each; Kafka, PostgreSQL\n(durable), receivers and the load itself share the same cores. {} partitions.\n\n*Answered*: from when a request was due to be sent to its answer. *Ledger*: to when another connection saw its committed row,\nlooked for every 3 ms (about {:.0} requests a second are followed). *Sent*: from a message's `due_at` to its receiver's answer, by the\nsend log, one message of {}. Latencies are p50 / p99 / p99.9 in milliseconds; lag is accepted and not yet consumed, median (most).\n",
        outcome.rate,
        options.partitions,
        options.probes,
        super::scenery::SAMPLED,
    )?;
    writeln!(
        out,
        "| | requests/s | answered | ledger | sent | lag | open messages | MiB ({}) | files | database |\n|---|---|---|---|---|---|---|---|---|---|",
        ROLES.join(", ")
    )?;
    for (n, i) in outcome.intervals.iter().enumerate() {
        let [answered, ledger, sent, _] = i.latencies;
        let held = |of: fn(&super::processes::Held) -> f64| {
            i.held
                .iter()
                .map(|h| format!("{:.0}", of(h)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        writeln!(
            out,
            "| {} | {:.0} | {} | {} | {} | {:.0} ({:.0}) | {:.0} ({:.0}) | {} | {} | {:.2} GB |",
            n + 1,
            i.rate,
            ms(answered),
            ms(ledger),
            ms(sent),
            i.lag[0],
            i.lag[1],
            i.outbox[0],
            i.outbox[1],
            held(|h| h.mib),
            held(|h| h.files),
            i.stored / 1e9,
        )?;
    }
    writeln!(
        out,
        "\n| median of | second quarter | last quarter | flat |\n|---|---|---|---|"
    )?;
    let mut grown = Vec::new();
    for flat in flats(outcome.rate) {
        let (second, last) = quarters(&outcome.intervals, &flat.of);
        let is = is_flat(second, last, flat.floor);
        if !is {
            grown.push(flat.kind);
        }
        writeln!(
            out,
            "| {} | {second:.1} | {last:.1} | {} |",
            flat.name,
            if is { "yes" } else { "**no**" }
        )?;
    }
    let [answered, ledger, sent, through] = latencies.each().map(|l| l.all());
    let kinds =
        Kind::ALL.map(|(kind, name)| format!("{name}: {}", verdict(!grown.contains(&kind))));
    let worst = outcome
        .intervals
        .iter()
        .map(|i| i.latencies[1].p99)
        .fold(0.0, f64::max);
    writeln!(
        out,
        "\nFlat is what has in the last quarter's median no more than {RISE:.1} × the second quarter's, or lies above it by less than 2 MiB, 2\nfiles, a twentieth of a second's records, 1 ms at p50, 10 ms at p99. Wanted of every line: {}.\n\nDoor to ledger, p99: **{:.1} ms** (wanted < {LEDGER_MS:.0}: {}); of the worst interval {worst:.1} ms. Refused: **{}** (wanted none: {}).\n",
        kinds.join("; "),
        ledger.p99,
        verdict(ledger.p99 < LEDGER_MS),
        outcome.refused,
        verdict(outcome.refused == 0),
    )?;
    writeln!(
        out,
        "| all of the run | p50 | p99 | p99.9 | measured |\n|---|---|---|---|---|"
    )?;
    for (name, s) in [
        ("door to answer", answered),
        ("door to ledger", ledger),
        ("due to sent", sent),
        ("postback accepted to webhook received", through),
    ] {
        writeln!(
            out,
            "| {name} | {:.1} ms | {:.1} ms | {:.1} ms | {} |",
            s.p50, s.p99, s.p999, s.n
        )?;
    }
    let [doors, attribution, delivery, kafka, postgres, own] = outcome.cpu;
    writeln!(
        out,
        "\n{} requests accepted ({} refused; all that were followed were seen in the ledger, but for {}), {} webhooks and {} events received, each once; accepted,\nconsumed and applied agree, every postback is one conversion, and `millrace verify --log` finds nothing. CPU-µs a request: doors {doors:.1}, attribution\n{attribution:.1}, delivery {delivery:.1}, Kafka {kafka:.1}, PostgreSQL {postgres:.1}, load and receivers {own:.1}; others used {:.2} cores.",
        outcome.accepted,
        outcome.refused,
        outcome.lost,
        outcome.webhooks,
        outcome.events,
        outcome.others,
    )?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::processes::Held;

    fn interval(mib: f64) -> Interval {
        Interval {
            rate: 100.0,
            latencies: [Shares::default(); 4],
            lag: [0.0; 2],
            outbox: [0.0; 2],
            held: [Held { mib, files: 10.0 }; 3],
            stored: 0.0,
        }
    }

    #[test]
    fn the_last_quarter_is_held_against_the_second() {
        let intervals: Vec<Interval> = [1.0, 2.0, 100.0, 102.0, 104.0, 106.0, 150.0, 152.0]
            .map(interval)
            .to_vec();
        let of = |i: &Interval| i.held[0].mib;
        assert_eq!(quarters(&intervals, &of), (101.0, 151.0));
        assert_eq!(quarters(&intervals[..1], &of), (1.0, 1.0));
        assert!(!is_flat(101.0, 151.0, 2.0));
        assert!(is_flat(101.0, 110.0, 2.0), "within a tenth");
        assert!(is_flat(3.0, 4.5, 2.0), "below the floor");
    }
}
