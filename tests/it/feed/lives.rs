//! A feed from hello to goodbye, and what comes after: acknowledgement, replay, a second feed, a shutdown.

use super::{Sidecar, Stand, frame};
use futures::StreamExt;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::process::eventually;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

fn ascending(boot: &str, to: u64) -> Vec<(String, u64)> {
    (1..=to).map(|s| (boot.to_owned(), s)).collect()
}

#[actix_web::test]
async fn frames_are_acknowledged_in_bulk_once_the_log_has_them() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    assert_eq!(sidecar.hello("b1", 0).await, 0);
    doors.log.hold();
    sidecar.frames(1, 300).await;
    eventually("all of them are under way at once", PATIENCE, async || {
        Ok((doors.log.count() == 300).then_some(()))
    })
    .await
    .unwrap();
    // Nobody maps it: it is settled with the rest, and the log never sees it.
    sidecar.say(&frame(301, "other.thing")).await;
    let said = tokio::time::timeout(Duration::from_millis(50), sidecar.hear()).await;
    assert!(said.is_err(), "acknowledged before the log did: {said:?}");
    doors.log.release();
    sidecar.acknowledged(301).await;
    assert_eq!(doors.log.sequences(), ascending("b1", 300));
    let first = &doors.log.frames()[0];
    assert_eq!(
        (first.v, first.ws, first.shard.as_str(), first.key.as_str()),
        (1, 1, "atlantic", "t1")
    );
    assert_eq!(first.body.get(), r#"{"id":"t1","n":1}"#);
    drop(sidecar);
    let client = stand.database.client().await;
    eventually("counts and standing are written", PATIENCE, async || {
        let kinds = client
            .query(
                "SELECT kind, mapped, unmapped FROM shard_frames ORDER BY kind",
                &[],
            )
            .await?;
        let kinds: Vec<(String, i64, i64)> = kinds
            .iter()
            .map(|r| (r.get(0), r.get(1), r.get(2)))
            .collect();
        let feeds = client
            .query("SELECT boot, seq, connected FROM shard_feeds", &[])
            .await?;
        let feeds: Vec<(String, i64, bool)> = feeds
            .iter()
            .map(|r| (r.get(0), r.get(1), r.get(2)))
            .collect();
        let all = kinds == [("m.thing".into(), 300, 0), ("other.thing".into(), 0, 1)]
            && feeds == [("b1".into(), 301, false)];
        Ok(all.then_some(()))
    })
    .await
    .unwrap();
    doors.close().await;
}

#[actix_web::test]
async fn a_full_window_is_read_no_further() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    sidecar.hello("b1", 0).await;
    doors.log.hold();
    sidecar.frames(1, 3_000).await;
    let window = usize::try_from(millrace_schemas::frame::MAX_IN_FLIGHT).unwrap();
    eventually("the window fills", PATIENCE, async || {
        Ok((doors.log.count() > window - 100).then_some(()))
    })
    .await
    .unwrap();
    // A second feed of another shard is served meanwhile; when it is, the first has long stopped.
    let mut other = doors.connect("pacific", &stand.tokens[1]).await;
    other.hello("c1", 0).await;
    assert!(doors.log.count() < window, "{}", doors.log.count());
    doors.log.release();
    sidecar.acknowledged(3_000).await;
    assert_eq!(doors.log.sequences(), ascending("b1", 3_000));
    doors.close().await;
}

