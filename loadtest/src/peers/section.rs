//! The section of BENCHMARKS.md: guarantee, settings file, all rounds and CPU by process of each contender, and the targets.

use super::measure::{Bench, Round};
use super::peer::{Guarantee, Peer};
use super::{LEAST_OF_BARE, MOST_OF_BARE, Options, Rounds, TIMES_BEST};
use crate::report::{median, verdict};
use crate::{machine, stack};
use std::fmt::Write;

fn middle(rounds: &[Round], f: impl Fn(&Round) -> f64) -> f64 {
    median(&rounds.iter().map(f).collect::<Vec<_>>())
}

fn best(rounds: &[Round]) -> f64 {
    rounds.iter().map(|r| r.rate).fold(0.0, f64::max)
}

/// The round whose rate is the middle one: its processes' CPU is shown, so that the parts sum up to the whole.
fn typical(rounds: &[Round]) -> Option<&Round> {
    let rate = middle(rounds, |r| r.rate);
    let off = |r: &&Round| (r.rate - rate).abs();
    rounds.iter().min_by(|a, b| off(a).total_cmp(&off(b)))
}

/// Writes it.
///
/// # Errors
/// Formatting fails, which it does not.
pub fn write(
    options: &Options,
    bench: &Bench<'_>,
    rounds: &Rounds,
    through: &Rounds,
) -> anyhow::Result<String> {
    let mut out = String::new();
    let totals = &bench.totals;
    writeln!(out, "## The product beside its peers, on the same work\n")?;
    writeln!(
        out,
        "{}\n",
        machine::describe(Some(bench.stack.kafka_version()), options.workload.seed)
    )?;
    writeln!(
        out,
        "Workload W: {} records ({:.0} MB) preloaded in two topics of {} partitions; every contender decodes them and ends with each
row committed once in the same PostgreSQL ({}); rows and the sum of payouts are checked
against the generator's after each round. {} rounds in turns, after one of the bare loop to warm up. CPU is that of every process
of the run since its start, the JVMs' and Pythons' start-up included ({} records carry it); rates count from the first progress
seen on. Product and bare loop: {} records a transaction, {} arbiters or consumers; the peers' settings stand in the files named.\n",
        totals.records,
        totals.bytes as f64 / 1e6,
        bench.tuning.partitions,
        stack::POSTGRES_SETTINGS.join(", "),
        options.rounds.max(1),
        totals.records,
        bench.tuning.batch,
        bench.tuning.arbiters,
    )?;
    table(&mut out, rounds)?;
    out.push('\n');
    for (peer, of) in rounds {
        let settings = peer.settings().map_or_else(String::new, |file| {
            format!(", settings in [{file}]({file})")
        });
        let tried = bench
            .tried
            .get(peer)
            .map_or_else(String::new, |t| format!(", here with {t}"));
        writeln!(
            out,
            "- **{}**: {}{settings}{tried}. All rounds, records/s: {}.",
            peer.name(),
            peer.promise(),
            list(of)
        )?;
    }
    targets(&mut out, rounds)?;
    if !through.is_empty() {
        writeln!(
            out,
            "\nTopic to topic, the same work with a ledger topic at its end and no PostgreSQL (no target; the product has no such form: its
ledger is the store). Bare loop: transactions of the producer, the offsets in them; Kafka Streams: `exactly_once_v2`; arroyo:
at least once. In turns; after each round the topic's rows are counted by table and held against what the generator made.\n"
        )?;
        table(&mut out, through)?;
        out.push('\n');
        for (peer, of) in through {
            writeln!(
                out,
                "- {}: all rounds, records/s: {}.",
                peer.name(),
                list(of)
            )?;
        }
    }
    let others = rounds
        .values()
        .chain(through.values())
        .flatten()
        .map(|r| r.others)
        .fold(0.0, f64::max);
    writeln!(
        out,
        "\nOthers used up to {others:.2} of the {} cores meanwhile.",
        std::thread::available_parallelism().map_or(0, usize::from)
    )?;
    Ok(out)
}

fn list(rounds: &[Round]) -> String {
    rounds
        .iter()
        .map(|r| format!("{:.0}", r.rate))
        .collect::<Vec<_>>()
        .join(", ")
}

fn table(out: &mut String, rounds: &Rounds) -> std::fmt::Result {
    let bare = rounds.get(&Peer::Bare).map(|r| middle(r, |r| r.rate));
    let cpu = rounds.get(&Peer::Bare).map(|r| middle(r, Round::cpu));
    writeln!(
        out,
        "| | guarantee | records/s, median | best | of the bare loop | CPU-ns a record | of the bare loop's | by process | before its first progress | peak memory |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
    for (peer, of) in rounds {
        let rate = middle(of, |r| r.rate);
        let ns = middle(of, Round::cpu);
        let share =
            |v: f64, of: Option<f64>| of.map_or("-".to_owned(), |of| format!("{:.2}", v / of));
        writeln!(
            out,
            "| {} | {} | {rate:.0} | {:.0} | {} | {ns:.0} | {} | {} | {:.0} | {:.0} MiB |",
            peer.name(),
            peer.guarantee().words(),
            best(of),
            share(rate, bare),
            share(ns, cpu),
            typical(of).map_or_else(String::new, Round::processes),
            middle(of, |r| r.before),
            middle(of, |r| r.peak_mib),
        )?;
    }
    Ok(())
}

fn targets(out: &mut String, rounds: &Rounds) -> std::fmt::Result {
    let Some(product) = rounds.get(&Peer::Product) else {
        return Ok(());
    };
    let rate = middle(product, |r| r.rate);
    out.push('\n');
    let bare = rounds.get(&Peer::Bare).map(|r| middle(r, |r| r.rate));
    if let Some(bare) = bare {
        writeln!(
            out,
            "Product to bare loop: **{:.2}** (wanted ≥ {LEAST_OF_BARE:.2}: {}).",
            rate / bare,
            verdict(rate / bare >= LEAST_OF_BARE),
        )?;
    }
    let of = |guarantee| {
        rounds
            .iter()
            .filter(move |(p, _)| **p != Peer::Product && p.guarantee() == guarantee)
            .map(|(p, r)| (best(r), *p))
            .max_by(|a, b| a.0.total_cmp(&b.0))
    };
    if let Some((best, peer)) = of(Guarantee::ExactlyOnce) {
        let most = bare.map_or(f64::INFINITY, |b| b * MOST_OF_BARE);
        let wanted = (best * TIMES_BEST).min(most);
        writeln!(
            out,
            "Product to the best peer with the same guarantee, {} at its best round: **{:.2}** (wanted ≥ {:.2}{}: {}).",
            peer.name(),
            rate / best,
            wanted / best,
            if wanted < best * TIMES_BEST {
                ", which is 0.9 of the bare loop"
            } else {
                ""
            },
            verdict(rate >= wanted),
        )?;
    }
    if let Some((best, peer)) = of(Guarantee::AtLeastOnce) {
        writeln!(
            out,
            "Product to the best peer that promises at-least-once, {} at its best round: {:.2} (no target; it joins nothing).",
            peer.name(),
            rate / best,
        )?;
    }
    Ok(())
}
