//! The channel `stub`: sent once, and honest about what it does not know.

use super::*;
use millrace::delivery::channel::Verdict;
use millrace::delivery::stub::settings::Stub;
use millrace::delivery::stub::{MESSAGE_ID, StubChannel};
use millrace_schemas::ids;
use millrace_tests::receivers::{Answer, CountingReceiver, Manner, Receiver, by_header, by_member};

async fn target(url: &str) -> Result<Rc<dyn Target>, Unready> {
    let settings = Stub {
        enabled: true,
        timeout_ms: 500,
        ..Stub::default()
    };
    let channel = StubChannel::new(&settings, loopback(), ManualClock::at(START)).unwrap();
    assert!(!channel.traits().idempotent);
    let destination = Destination {
        no: 1,
        workspace: 1,
        channel: "stub".to_owned(),
        reference: url.to_owned(),
    };
    let database = TestDatabase::create().await;
    let session = Session::new(database.client().await);
    channel.prepare(&session, &destination).await
}

#[actix::test]
async fn each_answer_says_whether_it_may_have_arrived() {
    let receiver = Receiver::start().unwrap();
    let target = target(&receiver.url("/in")).await.ok().unwrap();
    let again = |unsure| Verdict::RetryAt {
        after: None,
        unsure,
    };
    for (answer, verdict) in [
        (Answer::status(200), Verdict::Delivered),
        (Answer::status(404), Verdict::Rejected),
        (Answer::status(502), again(true)),
        (Answer::status(200).in_manner(Manner::Reset), again(true)),
        (
            Answer::status(200).after(Duration::from_secs(30)),
            again(true),
        ),
    ] {
        receiver.script([answer]);
        let sent = target.send(vec![message(1)]).await;
        assert_eq!(sent.answers[0].verdict, verdict);
    }
    let all = receiver.received();
    assert_eq!(all.len(), 5);
    let id = ids::encode(message(1).id);
    assert!(all.iter().all(|r| r.header(MESSAGE_ID) == Some(&*id)));
    assert_eq!(all[0].body, message(1).payload.as_bytes());
    let address = millrace_tests::process::free_address().unwrap();
    let nobody = super::stub::target(&format!("http://{address}/"))
        .await
        .ok()
        .unwrap();
    let sent = nobody.send(vec![message(1)]).await;
    assert_eq!(sent.answers[0].verdict, again(false));
}

#[actix::test]
async fn a_reference_that_is_no_url_is_cancelled() {
    for bad in ["", "px_1", "ftp://h/", "file:///etc/passwd"] {
        let refused = target(bad).await.err().unwrap();
        assert_eq!(refused, Unready::Cancel("destination_url_invalid"), "{bad}");
    }
}

#[actix::test]
async fn a_counting_receiver_tells_repetitions() {
    let by_id = CountingReceiver::start(Duration::ZERO, by_header(MESSAGE_ID)).unwrap();
    let by_name = CountingReceiver::start(Duration::from_millis(5), by_member("name")).unwrap();
    for receiver in [&by_id, &by_name] {
        let target = target(&receiver.url("/")).await.ok().unwrap();
        for payload in [
            "{\"name\":\"a\"}",
            "{\"name\":\"b\"}",
            "{\"name\":\"a\"}",
            "{}",
        ] {
            let message = Leased {
                payload: payload.to_owned(),
                ..message(1)
            };
            target.send(vec![message]).await;
        }
        assert_eq!(receiver.requests(), 4);
    }
    let arrivals = by_id.wait_for(1, SOON).await.unwrap();
    assert_eq!((arrivals.total(), arrivals.nameless), (4, 0));
    assert_eq!(arrivals.repeated(), [(&*ids::encode(message(1).id), 4)]);
    let arrivals = by_name.wait_for(2, SOON).await.unwrap();
    assert_eq!((arrivals.total(), arrivals.nameless), (3, 1));
    assert_eq!(arrivals.repeated(), [("a", 2)]);
}
