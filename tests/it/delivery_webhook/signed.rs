//! What a receiver sees: one id, a fresh time, signatures that it can verify from headers and raw body alone.

use super::*;
use millrace::delivery::channel::Verdict;
use millrace_schemas::ids;
use millrace_tests::receivers::{Answer, Received, Receiver};

/// The secrets (of those given) under which a receiver finds the request good, by the letter of standardwebhooks.com.
fn good_under<'a>(request: &Received, secrets: &[&'a str]) -> Vec<&'a str> {
    let id = request.header("webhook-id").unwrap();
    let timestamp = request.header("webhook-timestamp").unwrap();
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(&request.body);
    let passed = |secret: &&&str| {
        let wanted = format!("v1,{}", STANDARD.encode(hmac(secret, &signed)));
        let signatures = request.header("webhook-signature").unwrap();
        signatures.split(' ').any(|s| s == wanted)
    };
    secrets.iter().filter(passed).copied().collect()
}

#[actix::test]
async fn a_request_is_signed_over_its_raw_bytes() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook?x=1")).await;
    assert_eq!(
        ground.deliver(&message(1)).await.verdict,
        Verdict::Delivered
    );
    let all = receiver.received();
    let [request] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!((&*request.method, &*request.target), ("POST", "/hook?x=1"));
    assert_eq!(request.body, message(1).payload.as_bytes());
    assert_eq!(good_under(request, &[SECRET, FORMER]), [SECRET]);
    let hex: String = hmac(SECRET, &request.body)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(
        request.header("x-millrace-signature"),
        Some(&*format!("sha256={hex}"))
    );
    let id = format!("msg_{}", ids::encode(message(1).id));
    assert_eq!(request.header("webhook-id"), Some(&*id));
    assert_eq!(request.header("webhook-timestamp"), Some("1767225600"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    let agent = request.header("user-agent").unwrap();
    assert!(agent.starts_with("Millrace/"), "{agent}");
}

#[actix::test]
async fn while_a_rotation_overlaps_both_secrets_sign() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    ground
        .session
        .client()
        .execute(
            "UPDATE webhooks SET previous_secret_sealed = $1, previous_until = timestamptz '2026-01-01 01:00Z'",
            &[&sealed(FORMER)],
        )
        .await
        .unwrap();
    let target = ground.target().await;
    // The same target a second before and at the overlap's end, then a fresh one.
    for (second, fresh, expected) in [
        (0, false, &[SECRET, FORMER][..]),
        (HOUR - 1, false, &[SECRET, FORMER]),
        (HOUR, false, &[SECRET]),
        (HOUR - 1, true, &[SECRET, FORMER]),
        (HOUR, true, &[SECRET]),
    ] {
        ground.after(second);
        let target = if fresh {
            ground.target().await
        } else {
            target.clone()
        };
        target.send(vec![message(1)]).await;
        let request = receiver.received().pop().unwrap();
        assert_eq!(
            good_under(&request, &[SECRET, FORMER]),
            expected,
            "{second}"
        );
        let hex = request.header("x-millrace-signature").unwrap().to_owned();
        let current = hmac(SECRET, &request.body);
        assert!(hex.starts_with(&format!("sha256={:02x}{:02x}", current[0], current[1])));
    }
}

#[actix::test]
async fn all_attempts_carry_one_id_and_each_its_own_time() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    receiver.script([500, 404, 302, 429, 503, 400, 502].map(Answer::status));
    for attempt in 1..=8 {
        ground.after(i64::from(attempt) * 10);
        let answer = ground.deliver(&message(attempt)).await;
        let retry = matches!(answer.verdict, Verdict::RetryAt { unsure: false, .. });
        assert_eq!(retry, attempt < 8, "{answer:?}");
    }
    let all = receiver.received();
    assert_eq!(all.len(), 8);
    for (nth, request) in all.iter().enumerate() {
        assert_eq!(request.header("webhook-id"), all[0].header("webhook-id"));
        assert_eq!(request.body, all[0].body);
        let at = 1_767_225_600 + (nth + 1) * 10;
        assert_eq!(request.header("webhook-timestamp"), Some(&*at.to_string()));
        assert_eq!(good_under(request, &[SECRET]), [SECRET]);
    }
}
