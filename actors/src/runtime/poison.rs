//! The cap on poison: records set aside as dead letters. Past it the partition stops, rather than pour a whole topic away.
//! Counted are undecodable, panicking and data-refused records; never expiries and rejections, which outsiders can cause.

use std::collections::VecDeque;

/// Records looked back upon.
const WINDOW: usize = 1_000;
/// Poison among them that is borne (5 %).
const RATIO_CAP: usize = WINDOW / 20;
/// Poison in a row that is not borne.
const ROW_CAP: usize = 50;

/// Counts poison among the last 1 000 records.
#[derive(Debug, Default)]
pub struct PoisonGauge {
    last: VecDeque<bool>,
    bad: usize,
    row: usize,
}

impl PoisonGauge {
    /// Notes a record. True: the cap is passed, and this record is one too many.
    pub fn note(&mut self, bad: bool) -> bool {
        self.last.push_back(bad);
        if self.last.len() > WINDOW && self.last.pop_front() == Some(true) {
            self.bad = self.bad.saturating_sub(1);
        }
        if bad {
            self.bad += 1;
            self.row += 1;
        } else {
            self.row = 0;
        }
        self.bad > RATIO_CAP || self.row > ROW_CAP
    }

    /// A record that was noted as good turned out to be poison. True: the cap is passed.
    pub fn turned_bad(&mut self) -> bool {
        if let Some(good) = self.last.iter_mut().rev().find(|bad| !**bad) {
            *good = true;
            self.bad += 1;
        }
        self.bad > RATIO_CAP
    }
}

#[cfg(test)]
mod tests {
    use super::PoisonGauge;

    #[test]
    fn fifty_in_a_row_are_borne_and_one_more_is_not() {
        let mut gauge = PoisonGauge::default();
        assert!((0..50).all(|_| !gauge.note(true)));
        assert!(gauge.note(true));
    }

    #[test]
    fn five_percent_are_borne_for_ever() {
        let mut gauge = PoisonGauge::default();
        assert!((0..100_000).all(|i| !gauge.note(i % 20 == 0)));
        let mut gauge = PoisonGauge::default();
        assert!((0..2_000).any(|i| gauge.note(i % 15 == 0)));
    }

    #[test]
    fn late_poison_counts() {
        let mut gauge = PoisonGauge::default();
        for _ in 0..500 {
            gauge.note(false);
        }
        assert_eq!((0..100).position(|_| gauge.turned_bad()), Some(50));
    }
}
