//! Which kind a run gets: a deck with a card for every variant of every kind, shuffled anew each time it has been dealt to its
//! end. So no kind is left out of as many runs as the deck has cards, and a run's card follows from seed and number alone.

use super::kinds::{Form, Kind};
use millrace_tests::generator::Rng;

/// A kind in one of its variants.
#[derive(Clone, Copy)]
pub struct Card {
    /// The kind.
    pub kind: &'static Kind,
    /// One of its variants; empty where it has none.
    pub variant: &'static str,
}

impl Card {
    /// For people: `killed at a failpoint (batch.before_commit)`.
    #[must_use]
    pub fn name(&self) -> String {
        if self.variant.is_empty() {
            self.kind.name.to_owned()
        } else {
            format!("{} ({})", self.kind.name, self.variant)
        }
    }
}

/// All cards.
pub struct Deck {
    cards: Vec<Card>,
    seed: u64,
}

/// A number made of others, so that neighbours have nothing in common.
#[must_use]
pub fn mixed(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9, |seed, part| {
        Rng::new(seed ^ part.wrapping_mul(0x2545_f491_4f6c_dd1d)).any_u64()
    })
}

impl Deck {
    /// The deck of a form; `only`: of this kind alone.
    #[must_use]
    pub fn of(table: &[&'static Kind], form: Form, only: Option<&str>, seed: u64) -> Deck {
        let mut cards = Vec::new();
        for kind in table.iter().copied() {
            let wanted = only.map_or(kind.weight > 0, |name| name == kind.name);
            let has = match kind.form {
                Form::Short => true,
                Form::Slow => form != Form::Short || only.is_some(),
                Form::Long => form != Form::Short,
            };
            if !wanted || !has {
                continue;
            }
            for variant in kind.deals() {
                for _ in 0..kind.weight.max(1) {
                    cards.push(Card { kind, variant });
                }
            }
        }
        Deck { cards, seed }
    }

    /// How many cards it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cards.len()
    }

    /// Names of the kinds in it.
    pub fn kinds(&self) -> impl Iterator<Item = &'static Kind> + '_ {
        let mut last = "";
        self.cards.iter().filter_map(move |card| {
            let new = card.kind.name != last;
            last = card.kind.name;
            new.then_some(card.kind)
        })
    }

    /// The card of a run (from 1); none of an empty deck.
    #[must_use]
    pub fn card(&self, run: u64) -> Option<Card> {
        let n = self.cards.len() as u64;
        let (round, at) = (
            run.saturating_sub(1).checked_div(n)?,
            run.saturating_sub(1) % n,
        );
        let mut order: Vec<usize> = (0..self.cards.len()).collect();
        let mut rng = Rng::new(mixed(&[self.seed, round]));
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let at = order.get(usize::try_from(at).ok()?)?;
        self.cards.get(*at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::table;
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_card_is_dealt_within_two_hundred_runs() {
        for form in [Form::Short, Form::Long] {
            for seed in [1, 5, 77] {
                let deck = Deck::of(&table(), form, None, seed);
                assert!(deck.len() <= 100, "{} cards", deck.len());
                let mut dealt: BTreeMap<String, u32> = BTreeMap::new();
                for run in 1..=200 {
                    *dealt.entry(deck.card(run).unwrap().name()).or_insert(0) += 1;
                }
                for card in &deck.cards {
                    assert!(
                        dealt.get(&card.name()).is_some_and(|n| *n >= 2),
                        "{}",
                        card.name()
                    );
                }
            }
        }
    }

    #[test]
    fn the_fixed_seed_of_ci_deals_the_kind_of_engagement_that_it_has() {
        let script = include_str!("../../../.ci/faults.sh");
        let number = |option: &str| -> u64 {
            let mut words = script.split_whitespace().skip_while(|word| *word != option);
            words.nth(1).unwrap().parse().unwrap()
        };
        let deck = Deck::of(&table(), Form::Short, None, number("--seed"));
        let dealt: Vec<String> = (1..=number("--runs"))
            .map(|run| deck.card(run).unwrap().name())
            .collect();
        let engagement = dealt
            .iter()
            .any(|n| n.starts_with("smtp-dies-before-reply"));
        assert!(engagement, "another seed, please: {dealt:?}");
    }

    #[test]
    fn a_run_s_card_follows_from_seed_and_number() {
        let name = |seed, run| {
            let deck = Deck::of(&table(), Form::Long, None, seed);
            deck.card(run).unwrap().name()
        };
        assert_eq!(name(7, 131), name(7, 131));
        assert!((1..50).any(|run| name(7, run) != name(8, run)));
    }
}
