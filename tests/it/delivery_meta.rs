//! The channel `meta` over a real store and a stand-in that behaves as Meta does: what arrives, what is refused, what waits.

mod answers;
mod bench;
mod parts;
mod pixel;
mod product;

use bench::{Bench, PIXEL, SECRET, TOKEN, frozen, is_retry};
use millrace::delivery::channel::Verdict;
use millrace_tests::meta_stand_in::{Counts, Fault};
use std::time::Duration;

#[tokio::test]
async fn a_batch_arrives_whole_and_the_token_stands_in_the_body_alone() {
    let bench = Bench::new().await;
    bench
        .set(
            "app_secret_sealed",
            Some(bench.sealed("pixel-app-secret", SECRET)),
        )
        .await;
    bench.test_code("TEST42").await;
    bench.meta.dataset("0123", TOKEN, Some(SECRET));
    let sent = bench
        .send((0..1_000).map(|n| frozen(&format!("e{n}"))).collect())
        .await;
    assert!(!sent.dead);
    assert!(sent.answers.iter().all(|a| a.verdict == Verdict::Delivered
        && a.target.as_deref() == Some("0123")
        && a.excerpt.is_none()));
    assert_eq!(
        bench.meta.counts(),
        Counts {
            requests: 1,
            received: 1_000,
            unique: 1_000,
            ..Counts::default()
        }
    );
    assert_eq!(bench.meta.times("0123", "Purchase", "e999"), 1);
    let seen = bench.meta.seen();
    assert_eq!(seen[0].target, "/v24.0/0123/events");
    assert!(!seen[0].head.contains(TOKEN) && !seen[0].head.contains(SECRET));
    let body: serde_json::Value = serde_json::from_slice(&seen[0].body).unwrap();
    assert_eq!(body["access_token"], TOKEN);
    assert_eq!(body["test_event_code"], "TEST42");
    assert!(!String::from_utf8_lossy(&seen[0].body).contains(SECRET));
    // Twice is once: the same id, known again.
    bench.send(vec![frozen("e7")]).await;
    assert_eq!(bench.meta.counts().duplicates, 1);
}

#[tokio::test]
async fn what_may_no_longer_go_is_answered_unsent() {
    let bench = Bench::new().await;
    let target = bench.target().await;
    let wall = bench.wall();
    let day = 86_400;
    let admit = |payload: String, unsure: Option<i64>, shift: i64| {
        let mut message = bench.leased(payload);
        message.unsure_since = unsure.map(|ago| wall.plus_secs(-ago));
        target
            .admit(&message, wall.plus_secs(shift))
            .map(|a| (a.verdict, a.code.into_owned()))
    };
    let ends = |verdict, code: &str| Some((verdict, code.to_owned()));
    assert_eq!(admit(frozen("a"), None, 0), None);
    assert_eq!(admit(frozen("a"), None, 7 * day - 60), None);
    // A moment before the limit is too late: the answer comes after it.
    assert_eq!(
        admit(frozen("a"), None, 7 * day - 1),
        ends(Verdict::Rejected, "event_too_old")
    );
    assert_eq!(
        admit(frozen("a"), None, 8 * day),
        ends(Verdict::Rejected, "event_too_old")
    );
    assert_eq!(admit(frozen("a"), None, -299), None);
    assert_eq!(
        admit(frozen("a"), None, -400),
        ends(
            Verdict::RetryAt {
                after: Some(Duration::from_secs(100)),
                unsure: false
            },
            "event_in_future"
        )
    );
    assert_eq!(admit(frozen("a"), Some(47 * 3_600), 0), None);
    assert_eq!(
        admit(frozen("a"), Some(48 * 3_600), 0),
        ends(Verdict::Rejected, "dedup_window_passed")
    );
    let elsewhere = frozen("a").replace("\"0123\"", "\"123\"");
    assert_eq!(
        admit(elsewhere, None, 0),
        ends(Verdict::Cancelled, "destination_repointed")
    );
    for broken in ["", "{}", "[]", "{\"dataset\":\"0123\",\"event\":{}}"] {
        assert_eq!(
            admit(broken.to_owned(), None, 0),
            ends(Verdict::Rejected, "payload_unreadable")
        );
    }
    assert_eq!(bench.meta.counts(), Counts::default());
}

/// What the product refuses by its own clock, Meta would refuse too, and all that stands beside it.
#[tokio::test]
async fn one_that_is_too_old_would_fail_its_whole_request() {
    let bench = Bench::new().await;
    bench.meta.shift_clock(7 * 86_400 + 60);
    let sent = bench.send(vec![frozen("a"), frozen("b")]).await;
    assert!(
        sent.answers
            .iter()
            .all(|a| a.verdict == Verdict::Rejected && a.code == "meta_100_2804003")
    );
    assert_eq!(bench.meta.counts().received, 0);
}

#[tokio::test]
async fn a_dead_server_is_dead_and_what_never_left_is_not_unsure() {
    let mut bench = Bench::new().await;
    let target = bench.target().await;
    bench.meta_gone();
    let sent = target.send(vec![bench.leased(frozen("a"))]).await;
    assert!(sent.dead);
    assert!(is_retry(&sent.answers[0].verdict, false), "{sent:?}");
    assert_eq!(sent.answers[0].code, "connect");
}

#[tokio::test]
async fn a_pixel_is_told_apart_by_its_traits() {
    let bench = Bench::new().await;
    let traits = bench.traits();
    assert!(traits.idempotent);
    assert_eq!((traits.batch, traits.max_attempts), (1_000, 8));
    assert_eq!(bench.destination().reference, PIXEL);
    let backoff: Vec<u64> = [1, 2, 7, 100].map(|n| bench.backoff(n).as_secs()).to_vec();
    assert_eq!(backoff, [15, 30, 960, 3_600]);
}

#[tokio::test]
async fn late_answers_are_waited_for_within_the_bound() {
    let bench = Bench::new().await;
    bench.meta.latency(Duration::from_millis(50));
    let slow = Fault::SlowBody {
        pieces: 4,
        pause: Duration::from_millis(10),
    };
    bench.meta.script([slow]);
    for id in ["a", "b"] {
        let sent = bench.send(vec![frozen(id)]).await;
        assert_eq!(sent.answers[0].verdict, Verdict::Delivered);
    }
}
