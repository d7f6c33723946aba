//! The hourly cap is wider than a partition: actors of two partitions count in one hour.

use super::world::{Actor, T0, World};
use millrace::recipients::actor::Recipients;
use millrace::recipients::facts::Configured;
use millrace_topics::partitioner::partition;

/// Two partitions decide at the same time what one rule may tell; together they stay within its cap, and a later hour begins anew.
#[tokio::test]
async fn partitions_share_one_hour() {
    let mut w = World::new().await;
    for n in 0..12 {
        w.user(&format!("u{n}"), "moderator").await;
    }
    w.rule("call", "g.page.new", "staff", &["inapp"], 0, 20)
        .await;
    w.rule("other", "g.page.new", "staff", &["inapp"], 0, 100)
        .await;
    let notices = w.recipients.topic.clone();
    let mut second = Actor::launch(
        w.db.url(),
        Recipients::new(Configured::ALL),
        &w.clock,
        &notices,
        1,
    )
    .await;
    for (round, (hour, cap)) in [(0, 20), (0, 20), (1, 40)].into_iter().enumerate() {
        w.at(T0.plus_secs(hour * 3_720));
        for page in 0..3 {
            let firing = w.firing(
                &format!("f{round}-{page}"),
                "g.page.new",
                &format!("p{page}"),
                None,
            );
            w.fire(&firing).await;
        }
        let (first_half, second_half): (Vec<_>, Vec<_>) = w
            .emitted()
            .await
            .into_iter()
            .partition(|(key, _)| partition(key, 2) == 0);
        assert!(!first_half.is_empty() && !second_half.is_empty());
        for (a, b) in first_half.chunks(5).zip(second_half.chunks(5)) {
            futures::join!(w.recipients.send(a), second.send(b));
        }
        let rest = first_half
            .len()
            .div_ceil(5)
            .min(second_half.len().div_ceil(5))
            * 5;
        w.recipients
            .send(first_half.get(rest..).unwrap_or_default())
            .await;
        second
            .send(second_half.get(rest..).unwrap_or_default())
            .await;
        let of = "SELECT count(*) FROM outbox WHERE rule_id = 'call'";
        assert_eq!(w.count(of).await, cap);
    }
    let capped = "SELECT count(*) FROM refusals WHERE reason = 'hourly_cap' AND gate = 6 AND rule_id = 'call'";
    assert_eq!(w.count(capped).await, 3 * 36 - 40);
    w.balanced().await;
}
