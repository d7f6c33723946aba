//! The receivers of the proving ground do as they are told.

use millrace_tests::receivers::{Answer, Receiver};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn post(receiver: &Receiver, body: &str) -> String {
    let url = receiver.url("");
    let mut socket = tokio::net::TcpStream::connect(url.trim_start_matches("http://"))
        .await
        .unwrap();
    let request = format!(
        "POST /hook?a=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn answers_follow_the_script_and_requests_are_kept() {
    let receiver = Receiver::start().unwrap();
    let busy = Answer {
        headers: vec![("retry-after".into(), "7".into())],
        body: "busy".into(),
        ..Answer::status(503)
    };
    receiver.script([busy]);
    let first = post(&receiver, "one").await;
    assert!(first.starts_with("HTTP/1.1 503"), "{first}");
    assert!(
        first.contains("retry-after: 7") && first.ends_with("busy"),
        "{first}"
    );
    assert!(post(&receiver, "two").await.starts_with("HTTP/1.1 200"));
    let all = receiver.wait_for(2, Duration::from_secs(5)).await.unwrap();
    assert_eq!(all[0].body, "one");
    assert_eq!((&*all[1].method, &*all[1].target), ("POST", "/hook?a=1"));
}
