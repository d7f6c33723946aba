//! `millrace outbox`, and what `trace` tells of messages.

use super::Stage;
use crate::admin::facts;
use millrace_schemas::ids;
use serde_json::{Value, json};

async fn destination(stage: &Stage, workspace: i32, channel: &str, reference: &str) -> i32 {
    stage
        .store
        .query_one(
            "INSERT INTO destinations (workspace_id, channel, ref) VALUES ($1, $2, $3) RETURNING destination_no",
            &[&workspace, &channel, &reference],
        )
        .await
        .unwrap()
        .get(0)
}

fn ids_of(listed: &Value) -> Vec<String> {
    let rows = listed.as_array().unwrap();
    rows.iter()
        .map(|r| r["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn messages_are_listed_called_off_released_and_held() {
    let mut stage = Stage::new("cli-outbox").await;
    stage.ok("workspace create acme").await;
    facts::prepare(&stage.store, 1).await;
    let hook = destination(&stage, 1, "webhook", "wh_one").await;
    let stub = destination(&stage, 1, "stub", "st_two").await;
    let mut made = Vec::new();
    for (n, no, channel) in [
        (0, hook, "webhook"),
        (1, hook, "webhook"),
        (2, stub, "stub"),
    ] {
        made.push(ids::encode(
            facts::delivery(&stage.store, 1, no, channel, n).await,
        ));
    }
    let listed = stage.ok("outbox list").await;
    let newest_first: Vec<String> = made.iter().rev().cloned().collect();
    assert_eq!(ids_of(&listed), newest_first);
    assert_eq!(
        (&listed[0]["workspace"], &listed[0]["status"]),
        (&json!("acme"), &json!("scheduled"))
    );
    for (words, n) in [
        ("--channel stub", 1),
        ("--destination wh_one", 2),
        ("--status sent", 0),
        ("--workspace acme --limit 2", 2),
        ("--since 2999-01-01T00:00:00Z", 0),
    ] {
        let listed = stage.ok(&format!("outbox list {words}")).await;
        assert_eq!(ids_of(&listed).len(), n, "{words}");
    }
    assert!(
        stage
            .refused("outbox list --workspace nobody")
            .await
            .contains("no workspace")
    );
    let shown = stage.ok(&format!("outbox show {}", made[0])).await;
    assert_eq!(shown["payload"], json!({"email": "a@b.example"}));
    assert_eq!(shown["log"][0]["code"], "503");

    // Called off once; a second time it has ended. One refusal stops none of the others.
    let words = format!("outbox cancel {} {}", made[0], made[2]);
    assert_eq!(stage.ok(&words).await["cancelled"], 2);
    let words = format!("outbox cancel {} {}", made[0], made[1]);
    let said = stage.say(&words).await;
    assert_eq!(said.code, Some(1), "{}", said.text);
    assert!(said.text.contains("ended already"), "{}", said.text);
    assert_eq!(
        ids_of(&stage.ok("outbox list --status cancelled").await).len(),
        3
    );

    // What may have arrived needs a word more where the receiver cannot tell.
    stage
        .store
        .batch_execute("UPDATE outbox SET status = 'unknown' WHERE channel = 'stub'")
        .await
        .unwrap();
    let release = format!("outbox release {}", made[2]);
    assert!(stage.refused(&release).await.contains("--may-repeat"));
    assert_eq!(
        stage.ok(&format!("{release} --may-repeat")).await["released"],
        1
    );
    assert_eq!(
        stage.ok(&format!("outbox release {}", made[0])).await["released"],
        1
    );
    assert_eq!(stage.count("SELECT count(*) FROM outbox_due").await, 2);

    // Switches.
    assert_eq!(
        stage.ok("outbox pause wh_one --reason moving").await["paused"],
        true
    );
    stage
        .ok("outbox pause --channel stub --reason broken")
        .await;
    let all = stage.ok("outbox destinations --paused").await;
    assert_eq!(
        (&all[0]["paused"], &all[0]["reason"], &all[0]["waiting"]),
        (&json!("by_hand"), &json!("moving"), &json!(1))
    );
    assert_eq!(
        (&all[1]["paused"], &all[1]["reason"]),
        (&json!("held"), &json!("broken"))
    );
    assert!(
        stage
            .refused("outbox pause --channel pigeon --reason x")
            .await
            .contains("stub, webhook")
    );
    assert!(
        stage
            .refused("outbox resume wh_none")
            .await
            .contains("no destination")
    );
    for (words, was) in [
        ("wh_one", true),
        ("wh_one", false),
        ("--channel stub", true),
    ] {
        let said = stage.ok(&format!("outbox resume {words}")).await;
        assert_eq!(said["was_paused"], was, "{words}");
    }
    stage.ok("outbox pause --all --reason restored").await;
    let doctor = stage.say("doctor").await;
    assert!(doctor.text.contains("restored"), "{}", doctor.text);
    assert_eq!(
        stage.ok("outbox release --all-held").await["was_held"],
        true
    );
    assert_eq!(stage.ok("outbox destinations --paused").await, json!([]));
    for wrong in ["outbox release", "outbox pause --reason x", "outbox show x"] {
        assert_eq!(stage.say(wrong).await.code, Some(2), "{wrong}");
    }
}

#[tokio::test]
async fn a_trace_tells_what_went_out() {
    let mut stage = Stage::new("cli-trace").await;
    stage.ok("workspace create acme").await;
    facts::prepare(&stage.store, 1).await;
    facts::one_of_each(&stage.store, 1, 100, "spring", "nw_1").await;
    let hook = destination(&stage, 1, "webhook", "wh_one").await;
    let booked = ids::encode(facts::delivery(&stage.store, 1, hook, "webhook", 103).await);
    let other = ids::encode(facts::delivery(&stage.store, 1, hook, "webhook", 999).await);
    let told = stage.ok("trace foreign-1 --workspace acme").await;
    let rows = told.as_array().unwrap();
    let says = |what: &str| {
        rows.iter()
            .filter(|r| r["what"] == what)
            .map(|r| r["says"].as_str().unwrap())
            .collect::<Vec<_>>()
    };
    let messages = says("message");
    assert_eq!(messages.len(), 1, "{told:#}");
    for part in [&*booked, "webhook wh_one", "scheduled"] {
        assert!(messages[0].contains(part), "{part}: {messages:?}");
    }
    let attempts = says("attempt");
    assert_eq!(attempts.len(), 1, "{told:#}");
    assert!(attempts[0].contains("retry, 503"), "{attempts:?}");
    assert!(!told.to_string().contains(&other));
}
