//! A newer build's record under a running process: who looks is told what to do, and the upgraded process goes on from there.

use bytes::Bytes;
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::process::{eventually, free_address};
use millrace_topics::catalogue;
use millrace_topics::contract::Outgoing;
use millrace_topics::pglog::append_in;

const TO_DO: &str = "upgrade this process first";

#[tokio::test]
async fn people_are_told_to_upgrade_first() {
    let deployment = Deployment::start("newer", Log::Postgres, 1).await.unwrap();
    let mut store = deployment.store().await;
    let at = free_address().unwrap();
    let mut process = deployment
        .launch("run")
        .unwrap()
        .setting("http.doors", at)
        .setting("http.admin", at)
        .arg("run")
        .spawn()
        .unwrap();
    process
        .wait_for_log("millrace is up", PATIENCE)
        .await
        .unwrap();
    let topics = catalogue::load(&store).await.unwrap();
    for (topic, body) in [
        (catalogue::CLICKS, &br#"{"v":2,"kind":"lead","who":{}}"#[..]),
        (catalogue::POSTBACKS, br#"{"v":2}"#),
    ] {
        let record = Outgoing {
            topic_no: catalogue::find(&topics, topic).unwrap().no,
            key: Bytes::from_static(b"1:a"),
            payload: Bytes::copy_from_slice(body),
        };
        let tx = store.transaction().await.unwrap();
        append_in(&tx, &topics, &[record]).await.unwrap();
        tx.commit().await.unwrap();
    }
    let health = format!("http://{at}/healthz");
    // No TLS is spoken here, but the client wants a provider to be there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    eventually("/healthz tells it", PATIENCE, async || {
        let body = http.get(&health).send().await?.text().await?;
        Ok(body.contains(TO_DO).then_some(()))
    })
    .await
    .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));
    for words in ["positions list --stopped", "doctor"] {
        let mut said = deployment
            .launch(&words.replace(' ', "-"))
            .unwrap()
            .env("RUST_LOG", "off")
            .arg("--json")
            .args(words.split(' '))
            .spawn()
            .unwrap();
        said.wait(PATIENCE).await.unwrap();
        let text = said.log_text();
        assert!(text.contains(TO_DO), "{words}: {text}");
        if words == "doctor" {
            assert!(
                text.contains("upgrade the processes of group `attribution` first, then `millrace positions resume --group attribution --partition 0`"),
                "{text}"
            );
        }
    }
    let dead: i64 = store
        .query_one("SELECT count(*) FROM dead_letters", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(dead, 0);
    assert_eq!(process.terminate(PATIENCE).await.unwrap().code(), Some(0));
}
