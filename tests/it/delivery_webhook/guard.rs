//! Nothing leaves for addresses that are not public, however they are spelled, unless the operator lists them.

use super::*;
use millrace::delivery::channel::Verdict;
use millrace_tests::receivers::Receiver;

#[actix::test]
async fn inside_addresses_are_refused_in_every_spelling() {
    let receiver = Receiver::start().unwrap();
    let port = receiver.url("").rsplit(':').next().unwrap().to_owned();
    let mut ground = Ground::new("http://localhost/").await;
    let hosts = [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "sub.localhost",
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "2130706433",
        "0177.0.0.1",
        "[::ffff:127.0.0.1]",
        "[::1]",
        "[::127.0.0.1]",
        "0.0.0.0",
    ];
    for host in hosts {
        ground
            .sql(&format!(
                "UPDATE webhooks SET url = 'http://{host}:{port}/hook'"
            ))
            .await;
        ground.channel = channel(quick(), AddressGuard::default(), seals(), &ground.clock);
        let answer = ground.deliver(&message(1)).await;
        let retry = Verdict::RetryAt {
            after: None,
            unsure: false,
        };
        assert_eq!(
            (&answer.verdict, &*answer.code),
            (&retry, "address_refused"),
            "{host}"
        );
        let said = answer.excerpt.unwrap();
        assert!(said.contains("allowed_networks"), "{said}");
    }
    assert!(receiver.received().is_empty());
    // What is listed passes, by name and by number, and what is not still does not.
    for (host, passes) in [
        ("localhost", true),
        ("2130706433", true),
        ("[::ffff:127.0.0.1]", true),
        ("[::1]", false),
    ] {
        ground
            .sql(&format!(
                "UPDATE webhooks SET url = 'http://{host}:{port}/hook'"
            ))
            .await;
        ground.channel = channel(quick(), loopback(), seals(), &ground.clock);
        let answer = ground.deliver(&message(1)).await;
        assert_eq!(
            answer.verdict == Verdict::Delivered,
            passes,
            "{host} {answer:?}"
        );
    }
    assert_eq!(receiver.received().len(), 3);
}

#[actix::test]
async fn a_name_that_nobody_knows_is_tried_again() {
    let ground = Ground::new("http://no-such-name.invalid/hook").await;
    let sent = ground.target().await.send(vec![message(1)]).await;
    let answer = &sent.answers[0];
    assert!(
        matches!(answer.verdict, Verdict::RetryAt { unsure: false, .. }),
        "{answer:?}"
    );
    assert!(
        ["unresolved", "no_connection"].contains(&&*answer.code),
        "{answer:?}"
    );
    assert!(sent.dead);
}
