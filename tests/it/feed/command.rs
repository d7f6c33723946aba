//! `millrace feed send` against real doors.

use super::Stand;
use super::session::path;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::process::{Launch, Scratch, eventually};
use millrace_tests::proxy::{Protocol, Proxy};
use std::collections::BTreeSet;

#[actix_web::test]
async fn a_recording_is_sent_once_however_often_the_connection_is_cut() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let scratch = Scratch::new("feed-send").unwrap();
    // Kinds of the doors of this test, three boots.
    let mut text = String::new();
    for (boot, frames) in [("a", 3_000), ("b", 5), ("c", 2_000)] {
        text.push_str(&format!(
            "{{\"type\":\"hello\",\"protocol\":5,\"boot\":\"{boot}\"}}\n"
        ));
        for seq in 1..=frames {
            text.push_str(&format!("{}\n", super::frame(seq, "m.thing")));
        }
    }
    let file = scratch.path().join("session.ndjson");
    std::fs::write(&file, text).unwrap();
    let target = doors.base.trim_start_matches("ws://").parse().unwrap();
    let proxy = Proxy::start(target, Protocol::Opaque).unwrap();
    let url = format!("http://{}/feed/atlantic", proxy.address());
    let send = |name: &str, more: &[&str]| {
        Launch::product(name, scratch.path())
            .unwrap()
            .args(["--json", "feed", "send"])
            .arg(&file)
            .args(["--url", &url])
            .args(more.iter().copied())
            .env("MILLRACE_FEED_TOKEN", &stand.tokens[0])
    };
    let mut sender = send("first", &["--rate", "4000"]).spawn().unwrap();
    for cut_at in [500, 2_000, 3_500] {
        eventually("it sends", PATIENCE, async || {
            if let Some(status) = sender.ended() {
                anyhow::bail!("{status}: {}", sender.last_words(20));
            }
            Ok((doors.log.count() > cut_at).then_some(()))
        })
        .await
        .unwrap();
        proxy.cut();
    }
    let status = sender.wait(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", sender.last_words(20));
    let all = doors.log.sequences();
    let different: BTreeSet<_> = all.iter().cloned().collect();
    assert_eq!(different.len(), 5_005);
    assert_eq!(all.len(), 5_005, "the doors told where to go on");
    // Whatever is known is not sent again: all of the last boot, and of earlier ones nothing is known any more.
    let mut none = send("rate", &["--rate", "0"]).spawn().unwrap();
    assert_eq!(none.wait(PATIENCE).await.unwrap().code(), Some(2));
    doors.close().await;
}

#[actix_web::test]
async fn who_cannot_send_is_told_why() {
    let stand = Stand::new().await;
    let doors = stand.doors().await;
    let scratch = Scratch::new("feed-refused").unwrap();
    let run = async |name: &str, file: &std::path::Path, token: &str| {
        let mut process = Launch::product(name, scratch.path())
            .unwrap()
            .args(["feed", "send"])
            .arg(file)
            .args(["--url", &doors.url("atlantic"), "--token", token])
            .spawn()
            .unwrap();
        let code = process.wait(PATIENCE).await.unwrap().code();
        (code, process.last_words(30))
    };
    let (code, said) = run("unknown", &path(), &stand.tokens[1]).await;
    assert!(code == Some(1) && said.contains("401"), "{said}");
    let other = scratch.path().join("protocol.ndjson");
    let text = "{\"type\":\"hello\",\"protocol\":4,\"boot\":\"a\"}\n{\"seq\":1,\"kind\":\"k\",\"body\":{}}\n";
    std::fs::write(&other, text).unwrap();
    let (code, said) = run("protocol", &other, &stand.tokens[0]).await;
    assert!(
        code == Some(1) && said.contains("of protocol 5") && said.contains("of 4"),
        "{said}"
    );
    let none = scratch.path().join("none.ndjson");
    std::fs::write(&none, "{\"seq\":1}\n").unwrap();
    let (code, said) = run("none", &none, &stand.tokens[0]).await;
    assert!(code == Some(2) && said.contains("line 1"), "{said}");
    let refused = scratch.path().join("refused.ndjson");
    let text = "{\"type\":\"hello\",\"protocol\":5,\"boot\":\"a\"}\n{\"seq\":1,\"kind\":\"\",\"body\":{}}\n{\"seq\":2,\"kind\":\"m.x\",\"body\":{}}\n";
    std::fs::write(&refused, text).unwrap();
    let (code, said) = run("refused", &refused, &stand.tokens[0]).await;
    assert!(code == Some(1) && said.contains("kind_malformed"), "{said}");
    assert_eq!(doors.log.count(), 1);
    // The demonstration's own: no module is enabled here that maps its kinds.
    let (code, said) = run("demo", &path(), &stand.tokens[0]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(doors.log.count(), 1);
    doors.close().await;
}
