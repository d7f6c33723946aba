//! What each way of answering, or not answering, means.

use super::*;
use millrace::delivery::channel::Verdict;
use millrace_tests::receivers::{Answer, Manner, Receiver};
use std::time::Instant;

fn again(after: Option<u64>, unsure: bool) -> Verdict {
    Verdict::RetryAt {
        after: after.map(Duration::from_secs),
        unsure,
    }
}

async fn ask(ground: &Ground, receiver: &Receiver, answer: Answer) -> (Sent, Duration) {
    receiver.script([answer]);
    let begun = Instant::now();
    let sent = ground.target().await.send(vec![message(1)]).await;
    assert_eq!(sent.answers.len(), 1);
    (sent, begun.elapsed())
}

#[actix::test]
async fn statuses_and_retry_after() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    let told = |status, wait: &str| Answer::status(status).with("retry-after", wait);
    for (answer, verdict, code, dead) in [
        (Answer::status(200), Verdict::Delivered, "200", false),
        (Answer::status(204), Verdict::Delivered, "204", false),
        // What is not 2xx has failed, even where a body speaks of success.
        (
            Answer::status(400).saying("{\"success\":true}"),
            again(None, false),
            "400",
            false,
        ),
        (told(429, "17"), again(Some(17), false), "429", false),
        (Answer::status(429), again(None, false), "429", false),
        (told(429, "in a while"), again(None, false), "429", false),
        (
            told(503, "Thu, 01 Jan 2026 00:02:00 GMT"),
            again(Some(120), false),
            "503",
            true,
        ),
        (told(500, "17"), again(None, false), "500", true),
        (Answer::status(410), Verdict::Cancelled, "gone", false),
    ] {
        let (sent, _) = ask(&ground, &receiver, answer).await;
        assert_eq!(
            (&sent.answers[0].verdict, &*sent.answers[0].code),
            (&verdict, code)
        );
        assert_eq!(sent.dead, dead, "{code}");
    }
}

#[actix::test]
async fn a_redirect_is_not_followed() {
    let (receiver, elsewhere) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let ground = Ground::new(&receiver.url("/hook")).await;
    for status in [301, 302, 303, 307, 308] {
        let away = Answer::status(status).with("location", &elsewhere.url("/"));
        let (sent, _) = ask(&ground, &receiver, away).await;
        assert_eq!(sent.answers[0].verdict, again(None, false));
    }
    assert!(elsewhere.received().is_empty());
}

#[actix::test]
async fn what_was_sent_and_not_answered_is_unsure() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    for (answer, code) in [
        (
            Answer::status(200).in_manner(Manner::Reset),
            "connection_lost",
        ),
        (
            Answer::status(200).after(Duration::from_secs(30)),
            "timeout",
        ),
    ] {
        let (sent, took) = ask(&ground, &receiver, answer).await;
        assert_eq!(sent.answers[0].verdict, again(None, true));
        assert_eq!(sent.answers[0].code, code);
        assert!(sent.dead && took < Duration::from_secs(5), "{took:?}");
    }
    assert_eq!(
        receiver.received().len(),
        2,
        "nothing beneath us tries again"
    );
}

#[actix::test]
async fn what_was_never_sent_is_not_unsure() {
    let address = millrace_tests::process::free_address().unwrap();
    let ground = Ground::new(&format!("http://{address}/hook")).await;
    let sent = ground.target().await.send(vec![message(1)]).await;
    assert_eq!(sent.answers[0].verdict, again(None, false));
    assert_eq!(sent.answers[0].code, "no_connection");
    assert!(sent.dead);
}

/// The status decides; a body that is slow, endless or broken neither changes it nor holds anybody up.
#[actix::test]
async fn a_body_decides_nothing() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    let long = "many words ".repeat(100_000);
    for manner in [
        Manner::Whole,
        Manner::ResetWithin(100),
        Manner::StallWithin(100),
        Manner::Drip(Duration::from_millis(300)),
    ] {
        for (status, verdict) in [(200, Verdict::Delivered), (500, again(None, false))] {
            let answer = Answer::status(status).saying(&long).in_manner(manner);
            let (sent, took) = ask(&ground, &receiver, answer).await;
            assert_eq!(sent.answers[0].verdict, verdict, "{manner:?}");
            assert!(took < Duration::from_secs(3), "{manner:?} {took:?}");
            let said = sent.answers[0].excerpt.as_deref().unwrap_or_default();
            assert!(said.chars().count() <= 500);
            assert!(long.starts_with(said), "{said}");
        }
    }
}

#[actix::test]
async fn connections_are_kept() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    for nth in 0..5 {
        let (status, body) = if nth == 2 { (500, "oh") } else { (200, "fine") };
        ask(&ground, &receiver, Answer::status(status).saying(body)).await;
    }
    assert!(receiver.received().iter().all(|r| r.connection == 0));
}

#[actix::test]
async fn what_a_receiver_repeats_is_not_kept() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&format!("{}?token=hidden", receiver.url("/hook/hidden"))).await;
    let body = format!("no user jane@example.com (+1 555 123 4567) under {SECRET}\0!");
    let (sent, _) = ask(&ground, &receiver, Answer::status(400).saying(&body)).await;
    assert_eq!(
        sent.answers[0].excerpt.as_deref(),
        Some("no user [address] ([number]) under [token] !")
    );
    let target = sent.answers[0].target.clone().unwrap();
    assert_eq!(
        format!("{target}/hook/hidden?token=hidden"),
        ground.column("url").await.unwrap()
    );
    let (sent, _) = ask(
        &ground,
        &receiver,
        Answer::default().in_manner(Manner::Reset),
    )
    .await;
    let said = sent.answers[0].excerpt.clone().unwrap();
    assert!(!said.contains("hidden"), "{said}");
}
