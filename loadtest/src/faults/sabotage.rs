//! The proof of the proof: with a safeguard switched off, runs in which it matters must end in a loss or a double.

use super::deal::Card;
use super::kinds;
use super::report;
use super::run;
use super::scene::Shared;
use std::time::Duration;

/// How many runs a switched-off safeguard has to be noticed.
const MOST: u64 = 12;

/// Runs the kinds that need a safeguard until one of them reports a loss or a double.
///
/// # Errors
/// Nothing was reported, or nobody knows that safeguard.
pub async fn prove(shared: &Shared, what: &str, seed: u64, limit: Duration) -> anyhow::Result<()> {
    let needing: Vec<_> = kinds::table()
        .into_iter()
        .filter(|kind| kind.needs.contains(&what))
        .collect();
    anyhow::ensure!(
        !needing.is_empty(),
        "no kind of fault needs a safeguard called {what}"
    );
    let (mut runs, mut lost, mut doubled) = (0, 0, 0);
    for number in 1..=MOST {
        let Some(kind) = needing.get(number as usize % needing.len()) else {
            break;
        };
        let variants = kind.deals();
        let round = (number as usize / needing.len()) % variants.len();
        let variant = variants.get(round).copied().unwrap_or_default();
        let card = Card { kind, variant };
        let outcome = run::run(shared, card, seed, number, limit).await;
        runs += 1;
        println!("{}", report::line(&outcome));
        (lost, doubled) = (outcome.lost(), outcome.doubled());
        if lost + doubled > 0 {
            report::tell(&outcome, seed, &format!("with {what} switched off"));
            break;
        }
    }
    println!("runs {runs} lost {lost} doubled {doubled}");
    if lost + doubled == 0 {
        std::process::exit(1);
    }
    Ok(())
}
