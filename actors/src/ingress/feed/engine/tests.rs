//! What a silent feed gets, in a time that passes only while everybody waits: no machine is too slow for it.

use super::*;
use crate::api::keys::ApiKey;
use crate::ingress::feed::admission::{FeedToken, Shard, TOKEN_PREFIX, admit};
use crate::ingress::snapshot::SnapshotHandle;
use crate::ingress::tests::{House, snapshot};
use actix_web::test::TestRequest;
use millrace_schemas::time::Micros;
use std::cell::RefCell;

/// The other end: says what it is given, answers so many pings, and is silent.
struct Scripted {
    gots: VecDeque<Got>,
    answers: usize,
    /// What the door said, pings and the close with it.
    heard: Rc<RefCell<Vec<String>>>,
}

impl Carrier for Scripted {
    async fn next(&mut self) -> Got {
        match self.gots.pop_front() {
            Some(got) => got,
            None => std::future::pending().await,
        }
    }

    async fn say(&mut self, text: String) -> bool {
        let said: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let word = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        let said = format!("{} {}", word("type"), word("code"));
        self.heard.borrow_mut().push(said.trim().to_owned());
        true
    }

    async fn ping(&mut self) -> bool {
        self.heard.borrow_mut().push("ping".to_owned());
        if self.answers > 0 {
            self.answers -= 1;
            self.gots.push_back(Got::Heard);
        }
        true
    }

    async fn close(self, _: CloseCode, reason: &'static str) {
        self.heard.borrow_mut().push(format!("close {reason}"));
    }
}

/// Runs a feed that says hello and then answers so many pings; what it heard, and how long it lived.
async fn lived(answers: usize) -> (Vec<String>, Duration) {
    let key = ApiKey::generate_as(TOKEN_PREFIX).expect("random bytes");
    let mut held = snapshot();
    let shard = Shard {
        workspace: 1,
        id: "atlantic".into(),
        module: "game".into(),
        protocol: 5,
        active: true,
    };
    held.shards.insert((1, "atlantic".into()), shard);
    let token = FeedToken {
        shard: (1, "atlantic".into()),
        digest: key.digest(),
        previous: None,
    };
    held.feed_tokens.insert(key.id().into(), token);
    let request = TestRequest::default()
        .insert_header(("authorization", format!("Bearer {}", key.reveal())))
        .to_http_request();
    let admitted = admit(&held, &request, "atlantic", Micros(0))
        .map_err(|refusal| refusal.code)
        .expect("let in");
    let handle = SnapshotHandle::empty(Duration::from_secs(600));
    handle.put(held, std::time::Instant::now());
    let house = House::on(handle, Arc::default());
    let door = Door::new(&house.state, "feed");
    let heard = Rc::new(RefCell::new(Vec::new()));
    let hello = r#"{"type":"hello","protocol":5,"boot":"b1"}"#;
    let carrier = Scripted {
        gots: VecDeque::from([Got::Text(Bytes::from_static(hello.as_bytes()))]),
        answers,
        heard: Rc::clone(&heard),
    };
    let feeds = Arc::clone(&door.shared.feeds);
    let begun = Instant::now();
    run(door, feeds, admitted, carrier).await;
    (heard.take(), begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_silent_feed_is_asked_and_then_ended() {
    // What `FeedSetup::off` says.
    let idle = Duration::from_secs(60);
    for answers in [0, 1, 5] {
        let (heard, lasted) = lived(answers).await;
        let pings = heard.iter().filter(|h| *h == "ping").count();
        assert_eq!(heard.first().map(String::as_str), Some("welcome"));
        assert!(heard.ends_with(&["bye idle".to_owned(), "close idle".to_owned()]));
        assert_eq!(heard.len(), pings + 3, "nothing else: {heard:?}");
        // Each answer keeps it for a third of the time more; nobody is ended without having been asked.
        assert_eq!(pings, answers + 2, "{heard:?}");
        let kept = idle + idle / 3 * u32::try_from(answers).expect("few");
        assert!(lasted >= kept, "{lasted:?} after {answers} answers");
    }
}
