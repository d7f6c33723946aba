//! The dispatcher over a real store and real receivers: everything leaves once, nothing waits for a dead destination.

use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::outbox;
use millrace_tests::process::{Launch, eventually, free_address};
use millrace_tests::receivers::{Answer, Receiver};
use std::collections::BTreeMap;

/// A process that only delivers, to receivers on loopback.
pub fn sender(deployment: &Deployment, name: &str) -> Launch {
    deployment
        .launch(name)
        .unwrap()
        .args(["run", "--roles", "delivery"])
        .setting("http.doors", free_address().unwrap())
        .setting("http.admin", free_address().unwrap())
        .setting("delivery.allowed_networks", "127.0.0.0/8")
        .setting("delivery.stub.enabled", "true")
        .setting("delivery.poll_ms", 20)
}

fn counted(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
    pairs.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_due_leaves_once_and_is_written_down() {
    let deployment = Deployment::start("deliver", Log::Postgres, 1)
        .await
        .unwrap();
    let store = deployment.store().await;
    let workspace = outbox::workspace(&store, "acme").await.unwrap();
    let (good, refusing) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    refusing.script((0..20).map(|_| Answer::status(422)));
    let to = async |receiver: &Receiver| {
        let url = receiver.url("/in");
        outbox::destination(&store, workspace, "stub", &url)
            .await
            .unwrap()
    };
    let (one, two) = (to(&good).await, to(&refusing).await);
    let payload = |n: u32| format!("{{\"n\":{n}}}");
    for (no, n) in [(one, 500), (two, 20)] {
        outbox::fill(&store, workspace, "stub", no, 0..n, payload)
            .await
            .unwrap();
    }
    let mut process = sender(&deployment, "sender").spawn().unwrap();
    let done = eventually("nothing is due", PATIENCE, async || {
        Ok((outbox::due(&store).await? == 0).then_some(()))
    });
    if let Err(e) = done.await {
        panic!("{e}\n{}", deployment.last_words());
    }
    assert_eq!(
        outbox::statuses(&store, one).await.unwrap(),
        counted(&[("sent", 500)])
    );
    assert_eq!(
        outbox::statuses(&store, two).await.unwrap(),
        counted(&[("failed", 20)])
    );
    let received = good.received();
    assert_eq!(received.len(), 500);
    let mut bodies: Vec<&[u8]> = received.iter().map(|r| &r.body[..]).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), 500);
    let logged = store
        .query(
            "SELECT destination_no, result, attempt, count(*) FROM send_log GROUP BY 1, 2, 3 ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let logged: Vec<(i32, String, i16, i64)> = logged
        .iter()
        .map(|r| (r.get(0), r.get(1), r.get(2), r.get(3)))
        .collect();
    assert_eq!(
        logged,
        [
            (one, "delivered".to_owned(), 1, 500),
            (two, "rejected".to_owned(), 1, 20)
        ]
    );
    process.signal(15);
    let status = process.wait(PATIENCE).await.unwrap();
    assert!(status.success(), "{}", process.last_words(20));
}
