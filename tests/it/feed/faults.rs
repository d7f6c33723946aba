//! What bad input gets: an answer with its sequence and the reason, and the feed goes on.

use super::{Sidecar, Stand, frame};
use futures::SinkExt;
use millrace::api::keys::ApiKey;
use millrace_schemas::frame::MAX_FRAME_BYTES;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

#[actix_web::test]
async fn a_bad_frame_is_answered_and_the_feed_goes_on() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    sidecar.say(&frame(1, "m.thing")).await;
    assert_eq!(sidecar.refused().await.1, "hello_first");
    let other = json!({"type": "hello", "protocol": 4, "boot": "b1"});
    sidecar.say(&other).await;
    let (_, code, said) = sidecar.refused().await;
    assert_eq!(
        (&*code, &said["want"], &said["got"]),
        ("protocol_mismatch", &json!(5), &json!(4))
    );
    sidecar.hello("b1", 0).await;
    let big = json!({"seq": 2, "kind": "m.thing", "body": {"x": "x".repeat(MAX_FRAME_BYTES)}});
    let long_key = json!({"seq": 4, "kind": "m.thing", "body": {"id": "k".repeat(600)}});
    sidecar.frames(1, 1).await;
    for (text, seq, code) in [
        // A number that was to come stands for itself, another for none.
        (big.to_string(), 2, "frame_too_large"),
        ("not json at all".to_owned(), 3, "not_json"),
        (long_key.to_string(), 4, "key_malformed"),
        (
            r#"{"seq":5,"kind":"m.thing","protocol":4,"body":{}}"#.to_owned(),
            5,
            "protocol_mismatch",
        ),
        (
            r#"{"seq":6,"kind":"","body":{}}"#.to_owned(),
            6,
            "kind_malformed",
        ),
        (frame(9, "m.thing").to_string(), 9, "out_of_sequence"),
        (frame(1, "m.thing").to_string(), 1, "repeated"),
    ] {
        sidecar.raw(&text).await;
        let (got, why, said) = sidecar.refused().await;
        assert_eq!((got, &*why), (seq, code), "{said}");
        if matches!(code, "out_of_sequence" | "repeated") {
            assert_eq!(said["expected"], 7);
        }
    }
    sidecar.frames(7, 8).await;
    loop {
        let said = sidecar.hear().await;
        assert_eq!(said["type"], "ack");
        if said["seq"] == 8 {
            break;
        }
    }
    let sequences: Vec<u64> = doors.log.sequences().into_iter().map(|(_, s)| s).collect();
    assert_eq!(sequences, [1, 7, 8]);
    doors.close().await;
}

