//! What each kind of answer does to the events of its request.

use super::bench::{Bench, frozen, is_retry};
use millrace::delivery::channel::{Answer, Sent, Verdict};
use millrace_tests::meta_stand_in::Fault;
use std::time::Duration;

async fn one(bench: &Bench, fault: Fault) -> Sent {
    bench.meta.script([fault]);
    let sent = bench.send(vec![frozen("a"), frozen("b")]).await;
    assert_eq!(sent.answers[0], sent.answers[1]);
    sent
}

fn retry(sent: &Sent, code: &str, unsure: bool, dead: bool) -> Option<Duration> {
    let Answer {
        verdict: Verdict::RetryAt { after, unsure: u },
        code: c,
        ..
    } = &sent.answers[0]
    else {
        panic!("{sent:?}");
    };
    assert_eq!(
        (c.as_ref(), *u, sent.dead),
        (code, unsure, dead),
        "{sent:?}"
    );
    *after
}

fn plain(status: u16, after: Option<&str>, body: &str) -> Fault {
    Fault::Status {
        status,
        retry_after: after.map(str::to_owned),
        body: body.to_owned(),
    }
}

#[tokio::test]
async fn codes_decide_and_not_the_status() {
    let bench = Bench::new().await;
    for status in [200, 400] {
        for code in [1, 2, 4, 17, 32, 341, 368, 613, 80_000, 80_014] {
            let fault = Fault::Error {
                status,
                code,
                subcode: None,
            };
            let sent = one(&bench, fault).await;
            assert_eq!(retry(&sent, &format!("meta_{code}"), false, false), None);
        }
        for (code, subcode, name) in [
            (190, Some(463), "meta_token_invalid"),
            (200, None, "meta_permission"),
            (10, None, "meta_permission"),
            (100, Some(33), "meta_object_missing"),
        ] {
            let fault = Fault::Error {
                status,
                code,
                subcode,
            };
            let sent = one(&bench, fault).await;
            assert_eq!(sent.answers[0].verdict, Verdict::PauseDestination);
            assert_eq!(sent.answers[0].code, name);
            assert!(sent.answers[0].excerpt.is_some());
        }
        let sent = one(
            &bench,
            Fault::Error {
                status,
                code: 803,
                subcode: None,
            },
        )
        .await;
        assert_eq!(sent.answers[0].verdict, Verdict::Rejected);
        assert_eq!(sent.answers[0].code, "meta_803");
    }
    assert_eq!(bench.meta.counts().received, 0);
}

#[tokio::test]
async fn throttling_names_its_end() {
    let bench = Bench::new().await;
    let sent = one(&bench, plain(429, None, "")).await;
    assert_eq!(retry(&sent, "http_429", false, false), None);
    let sent = one(&bench, plain(429, Some("7"), "slow down")).await;
    assert_eq!(
        retry(&sent, "http_429", false, false),
        Some(Duration::from_secs(7))
    );
    assert_eq!(sent.answers[0].excerpt.as_deref(), Some("slow down"));
    let sent = one(&bench, plain(503, Some("30"), "<html>")).await;
    assert_eq!(
        retry(&sent, "http_503", true, true),
        Some(Duration::from_secs(30))
    );
    let body = r#"{"error":{"code":4,"message":"Application request limit reached"}}"#;
    let sent = one(&bench, plain(400, Some("60"), body)).await;
    assert_eq!(
        retry(&sent, "meta_4", false, false),
        Some(Duration::from_secs(60))
    );
}

#[tokio::test]
async fn server_errors_come_again_and_tell_that_it_seems_dead() {
    let bench = Bench::new().await;
    for status in [500, 502, 504] {
        let sent = one(&bench, Fault::status(status)).await;
        retry(&sent, &format!("http_{status}"), true, true);
    }
    let sent = one(
        &bench,
        Fault::Error {
            status: 500,
            code: 2,
            subcode: None,
        },
    )
    .await;
    retry(&sent, "meta_2", false, true);
}

