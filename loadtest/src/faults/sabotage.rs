//! The proof of the proof: with a safeguard switched off, runs in which it matters must end in a loss or a double.

use super::deal::Card;
use super::kinds::{self, Form};
use super::report;
use super::run;
use super::scene::Shared;
use anyhow::Context as _;
use std::time::Duration;

/// How many runs a switched-off safeguard has to be noticed.
const MOST: u64 = 12;
/// The safeguards that can be switched off.
const SAFEGUARDS: [&str; 6] = ["fence", "position", "claim", "relay", "lease", "cooldown"];

/// What came of one safeguard switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Its name.
    pub safeguard: &'static str,
    /// Runs until it was noticed.
    pub runs: u64,
    /// Losses that the last of them reported.
    pub lost: usize,
    /// Doubles that it reported.
    pub doubled: usize,
}

impl Proof {
    /// Whether a loss or a double was reported.
    #[must_use]
    pub fn noticed(&self) -> bool {
        self.lost + self.doubled > 0
    }
}

/// The safeguards that words of the command line stand for: some with commas between them, or `all`.
///
/// # Errors
/// Nobody knows one of them.
pub fn named(words: &str) -> anyhow::Result<Vec<&'static str>> {
    if words == "all" {
        return Ok(SAFEGUARDS.to_vec());
    }
    let known = |word: &str| {
        let found = SAFEGUARDS.into_iter().find(|name| *name == word);
        found.with_context(|| {
            let all = SAFEGUARDS.join(", ");
            format!("no safeguard called {word}; there are {all}, all")
        })
    };
    words.split(',').map(known).collect()
}

/// Runs the kinds that need a safeguard, with it switched off, until one of them reports a loss or a double.
pub async fn prove(
    shared: &Shared,
    safeguard: &'static str,
    form: Form,
    seed: u64,
    limit: Duration,
) -> Proof {
    let shared = Shared {
        sabotage: safeguard.to_owned(),
        ..shared.clone()
    };
    let needing = needing(safeguard, form);
    let mut proof = Proof {
        safeguard,
        runs: 0,
        lost: 0,
        doubled: 0,
    };
    for number in 1..=MOST {
        let at = (number as usize).checked_rem(needing.len()).unwrap_or(0);
        let Some(kind) = needing.get(at) else {
            break;
        };
        let variants = kind.deals();
        let round = (number as usize / needing.len()) % variants.len();
        let variant = variants.get(round).copied().unwrap_or_default();
        let card = Card { kind, variant };
        let outcome = run::run(&shared, card, seed, number, limit).await;
        proof.runs += 1;
        println!("{}", report::line(&outcome));
        (proof.lost, proof.doubled) = (outcome.lost(), outcome.doubled());
        if proof.noticed() {
            report::tell(&outcome, seed, &format!("with {safeguard} switched off"));
            break;
        }
    }
    println!(
        "{safeguard} switched off: runs {} lost {} doubled {}{}",
        proof.runs,
        proof.lost,
        proof.doubled,
        if proof.noticed() { "" } else { ": NOT noticed" }
    );
    proof
}

fn needing(safeguard: &str, form: Form) -> Vec<&'static kinds::Kind> {
    kinds::table()
        .into_iter()
        .filter(|kind| kind.needs.contains(&safeguard))
        .filter(|kind| form == Form::Long || kind.form == Form::Short)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_safeguard_has_kinds_that_need_it_in_both_forms_and_no_kind_needs_another() {
        for safeguard in SAFEGUARDS {
            for form in [Form::Short, Form::Long] {
                assert!(!needing(safeguard, form).is_empty(), "{safeguard} {form:?}");
            }
        }
        let needed: BTreeSet<&str> = kinds::table()
            .iter()
            .flat_map(|kind| kind.needs.iter().copied())
            .collect();
        assert_eq!(needed, BTreeSet::from(SAFEGUARDS));
    }

    #[test]
    fn all_stands_for_each_of_them() {
        assert_eq!(named("all").unwrap(), SAFEGUARDS);
        assert_eq!(named("relay").unwrap(), ["relay"]);
        assert_eq!(named("claim,cooldown").unwrap(), ["claim", "cooldown"]);
        assert!(named("fences").is_err() && named("claim,fences").is_err());
    }
}