#[actix_web::test]
async fn a_token_opens_its_shard_while_it_lives() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let url = doors.url("atlantic");
    for (url, token, status) in [
        (&url, "", 401),
        (&url, "ft_0123456789ab.x", 401),
        (&url, &*stand.tokens[1], 401),
        (&doors.url("nowhere"), &*stand.tokens[0], 401),
    ] {
        assert_eq!(
            Sidecar::connect(url, token).await.err(),
            Some(status),
            "{token}"
        );
    }
    let http = url.replace("ws://", "http://");
    let plain = reqwest::Client::new()
        .get(&http)
        .bearer_auth(&stand.tokens[0])
        .send()
        .await
        .unwrap();
    assert_eq!(plain.status().as_u16(), 426);

    // The secret is exchanged: the old one lives for a while, a feed of it goes on.
    let client = stand.database.client().await;
    let (id, _) = stand.tokens[0].split_once('.').unwrap();
    let next = ApiKey::with_new_secret(id).unwrap();
    let mut old = doors.connect("atlantic", &stand.tokens[0]).await;
    old.hello("b1", 0).await;
    client
        .execute(
            "UPDATE shard_tokens SET previous_digest = secret_digest, previous_until = now() + interval '1 hour', secret_digest = $2
             WHERE token_id = $1",
            &[&id, &next.digest().as_slice()],
        )
        .await
        .unwrap();
    let mut new = loop {
        match Sidecar::connect(&url, &next.reveal()).await {
            Ok(sidecar) => break sidecar,
            Err(status) => assert_eq!(status, 401),
        }
    };
    old.frames(1, 1).await;
    old.acknowledged(1).await;
    assert_eq!(new.hello("b1", 0).await, 1);
    assert_eq!(old.ended().await.1, "taken_over");
    // It is revoked: the feed that it opened ends.
    client
        .execute(
            "UPDATE shard_tokens SET revoked_at = now() WHERE token_id = $1",
            &[&id],
        )
        .await
        .unwrap();
    let (_, code, _, close) = new.ended().await;
    assert_eq!((&*code, close), ("unauthenticated", 4401));
    assert_eq!(
        Sidecar::connect(&url, &next.reveal()).await.err(),
        Some(401)
    );
    let mut other = doors.connect("pacific", &stand.tokens[1]).await;
    other.hello("c1", 0).await;
    client
        .execute("UPDATE shards SET status = 'archived'", &[])
        .await
        .unwrap();
    let (_, code, _, close) = other.ended().await;
    assert_eq!((&*code, close), ("shard_archived", 4403));
    let again = Sidecar::connect(&doors.url("pacific"), &stand.tokens[1]).await;
    assert_eq!(again.err(), Some(403));
    doors.close().await;
}

#[actix_web::test]
async fn lines_are_answered_by_lines() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut body = String::from("{\"type\":\"hello\",\"protocol\":5,\"boot\":\"b1\"}\n");
    for seq in 1..=2_500 {
        let kind = if seq % 2 == 0 { "m.thing" } else { "other" };
        body.push_str(&format!("{}\n", frame(seq, kind)));
        if seq == 100 {
            // Longer than any frame: skipped without being kept, and answered.
            body.push_str(&format!(
                "{{\"seq\":101,\"x\":\"{}\n",
                "x".repeat(2 * MAX_FRAME_BYTES)
            ));
            body.push_str("rubbish\n\n");
        }
    }
    let url = doors.url("atlantic").replace("ws://", "http://");
    let answer = reqwest::Client::new()
        .post(&url)
        .bearer_auth(&stand.tokens[0])
        .body(body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let said: Vec<Value> = answer
        .text()
        .await
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    let types = |name: &str| said.iter().filter(|s| s["type"] == name).count();
    assert_eq!(said[0]["type"], "welcome");
    assert!(types("ack") >= 1 && types("ack") < 200, "{}", types("ack"));
    let last = said.last().unwrap();
    assert_eq!(
        (&last["type"], &last["code"], &last["seq"]),
        (&json!("bye"), &json!("end"), &json!(2_500))
    );
    let refused: Vec<(u64, &str)> = said
        .iter()
        .filter(|s| s["type"] == "refused")
        .map(|s| (s["seq"].as_u64().unwrap(), s["code"].as_str().unwrap()))
        .collect();
    // The long line took the number 101; the frame of that number came behind it.
    assert_eq!(
        refused,
        [
            (101, "frame_too_large"),
            (102, "not_json"),
            (101, "repeated")
        ]
    );
    assert_eq!(doors.log.count(), 1_250);
    // Again: it is told where to go on, and everything is known.
    let answer = reqwest::Client::new()
        .post(&url)
        .bearer_auth(&stand.tokens[0])
        .body("{\"type\":\"hello\",\"protocol\":5,\"boot\":\"b1\"}\n")
        .send()
        .await
        .unwrap();
    let text = answer.text().await.unwrap();
    assert!(text.contains("\"seq\":2500"), "{text}");
    doors.close().await;
}

