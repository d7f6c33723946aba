//! The short form: is the pipeline still fast enough beside the bare loop? Few records and rounds, a gate far below the target.
//!
//! Both what a record costs and the rate are gated at 0.6 of the target. The cost is compared by medians of all rounds: a busy
//! machine takes little from it. The rate is the best of up to five goes, each of so many rounds of both in turns: a busy machine takes
//! from one side's rounds more than from the other's, and unoptimised code, as CI builds it, comes to 0.45 where release has 0.7. More
//! goes are played only while something is missing, so a calm machine needs one.

use super::measure::{Bench, Round};
use super::peer::Peer;
use super::{LEAST_OF_BARE, Options, tuning};
use crate::report::median;
use crate::stack::Stack;
use anyhow::bail;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What of the target is gated at.
const SHARE: f64 = 0.6;
/// The gate: this share of the bare loop, by what a record costs and by rate.
const LEAST: f64 = LEAST_OF_BARE * SHARE;
/// So often it is tried before it is called too slow.
const GOES: usize = 5;

/// Whether shares of the bare loop, by rate and by what a record costs, are good enough.
fn reached(rate: f64, cost: f64) -> bool {
    rate >= LEAST && cost >= LEAST
}

/// Runs it.
///
/// # Errors
/// Something of the stack is missing or fails, a ledger is not what the workload says, or the product is too slow.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let stack = Stack::start().await?;
    let loaded = stack.preload(&options.workload).await?;
    let tried = BTreeMap::new();
    let bench = Bench {
        stack: &stack,
        tuning: tuning(options),
        totals: loaded.totals,
        tried: &tried,
        rows: OnceLock::new(),
    };
    bench.round(Peer::Bare).await?.show("warming up");
    let (mut product, mut bare) = (Vec::new(), Vec::new());
    let mut rate: f64 = 0.0;
    let mut said = String::new();
    for go in 1..=GOES {
        let from = product.len();
        for _ in 0..options.rounds.max(1) {
            product.push(one(&bench, Peer::Product).await?);
            bare.push(one(&bench, Peer::Bare).await?);
        }
        let of_go = best(product.get(from..)) / best(bare.get(from..));
        rate = rate.max(of_go);
        let cost = middle(&bare) / middle(&product);
        said = format!(
            "product to bare loop: {rate:.2} by rate, {cost:.2} by CPU; wanted are {LEAST:.2} by both"
        );
        println!("go {go} of at most {GOES}, {of_go:.2} by rate; {said}");
        if reached(rate, cost) {
            return Ok(());
        }
    }
    bail!("too slow: {said}")
}

async fn one(bench: &Bench<'_>, peer: Peer) -> anyhow::Result<Round> {
    let round = bench.round(peer).await?;
    round.show(peer.name());
    Ok(round)
}

fn best(rounds: Option<&[Round]>) -> f64 {
    let rates = rounds.unwrap_or_default().iter().map(|r| r.rate);
    rates.fold(0.0, f64::max)
}

fn middle(rounds: &[Round]) -> f64 {
    median(&rounds.iter().map(Round::cpu).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_the_rate_and_the_cost_are_wanted() {
        assert!(reached(0.45, 0.55));
        assert!(!reached(0.35, 0.55), "waits");
        assert!(!reached(0.76, 0.41), "costs too much");
        assert!(!reached(f64::NAN, f64::NAN));
    }

    #[test]
    fn a_go_is_as_good_as_its_best_round() {
        let round = |rate| Round {
            rate,
            ..Round::default()
        };
        assert_eq!(best(Some(&[round(3.0), round(5.0), round(4.0)])), 5.0);
        assert_eq!(best(None), 0.0);
    }
}
