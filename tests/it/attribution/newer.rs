//! What a newer build wrote stops the partition, wherever it is met, and is never a dead letter.

use super::{Record, T0, World, click, on_wire, postback};
use millrace::runtime::core::{Exit, NEWER};
use millrace_topics::catalogue::ATTRIBUTION;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn provider(id: &str) -> Record {
    on_wire(
        0,
        id,
        &json!({"v": 1, "kind": "provider_click", "workspace": 1, "click_id": id, "accepted_at": T0,
            "network": "nw_1", "network_offer_id": "0077", "provider_txid": "p"}),
    )
}

/// The record as a newer build would write it: of another version, and perhaps of another shape.
fn newer((topic, key, payload): &Record, version: &Value, shape: bool) -> Record {
    let mut body: Value = serde_json::from_slice(payload).unwrap();
    body["v"] = version.clone();
    if shape {
        let kind = body.get("kind").cloned();
        body = json!({"v": version, "kind": [kind], "at": {"seconds": 1}});
    }
    (*topic, key.clone(), serde_json::to_vec(&body).unwrap())
}

#[tokio::test]
async fn every_topic_and_kind_of_a_newer_version_stops_the_partition() {
    let mut w = World::new().await;
    let visit = w.visit("a", T0);
    let records = [
        visit,
        click("a", T0, "camp0001", 0),
        provider("a"),
        postback("a", T0, "txid=t"),
    ];
    let met: BTreeSet<&str> = records
        .iter()
        .map(|r| w.partition.topics[r.0].name.as_str())
        .collect();
    let all: BTreeSet<&str> = ATTRIBUTION.topics.iter().copied().collect();
    assert_eq!(met, all, "a topic is not proved");
    for record in &records {
        // The next one, and one that no sixteen bits hold.
        for version in [json!(2), json!(70_000)] {
            for shape in [false, true] {
                let exit = w.partition.send(&[newer(record, &version, shape)]).await;
                let Err(Exit::Stopped(why)) = exit else {
                    panic!("{version} {shape}: {exit:?}");
                };
                assert!(
                    why.starts_with(NEWER)
                        && why.contains(&version.to_string())
                        && why.contains("upgrade this process first"),
                    "{why}"
                );
                let stored = "SELECT count(*) FROM ownership WHERE stopped_reason LIKE '%upgrade this process first%'";
                assert_eq!(w.count(stored).await, 1);
                assert_eq!(w.count("SELECT count(*) FROM dead_letters").await, 0);
                let moved = "SELECT count(*) FROM positions WHERE next_offset > 0";
                assert_eq!(w.count(moved).await, 0, "it is still there to be read");
                w.client
                    .batch_execute("UPDATE ownership SET stopped_reason = NULL, stopped_at = NULL")
                    .await
                    .unwrap();
                w.again().await;
            }
        }
    }
    // A version that is none is no newer build's.
    w.send(&[(0, "1:x".to_owned(), br#"{"v":"2"}"#.to_vec())])
        .await;
    assert_eq!(w.outcomes().await, ["dead_lettered:undecodable 1"]);
}

/// A newer build parks a record, and an older one is put back.
#[tokio::test]
async fn a_parked_record_of_a_newer_version_stops_the_partition_too() {
    let mut w = World::new().await;
    w.send(&[postback("a", T0, "txid=t&email_hash=secret")])
        .await;
    assert_eq!(w.outcomes().await, ["parked 1"]);
    for version in ["2", "70000"] {
        w.client
            .batch_execute(&format!(
                "UPDATE parked SET payload = regexp_replace(convert_from(payload, 'UTF8'), '\"v\":[0-9]+', '\"v\":{version}')::bytea"
            ))
            .await
            .unwrap();
        w.again().await;
        let visit = w.visit("a", T0);
        let exit = w.partition.send(&[visit]).await;
        let Err(Exit::Stopped(why)) = exit else {
            panic!("{exit:?}");
        };
        assert!(why.starts_with(NEWER) && why.contains("parked"), "{why}");
        w.client
            .batch_execute("UPDATE ownership SET stopped_reason = NULL, stopped_at = NULL")
            .await
            .unwrap();
    }
    // One that cannot be read is told without a word of what is in it.
    w.client
        .batch_execute("UPDATE parked SET payload = '{\"v\":1,\"query\":7,\"x\":\"secret\"}'")
        .await
        .unwrap();
    w.again().await;
    let visit = w.visit("a", T0);
    let exit = w.partition.send(&[visit]).await;
    assert!(
        matches!(&exit, Err(Exit::Stopped(why)) if why.contains("parked record") && !why.contains("secret")),
        "{exit:?}"
    );
    assert_eq!(w.outcomes().await, ["parked 1"]);
}
