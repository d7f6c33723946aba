//! One bad event fails its whole request: the good ones arrive all the same, once, and the bad ones end.

use super::bench::{Bench, bad, frozen, is_retry};
use millrace::delivery::channel::{Sent, Verdict};
use millrace_tests::meta_stand_in::Fault;

/// `n` events, those of `wrong` bad; sent; all others must have arrived, each once.
async fn with_bad(bench: &Bench, n: usize, wrong: &[usize]) -> Sent {
    let payloads = (0..n).map(|at| {
        let id = format!("e{at}");
        if wrong.contains(&at) {
            bad(&id)
        } else {
            frozen(&id)
        }
    });
    let sent = bench.send(payloads.collect()).await;
    for (at, answer) in sent.answers.iter().enumerate() {
        let times = bench.meta.times("0123", "Purchase", &format!("e{at}"));
        if wrong.contains(&at) {
            assert_eq!(
                (answer.verdict.clone(), times),
                (Verdict::Rejected, 0),
                "{at}"
            );
            assert_eq!(answer.code, "meta_100_2804008");
            let said = answer.excerpt.as_deref().unwrap();
            assert!(
                said.starts_with("code=100; error_subcode=2804008; "),
                "{said}"
            );
        } else {
            assert_eq!(
                (answer.verdict.clone(), times),
                (Verdict::Delivered, 1),
                "{at}"
            );
        }
    }
    assert!(!sent.dead);
    sent
}

#[tokio::test]
async fn a_named_one_is_taken_out() {
    let bench = Bench::new().await;
    with_bad(&bench, 1_000, &[421]).await;
    assert_eq!(bench.meta.counts().requests, 2);
}

#[tokio::test]
async fn several_named_ones_go_one_by_one() {
    let bench = Bench::new().await;
    with_bad(&bench, 300, &[0, 1, 150, 299]).await;
    assert_eq!(bench.meta.counts().requests, 5);
}

#[tokio::test]
async fn an_unnamed_one_is_found_by_halving() {
    let bench = Bench::new().await;
    bench.meta.name_index(false);
    with_bad(&bench, 1_000, &[777]).await;
    let requests = bench.meta.counts().requests;
    assert!(requests <= 21, "{requests}");
}

#[tokio::test]
async fn several_unnamed_ones_are_found_too() {
    let bench = Bench::new().await;
    bench.meta.name_index(false);
    with_bad(&bench, 257, &[0, 100, 101, 256]).await;
    assert_eq!(bench.meta.counts().received, 253);
}

#[tokio::test]
async fn nothing_but_bad_ones_ends_all() {
    let bench = Bench::new().await;
    bench.meta.name_index(false);
    let all: Vec<usize> = (0..40).collect();
    with_bad(&bench, 40, &all).await;
    assert_eq!(bench.meta.counts().received, 0);
    with_bad(&bench, 1, &[0]).await;
}

#[tokio::test]
async fn an_index_beyond_the_request_is_no_index() {
    let bench = Bench::new().await;
    let body = r#"{"error":{"code":100,"error_subcode":2804001,"error_data":{"event_index":9}}}"#;
    bench.meta.script([Fault::Status {
        status: 400,
        retry_after: None,
        body: body.to_owned(),
    }]);
    let sent = bench.send(vec![frozen("a"), frozen("b")]).await;
    assert!(sent.answers.iter().all(|a| a.verdict == Verdict::Delivered));
    assert_eq!(bench.meta.counts().requests, 3);
}

/// Throttled in the middle: what was told apart by then stands, the rest comes again, and is not unsure.
#[tokio::test]
async fn what_stops_the_search_leaves_the_rest_for_later() {
    let bench = Bench::new().await;
    bench.meta.script([
        Fault::code(100, Some(2_804_001)),
        Fault::code(613, None),
        Fault::code(613, None),
    ]);
    let payloads = (0..8).map(|n| frozen(&format!("e{n}"))).collect();
    let sent = bench.send(payloads).await;
    assert!(
        sent.answers.iter().all(|a| is_retry(&a.verdict, false)),
        "{sent:?}"
    );
    assert_eq!(bench.meta.counts().received, 0);
}

/// Found out to be paused in the middle: the rest is not tried.
#[tokio::test]
async fn a_pause_in_the_middle_pauses_the_rest() {
    let bench = Bench::new().await;
    let script = [100, 190, 190].map(|code| Fault::code(code, None));
    bench.meta.script(script);
    let sent = bench
        .send((0..8).map(|n| frozen(&format!("e{n}"))).collect())
        .await;
    assert!(
        sent.answers
            .iter()
            .all(|a| a.verdict == Verdict::PauseDestination && a.code == "meta_token_invalid")
    );
}

/// More bad ones than the time allows for: nothing good is lost, nobody waits for ever.
#[tokio::test]
async fn when_the_time_is_up_the_rest_comes_again() {
    let mut bench = Bench::new().await;
    bench.timeout(std::time::Duration::from_millis(100));
    bench.meta.name_index(false);
    bench.meta.latency(std::time::Duration::from_millis(60));
    let begun = std::time::Instant::now();
    let sent = bench
        .send((0..64).map(|n| bad(&format!("e{n}"))).collect())
        .await;
    assert!(begun.elapsed().as_secs() < 5);
    let left = sent
        .answers
        .iter()
        .filter(|a| matches!(a.verdict, Verdict::RetryAt { .. }))
        .count();
    assert!(left > 0, "{sent:?}");
    assert!(sent.answers.iter().all(|a| a.verdict != Verdict::Delivered));
}