#[tokio::test]
async fn other_refusals_are_final() {
    let bench = Bench::new().await;
    for status in [302, 400, 404] {
        let sent = one(&bench, Fault::status(status)).await;
        assert_eq!(sent.answers[0].verdict, Verdict::Rejected);
        assert_eq!(sent.answers[0].code, format!("http_{status}"));
        assert!(!sent.dead);
    }
}

#[tokio::test]
async fn broken_answers_leave_it_open_whether_it_arrived() {
    let bench = Bench::new().await;
    for fault in [Fault::ResetBeforeAnswer, Fault::ResetMidBody] {
        let sent = one(&bench, fault).await;
        retry(&sent, "broken", true, true);
    }
    // They had arrived; sent again, they are known.
    assert_eq!(bench.meta.counts().unique, 2);
    let sent = one(&bench, Fault::ResetUntaken).await;
    retry(&sent, "broken", true, true);
    let sent = one(&bench, Fault::NoReceipt).await;
    retry(&sent, "no_receipt", true, false);
    let sent = one(&bench, Fault::HugeBody(1 << 20)).await;
    retry(&sent, "no_receipt", true, false);
    let sent = bench.send(vec![frozen("a"), frozen("b")]).await;
    assert!(sent.answers.iter().all(|a| a.verdict == Verdict::Delivered));
    assert_eq!(bench.meta.counts().unique, 2);
    assert_eq!(bench.meta.times("0123", "Purchase", "a"), 5);
}

#[tokio::test]
async fn whoever_is_too_slow_is_given_up_and_left_open() {
    let mut bench = Bench::new().await;
    bench.timeout(Duration::from_millis(200));
    let sent = one(&bench, Fault::Hang).await;
    retry(&sent, "timeout", true, true);
    let crawl = Fault::SlowBody {
        pieces: 20,
        pause: Duration::from_millis(50),
    };
    let sent = one(&bench, crawl).await;
    retry(&sent, "timeout", true, true);
    assert_eq!(bench.meta.counts().unique, 2);
}

/// A count that is not ours is an alarm: nobody says which one is missing, and nothing is sent again for it.
#[tokio::test]
async fn another_count_is_no_reason_to_send_again() {
    let bench = Bench::new().await;
    let sent = one(&bench, Fault::WrongCount(1)).await;
    assert_eq!(sent.answers[0].verdict, Verdict::Delivered);
    assert_eq!(bench.meta.counts().requests, 1);
}

/// The bench itself looks for the token in every excerpt; this one would hold it in full.
#[tokio::test]
async fn an_answer_that_repeats_the_request_tells_no_secret() {
    let bench = Bench::new().await;
    let sent = one(&bench, Fault::Echo).await;
    let said = sent.answers[0].excerpt.clone().unwrap();
    assert!(
        said.starts_with("code=190; type=OAuthException; message=Malformed request"),
        "{said}"
    );
    // So long that its code lies beyond what is read: nothing final follows from half an answer.
    bench.meta.script([Fault::Echo]);
    let long = bench.send((0..200).map(|n| frozen(&format!("e{n}"))).collect());
    retry(&long.await, "answer_too_long", false, false);
    let raw = plain(500, None, &format!("upstream saw {}", super::TOKEN));
    let sent = one(&bench, raw).await;
    assert_eq!(
        sent.answers[0].excerpt.as_deref(),
        Some("upstream saw [redacted]")
    );
    assert!(is_retry(&sent.answers[0].verdict, true));
}

#[tokio::test]
async fn a_wrong_token_or_proof_pauses() {
    let bench = Bench::new().await;
    bench.meta.dataset("0123", "another", None);
    let sent = bench.send(vec![frozen("a")]).await;
    assert_eq!(sent.answers[0].code, "meta_token_invalid");
    bench.meta.dataset("0123", super::TOKEN, Some("another"));
    let sent = bench.send(vec![frozen("a")]).await;
    assert_eq!(sent.answers[0].verdict, Verdict::PauseDestination);
    assert_eq!(sent.answers[0].code, "meta_app_secret_invalid");
    assert_eq!(bench.meta.counts().received, 0);
}