#[actix_web::test]
async fn a_replay_goes_on_where_the_log_ended() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    sidecar.hello("b1", 0).await;
    sidecar.frames(1, 50).await;
    sidecar.acknowledged(50).await;
    // Everything from the 61st on is lost, and said to be so.
    doors.log.fail_from(Some(60));
    sidecar.frames(51, 80).await;
    let ended = sidecar.ended().await;
    assert_eq!(
        ended,
        ("unavailable".into(), "log_unavailable".into(), 60, 1013)
    );
    doors.log.fail_from(None);
    // It heard nothing of it: it says what it knows, and is told better.
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    assert_eq!(sidecar.hello("b1", 50).await, 60);
    sidecar.frames(61, 80).await;
    sidecar.acknowledged(80).await;
    assert_eq!(doors.log.sequences(), ascending("b1", 80));
    // The shard restarts: on the same connection, and its numbers begin anew.
    assert_eq!(sidecar.hello("b2", 0).await, 0);
    sidecar.frames(1, 3).await;
    sidecar.acknowledged(3).await;
    // A sidecar that lost some says from where it goes on.
    assert_eq!(sidecar.hello("b2", 10).await, 10);
    sidecar.frames(11, 12).await;
    sidecar.acknowledged(12).await;
    assert_eq!(doors.log.count(), 85);
    doors.close().await;
    // Another process knows it from the store.
    let doors = stand.doors().await;
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    assert_eq!(sidecar.hello("b2", 0).await, 12);
    doors.close().await;
}

/// Those behind it are in the log, and are not acknowledged: it must come again.
#[actix_web::test]
async fn one_that_the_log_did_not_take_is_never_passed_over() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    sidecar.hello("b1", 0).await;
    doors.log.hold();
    doors.log.fail_at(9);
    sidecar.frames(1, 30).await;
    eventually("all but one are in the log", PATIENCE, async || {
        Ok((doors.log.count() == 29).then_some(()))
    })
    .await
    .unwrap();
    doors.log.release();
    let (kind, code, seq, _) = sidecar.ended().await;
    assert_eq!((&*kind, &*code, seq), ("unavailable", "log_unavailable", 9));
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    assert_eq!(sidecar.hello("b1", 9).await, 9);
    sidecar.frames(10, 30).await;
    sidecar.acknowledged(30).await;
    let mut seen: Vec<u64> = doors.log.sequences().into_iter().map(|s| s.1).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (1..=30).collect::<Vec<_>>());
    doors.close().await;
}

/// The log has them, and the answer is lost with the process: they are sent again, under the same numbers.
#[actix_web::test]
async fn what_was_acknowledged_to_nobody_comes_again_under_its_numbers() {
    use millrace_schemas::frame::ReplayWindow;
    let stand = Stand::new().await;
    let first = stand.doors().await;
    let mut sidecar = first.connect("atlantic", &stand.tokens[0]).await;
    sidecar.hello("b1", 0).await;
    sidecar.frames(1, 40).await;
    eventually("the log has them", PATIENCE, async || {
        Ok((first.log.count() == 40).then_some(()))
    })
    .await
    .unwrap();
    drop(sidecar);
    let logged = first.log.sequences();
    first.close().await;
    // As after a crash: what was not yet written down is not there.
    let client = stand.database.client().await;
    client
        .execute("UPDATE shard_feeds SET seq = 0", &[])
        .await
        .unwrap();
    let second = stand.doors().await;
    let mut sidecar = second.connect("atlantic", &stand.tokens[0]).await;
    assert_eq!(sidecar.hello("b1", 0).await, 0);
    sidecar.frames(1, 60).await;
    sidecar.acknowledged(60).await;
    let mut window = ReplayWindow::default();
    let both = logged.into_iter().chain(second.log.sequences());
    let new = both.filter(|(boot, seq)| window.admit(boot, *seq)).count();
    assert_eq!(new, 60, "duplicates are known by their numbers");
    second.close().await;
}