/// However long it is, and in however many parts it comes: it is answered, and the feed goes on.
#[actix_web::test]
async fn a_message_of_any_length_is_answered_and_the_feed_goes_on() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    sidecar.hello("b1", 0).await;
    sidecar.frames(1, 2).await;
    // Its number stands at the end, where nobody reads it: it is its turn.
    let body = json!({"id": "t3", "x": "x".repeat(8 << 20)});
    let big = json!({"body": body, "kind": "m.thing", "seq": 3});
    sidecar.say(&big).await;
    let (seq, code, said) = sidecar.refused().await;
    assert_eq!((seq, &*code), (3, "frame_too_large"), "{said}");
    let detail = said["detail"].as_str().unwrap();
    assert!(
        detail.contains(&big.to_string().len().to_string()),
        "{said}"
    );
    // Its number stands at the beginning; it comes in parts of which each would be a frame.
    let part = "x".repeat(MAX_FRAME_BYTES - 64);
    let first = format!("{{\"seq\":4,\"kind\":\"m.thing\",\"x\":\"{part}");
    let parts = [first.as_str(), &part, "\"}"];
    for (n, part) in parts.iter().enumerate() {
        let code = if n == 0 { Data::Text } else { Data::Continue };
        let last = n + 1 == parts.len();
        let bytes = part.as_bytes().to_vec();
        let frame = Frame::message(bytes, OpCode::Data(code), last);
        sidecar.0.send(Message::Frame(frame)).await.unwrap();
        // What keeps a connection alive may stand between.
        sidecar
            .0
            .send(Message::Ping(bytes::Bytes::new()))
            .await
            .unwrap();
    }
    let (seq, code, said) = sidecar.refused().await;
    assert_eq!((seq, &*code), (4, "frame_too_large"), "{said}");
    sidecar
        .0
        .send(Message::binary(vec![0xff_u8; 8]))
        .await
        .unwrap();
    let (seq, code, said) = sidecar.refused().await;
    assert_eq!((seq, &*code), (5, "not_text"), "{said}");
    // In parts, and no longer than a frame may be.
    let text = frame(6, "m.thing").to_string();
    let (one, two) = text.split_at(5);
    for (part, code, last) in [(one, Data::Text, false), (two, Data::Continue, true)] {
        let bytes = part.as_bytes().to_vec();
        let part = Frame::message(bytes, OpCode::Data(code), last);
        sidecar.0.send(Message::Frame(part)).await.unwrap();
    }
    sidecar.frames(7, 7).await;
    sidecar.acknowledged(7).await;
    let sequences: Vec<u64> = doors.log.sequences().into_iter().map(|(_, s)| s).collect();
    assert_eq!(sequences, [1, 2, 6, 7]);
    doors.close().await;
}

/// Doors hold tokens for a while; one that they do not know is looked for in the store.
#[actix_web::test]
async fn a_token_made_a_moment_ago_opens_its_shard() {
    let stand = Stand::new().await;
    let doors = stand.doors_at_rest().await;
    let url = doors.url("atlantic");
    let token = ApiKey::generate_as("ft_").unwrap();
    let client = stand.database.client().await;
    client
        .execute(
            "INSERT INTO shard_tokens (token_id, workspace_id, shard_id, name, secret_digest, created_by)
             VALUES ($1, 1, 'atlantic', 'new', $2, 'test')",
            &[&token.id(), &token.digest().as_slice()],
        )
        .await
        .unwrap();
    // What has not even the form of a token is not worth a look.
    assert_eq!(Sidecar::connect(&url, "nonsense").await.err(), Some(401));
    let mut sidecar = doors.connect("atlantic", &token.reveal()).await;
    sidecar.hello("b1", 0).await;
    // One that the store does not know either stays refused, whether it was looked for or not.
    let stranger = ApiKey::generate_as("ft_").unwrap();
    for _ in 0..2 {
        let refused = Sidecar::connect(&url, &stranger.reveal()).await;
        assert_eq!(refused.err(), Some(401));
    }
    doors.close().await;
}
