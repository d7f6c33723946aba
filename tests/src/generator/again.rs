//! A list delivered otherwise than it was told: everything twice, or in another order. What is right stays right: a repeat is a
//! duplicate (or ends as its first did, where nothing was booked), and records of different clicks may overtake each other.

use super::say::ends;
use super::{End, List, Rng};
use std::collections::HashMap;

impl List {
    /// Each record once more, somewhere behind its first.
    #[must_use]
    pub fn twice(mut self, rng: &mut Rng) -> List {
        let n = self.records.len();
        let mut order: Vec<(usize, usize, bool)> = Vec::with_capacity(2 * n);
        for i in 0..n {
            let behind = i + rng.below((n - i) as u64) as usize;
            order.push((2 * i, i, false));
            order.push((2 * behind + 1, i, true));
        }
        order.sort_unstable();
        let mut place = vec![0; n];
        let mut records = Vec::with_capacity(2 * n);
        for (_, i, again) in order {
            let mut record = self.records[i].clone();
            if again {
                let booked = |end| matches!(end, End::Applied | End::Duplicate);
                if record.right.iter().all(|r| booked(r.end)) {
                    record.right = ends(End::Duplicate);
                }
            } else {
                place[i] = records.len();
            }
            records.push(record);
        }
        self.records = records;
        self.moved(&place)
    }

    /// The same records in another order: those of one click keep theirs.
    #[must_use]
    pub fn reordered(mut self, rng: &mut Rng) -> List {
        let n = self.records.len();
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
        // Whose turn it is, is shuffled; who has a turn says what comes next of his own.
        let mut own: HashMap<&str, std::vec::IntoIter<usize>> = HashMap::new();
        let mut grouped: HashMap<&str, Vec<usize>> = HashMap::new();
        for (i, record) in self.records.iter().enumerate() {
            grouped.entry(&record.click_id).or_default().push(i);
        }
        for (click, all) in grouped {
            own.insert(click, all.into_iter());
        }
        let mut place = vec![0; n];
        let mut records = Vec::with_capacity(n);
        for turn in order {
            let click = &*self.records[turn].click_id;
            if let Some(i) = own.get_mut(click).and_then(Iterator::next) {
                place[i] = records.len();
                records.push(self.records[i].clone());
            }
        }
        self.records = records;
        self.moved(&place)
    }

    /// Follows records to their new places.
    fn moved(mut self, place: &[usize]) -> List {
        for way in self.conversions.iter_mut().flat_map(|c| &mut c.ways) {
            way.record = place[way.record];
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::PLAN;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn twice_is_each_record_and_its_repeat_behind_it() {
        let list = List::generate(PLAN);
        let n = list.records.len();
        let twice = list.clone().twice(&mut Rng::new(1));
        assert_eq!(twice.records.len(), 2 * n);
        let mut seen: HashMap<&[u8], usize> = HashMap::new();
        for record in &twice.records {
            *seen.entry(&record.payload).or_default() += 1;
        }
        assert!(seen.values().all(|times| times % 2 == 0));
        for (old, new) in list.conversions.iter().zip(&twice.conversions) {
            for (old, new) in old.ways.iter().zip(&new.ways) {
                let (old, new) = (&list.records[old.record], &twice.records[new.record]);
                assert_eq!(old.payload, new.payload);
                assert_eq!(old.right, new.right);
            }
        }
    }

    #[test]
    fn reordered_keeps_the_order_of_each_click() {
        let list = List::generate(PLAN);
        let other = list.clone().reordered(&mut Rng::new(1));
        let of = |list: &List, click: &str| -> Vec<Vec<u8>> {
            let own = list.records.iter().filter(|r| r.click_id == click);
            own.map(|r| r.payload.clone()).collect()
        };
        let clicks: HashSet<&str> = list.records.iter().map(|r| &*r.click_id).collect();
        for click in clicks {
            assert_eq!(of(&list, click), of(&other, click));
        }
        let moved =
            |(a, b): &(&super::super::Record, &super::super::Record)| a.payload != b.payload;
        let moved = list
            .records
            .iter()
            .zip(&other.records)
            .filter(moved)
            .count();
        assert!(moved * 10 > list.records.len() * 9);
        for (old, new) in list.conversions.iter().zip(&other.conversions) {
            for (old, new) in old.ways.iter().zip(&new.ways) {
                assert_eq!(
                    list.records[old.record].payload,
                    other.records[new.record].payload
                );
            }
        }
    }
}