#[actix_web::test]
async fn a_second_feed_takes_over_and_the_first_is_told() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut first = doors.connect("atlantic", &stand.tokens[0]).await;
    first.hello("b1", 0).await;
    doors.log.hold();
    first.frames(1, 20).await;
    eventually("they are under way", PATIENCE, async || {
        Ok((doors.log.count() == 20).then_some(()))
    })
    .await
    .unwrap();
    let mut second = doors.connect("atlantic", &stand.tokens[0]).await;
    let hello = json!({"type": "hello", "protocol": 5, "boot": "b1", "seq": 0});
    second.say(&hello).await;
    // The first is read no more; what it had under way is waited for, so that nothing is asked for twice.
    let early = tokio::time::timeout(Duration::from_millis(50), second.hear()).await;
    assert!(early.is_err(), "{early:?}");
    doors.log.release();
    let (kind, code, seq, close) = first.ended().await;
    assert_eq!(
        (&*kind, &*code, seq, close),
        ("bye", "taken_over", 20, 4409)
    );
    let said = second.hear().await;
    assert_eq!(
        (&said["type"], &said["seq"]),
        (&json!("welcome"), &json!(20))
    );
    // One of another process is told as well, within its next look.
    let others = stand.doors().await;
    let mut third = others.connect("atlantic", &stand.tokens[0]).await;
    third.hello("b1", 20).await;
    assert_eq!(second.ended().await.1, "taken_over");
    third.frames(21, 21).await;
    third.acknowledged(21).await;
    others.close().await;
    doors.close().await;
}

#[actix_web::test]
async fn a_shutdown_awaits_the_log_and_says_goodbye() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let mut sidecar = doors.connect("atlantic", &stand.tokens[0]).await;
    sidecar.hello("b1", 0).await;
    doors.log.hold();
    sidecar.frames(1, 20).await;
    eventually("they are under way", PATIENCE, async || {
        Ok((doors.log.count() == 20).then_some(()))
    })
    .await
    .unwrap();
    let state = doors.state.clone();
    let ending = actix_rt::spawn(async move { state.end_feeds(PATIENCE).await });
    // No new one is let in.
    eventually("new feeds are refused", PATIENCE, async || {
        let new = Sidecar::connect(&doors.url("pacific"), &stand.tokens[1]).await;
        Ok((new.err() == Some(503)).then_some(()))
    })
    .await
    .unwrap();
    assert!(!ending.is_finished());
    doors.log.release();
    let (kind, code, seq, close) = sidecar.ended().await;
    assert_eq!((&*kind, &*code, seq, close), ("bye", "shutdown", 20, 1001));
    ending.await.unwrap();
    let row = stand
        .database
        .client()
        .await
        .query_one("SELECT seq, connected FROM shard_feeds", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (20, false));
    doors.close().await;
}

/// How the time between goes is the engine's own test, whose time passes by itself.
#[actix_web::test]
async fn a_silent_socket_is_asked_and_a_silent_request_is_ended() {
    let stand = Stand::new().await;
    let doors = stand
        .doors_with(Duration::from_millis(900), Duration::from_secs(30))
        .await;
    // Whatever is slow here: the door asks before it ends anything.
    let mut quiet = doors.connect("atlantic", &stand.tokens[0]).await;
    quiet.hello("b1", 0).await;
    let asked = tokio::time::timeout(PATIENCE, quiet.0.next())
        .await
        .unwrap();
    assert!(matches!(asked, Some(Ok(Message::Ping(_)))), "{asked:?}");
    drop(quiet);

    // The hello in one piece with its request, so that nothing comes behind the end; the body never ends.
    let address = doors.base.trim_start_matches("ws://").to_owned();
    let mut silent = tokio::net::TcpStream::connect(&address).await.unwrap();
    let hello = "{\"type\":\"hello\",\"protocol\":5,\"boot\":\"c1\"}\n";
    let request = format!(
        "POST /feed/pacific HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{hello}\r\n",
        stand.tokens[1],
        hello.len()
    );
    silent.write_all(request.as_bytes()).await.unwrap();
    let mut said = String::new();
    while !said.contains(r#""code":"idle""#) {
        let mut bytes = [0; 4_096];
        let read = tokio::time::timeout(PATIENCE, silent.read(&mut bytes))
            .await
            .unwrap()
            .unwrap();
        assert!(read > 0, "it closed without a goodbye: {said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    assert!(said.contains(r#""type":"bye""#), "{said}");
    doors.close().await;
}
