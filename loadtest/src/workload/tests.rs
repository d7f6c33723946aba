//! The workload is what its name says.

use super::*;
use millrace_schemas::click::ClickRecord;
use millrace_schemas::postback::PostbackRecord;

#[test]
fn a_click_id_tells_its_visit() {
    for number in [0, 1, 77, 1_399_999, u32::MAX] {
        let facts = VisitFacts {
            number,
            millis: 1_764_500_000_123,
        };
        let back = VisitFacts::of_click_key(facts.click_key());
        assert_eq!((back.number, back.millis), (number, facts.millis));
        assert_eq!(
            ids::minted_millis(facts.click_key()),
            Some(1_764_500_000_123)
        );
    }
}

#[test]
fn shares_sizes_and_types_are_those_of_workload_w() {
    const N: u32 = 100_000;
    let base = 1_764_500_000_000_000;
    let mut w = Workload::new(N, 7, base);
    let mut made = Workload::blank();
    let mut sorts = std::collections::HashMap::new();
    let mut visited = std::collections::HashSet::new();
    while w.next_record(&mut made) {
        *sorts.entry(made.sort).or_insert(0_u32) += 1;
        let size = made.payload.len();
        assert!((300..=800).contains(&size), "{size}: {}", made.payload);
        match made.target {
            Target::Clicks => {
                let r: ClickRecord = serde_json::from_str(&made.payload).expect("a record");
                assert_eq!(r.check(), Ok(()));
                let key = r.key().key;
                if made.sort == Sort::Visit {
                    assert_eq!(visited.insert(key), !made.repeat);
                } else {
                    assert!(visited.contains(&key), "a click before its visit");
                }
            }
            Target::Postbacks => {
                let r: PostbackRecord = serde_json::from_str(&made.payload).expect("a record");
                let p = r.read().expect("a postback");
                let key = ids::ClickKey::new(r.workspace, &p.click_id).key;
                if !made.repeat {
                    assert_eq!(visited.contains(&key), !made.early);
                }
            }
        }
    }
    let share = |s: Sort| f64::from(sorts[&s]) / f64::from(N);
    assert!((share(Sort::Visit) - 0.70).abs() < 0.01);
    assert!((share(Sort::Click) - 0.20).abs() < 0.01);
    assert!((share(Sort::Postback) - 0.10).abs() < 0.01);
    let t = w.totals();
    assert!((t.repeats as f64 / f64::from(N) - 0.05).abs() < 0.005);
    assert!((t.early as f64 / t.postbacks as f64 - 0.05).abs() < 0.01);
}
