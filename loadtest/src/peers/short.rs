//! The short form: is the pipeline still fast enough beside the bare loop? Few records and rounds, a gate far below the target.
//!
//! It gates the product's rate, or what it costs where the rate is lower: a busy machine takes from one side's rounds more than
//! from the other's, and unoptimised code, as CI builds it, needs more of the machine, but what was used for a record it takes
//! nothing from. A product that waits instead of working costs nothing, so the rate has a floor of its own at half the gate. Best
//! rounds are compared, and where they are too slow the same number is played once more before it is said.

use super::measure::{Bench, Round};
use super::peer::Peer;
use super::{LEAST_OF_BARE, Options, tuning};
use crate::stack::Stack;
use anyhow::ensure;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What of the target is gated at.
const SHARE: f64 = 0.6;
/// The gate: a share of the bare loop's rate.
const LEAST: f64 = LEAST_OF_BARE * SHARE;
/// The least rate, whatever the cost.
const FLOOR: f64 = LEAST / 2.0;

/// Whether shares of the bare loop, by rate and by what a record costs, are good enough.
fn reached(rate: f64, cost: f64) -> bool {
    rate.max(cost) >= LEAST && rate >= FLOOR
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
    for more in [true, false] {
        for _ in 0..options.rounds.max(1) {
            product.push(one(&bench, Peer::Product).await?);
            bare.push(one(&bench, Peer::Bare).await?);
        }
        let rate = best(&product, |r| r.rate) / best(&bare, |r| r.rate);
        let cost = best(&bare, |r| -r.cpu()) / best(&product, |r| -r.cpu());
        let said = format!(
            "product to bare loop: {rate:.2} by rate, {cost:.2} by CPU; wanted are {LEAST:.2} by one of them, and {FLOOR:.2} by rate"
        );
        println!("{said}");
        if reached(rate, cost) {
            return Ok(());
        }
        ensure!(more, "too slow: {said}");
    }
    Ok(())
}

async fn one(bench: &Bench<'_>, peer: Peer) -> anyhow::Result<Round> {
    let round = bench.round(peer).await?;
    round.show(peer.name());
    Ok(round)
}

fn best(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    rounds.iter().map(of).fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_product_is_not_let_through_and_a_busy_machine_is_no_slow_product() {
        assert!(reached(0.76, 0.55));
        assert!(reached(0.35, 0.55), "a busy machine");
        assert!(!reached(0.41, 0.41), "costs too much");
        assert!(!reached(0.20, 0.60), "waits");
        assert!(!reached(f64::NAN, f64::NAN));
    }
}
