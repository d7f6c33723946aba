//! The doors themselves, on a log in memory: what comes in is answered without a fault of the server's, and whatever was
//! produced is read, with the key it must have, by the actor on the other side.

use super::records::{NOW, actor, topic};
use crate::memory_log::MemoryLog;
use actix_web::body::to_bytes;
use actix_web::dev::ServiceResponse;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode, Uri};
use actix_web::test::{TestRequest, init_service, try_call_service};
use actix_web::{App, Error};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use millrace::ingress::compile::{self, CampaignRow, NetworkRow, OfferRow, Snapshot, Workspace};
use millrace::ingress::disk::DiskWatch;
use millrace::ingress::feed::FeedSetup;
use millrace::ingress::feed::admission::{FeedToken, Shard};
use millrace::ingress::feed::kinds::Mapped;
use millrace::ingress::keys::{KeyCheck, KeyError, KeyHolder};
use millrace::ingress::server::configure;
use millrace::ingress::snapshot::SnapshotHandle;
use millrace::ingress::state::{DoorSetup, DoorState};
use millrace::runtime::clock::ManualClock;
use millrace::runtime::vertical::Vertical;
use millrace::settings::Http;
use millrace_schemas::click::ClickRecord;
use millrace_schemas::frame::{Frame, ReplayWindow};
use millrace_schemas::ids::partition_key;
use millrace_schemas::postback::{PostbackRecord, query_pairs};
use millrace_topics::catalogue::{CLICKS, FRAMES, POSTBACKS};
use millrace_topics::contract::{BoxFuture, Outgoing};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One key that opens the batch doors.
struct OneKey;

impl KeyCheck for OneKey {
    fn check<'a>(
        &'a self,
        bearer: &'a str,
        _: Option<IpAddr>,
    ) -> BoxFuture<'a, Result<KeyHolder, KeyError>> {
        let answer = match bearer {
            "good" => Ok(KeyHolder {
                key_id: "rk_x".into(),
                workspace: Some(1),
                may_ingest: true,
            }),
            _ => Err(KeyError::Unauthenticated),
        };
        Box::pin(async move { answer })
    }
}

/// One workspace with a campaign `camp`, and the network `nw_1` whose secret is `s3cret`.
fn snapshot() -> Snapshot {
    let offer = OfferRow {
        workspace: 1,
        url_template: "https://o.example/?c={click_id}&v={visit_id}&r={ref}&s={sub1}&x={theirs}"
            .into(),
        network: Some("nw_1".into()),
        payout: Some("2.5".parse().expect("a decimal")),
        currency: "USD".into(),
    };
    let offers = [("of_1".to_owned(), offer)].into();
    let row = CampaignRow {
        id: "camp".into(),
        workspace: 1,
        name: "Spring & Sale".into(),
        reference: Some("REF".into()),
        routing: r#"{"offers":[{"offer":"of_1"}]}"#.into(),
        active: true,
    };
    let campaign = compile::campaign(row, true, &offers).expect("its routing reads");
    let network = Arc::new(compile::network(NetworkRow {
        id: "nw_1".into(),
        workspace: 1,
        status_words: r#"{"paid":"approved"}"#.into(),
        comma_decimals: true,
        currency_signs: true,
        reversals: false,
    }));
    let mut out = Snapshot::default();
    out.workspaces.insert(
        1,
        Workspace {
            slug: "acme".into(),
            store_ip: true,
        },
    );
    out.campaigns.insert("camp".into(), Arc::new(campaign));
    out.networks_by_digest
        .insert(Sha256::digest(b"s3cret").into(), Arc::clone(&network));
    out.networks.insert("nw_1".into(), network);
    let shard = Shard {
        workspace: 1,
        id: "shard".into(),
        module: "game".into(),
        protocol: 5,
        active: true,
    };
    out.shards.insert((1, "shard".into()), shard);
    let token = FeedToken {
        shard: (1, "shard".into()),
        digest: Sha256::digest(FEED_SECRET).into(),
        previous: None,
    };
    out.feed_tokens.insert(FEED_TOKEN.into(), token);
    out
}

/// The token of the shard's feed.
const FEED_TOKEN: &str = "ft_0123456789ab";
const FEED_SECRET: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

type Call = Box<dyn Fn(TestRequest) -> LocalBoxFuture<'static, Result<ServiceResponse, Error>>>;

/// The doors of this thread.
struct House {
    system: actix_rt::SystemRunner,
    call: Call,
    log: Arc<MemoryLog>,
}

impl House {
    fn new() -> House {
        let log = Arc::new(MemoryLog::default());
        let held = SnapshotHandle::empty(Duration::from_secs(1 << 30));
        held.put(snapshot(), Instant::now());
        let state = DoorState::new(DoorSetup {
            producer: log.clone(),
            clicks: topic(1, CLICKS),
            postbacks: topic(2, POSTBACKS),
            snapshot: held,
            keys: Arc::new(OneKey),
            clock: ManualClock::at(NOW),
            http: Http {
                max_body: 1_500,
                trusted_proxies: vec!["10.0.0.0/8".into()],
                ..Http::default()
            },
            ack_timeout: Duration::from_secs(60),
            disk: Arc::<DiskWatch>::default(),
            feed: FeedSetup {
                frames: Some(topic(3, FRAMES)),
                kinds: Arc::new(|_, kind, body| match kind.len() {
                    0..=8 => Mapped::No,
                    _ => Mapped::Under(body.chars().take(40).collect()),
                }),
                ..FeedSetup::off()
            },
            stopped: Arc::new(Vec::new),
            metrics: None,
        })
        .expect("the settings read");
        let system = actix_rt::System::new();
        let service = Rc::new(system.block_on(init_service(
            App::new().configure(move |config| configure(config, &state)),
        )));
        let call: Call = Box::new(move |request| {
            let service = Rc::clone(&service);
            Box::pin(async move { try_call_service(&*service, request.to_request()).await })
        });
        House { system, call, log }
    }

    fn ask(&self, request: TestRequest) -> (StatusCode, Bytes, Vec<Outgoing>) {
        let request = request.peer_addr(([10, 0, 0, 1], 4711).into());
        let (status, body) = self.system.block_on(async {
            let response = (self.call)(request).await.expect("it answers");
            let status = response.status();
            let body = to_bytes(response.into_body()).await;
            (status, body.unwrap_or_default())
        });
        assert!(
            !status.is_server_error(),
            "{status}: {}",
            String::from_utf8_lossy(&body)
        );
        if status.is_client_error() && status != StatusCode::NOT_FOUND {
            let said: serde_json::Value = serde_json::from_slice(&body).expect("a reason in JSON");
            assert!(
                said["code"].is_string() && said["detail"].is_string(),
                "{said}"
            );
        }
        (status, body, self.log.take())
    }
}

fn house<T>(ask: impl FnOnce(&House) -> T) -> T {
    thread_local! {
        // Never taken down: actix's own thread-locals may be gone by then.
        static HOUSE: &'static House = Box::leak(Box::new(House::new()));
    }
    HOUSE.with(|house| ask(house))
}

/// What any door may produce: the actor reads it, it is of the workspace, under the key of its click, without a NUL.
fn check_produced(record: &Outgoing) {
    let text = String::from_utf8_lossy(&record.payload);
    let name = if record.topic_no == 1 {
        CLICKS
    } else {
        POSTBACKS
    };
    assert!(
        actor()
            .decode(&topic(record.topic_no, name), &record.payload)
            .is_ok(),
        "{text}"
    );
    assert!(!has_nul(&record.payload), "{text}");
    let key = String::from_utf8_lossy(&record.key);
    assert!(key.starts_with("1:"), "{key}");
    if record.topic_no == 1 {
        let read: ClickRecord = serde_json::from_slice(&record.payload).expect("a click record");
        assert_eq!(read.check(), Ok(()), "{text}");
        assert_eq!(key, partition_key(1, &read.click_id));
    } else {
        let read: PostbackRecord = serde_json::from_slice(&record.payload).expect("a postback");
        assert!(
            query_pairs(&read.query).all(|(name, _)| name != "secret"),
            "{text}"
        );
    }
}

/// Whether a JSON text escapes a NUL, looked for in another way than the doors do.
fn has_nul(json: &[u8]) -> bool {
    let value: serde_json::Value = serde_json::from_slice(json).expect("JSON");
    let mut left = vec![&value];
    while let Some(value) = left.pop() {
        match value {
            serde_json::Value::String(text) if text.contains('\0') => return true,
            serde_json::Value::Array(items) => left.extend(items),
            serde_json::Value::Object(members) => {
                if members.keys().any(|name| name.contains('\0')) {
                    return true;
                }
                left.extend(members.values());
            }
            _ => {}
        }
    }
    false
}

/// The first line is a query; each further line is a header.
fn request(method: Method, path: &str, data: &[u8]) -> Option<TestRequest> {
    let mut lines = data.split(|b| *b == b'\n');
    let query = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    // What is no URI never comes as far as a door.
    let uri = Uri::try_from(format!("{path}?{query}")).ok()?;
    let mut request = TestRequest::with_uri(&uri.to_string()).method(method);
    for line in lines.take(20) {
        let mut parts = line.splitn(2, |b| *b == b':');
        let name = HeaderName::from_bytes(parts.next()?).ok()?;
        let value = HeaderValue::from_bytes(parts.next().unwrap_or_default()).ok()?;
        request = request.append_header((name, value));
    }
    Some(request)
}

pub(super) fn visit(data: &[u8]) {
    let Some(request) = request(Method::GET, "/c/camp", data) else {
        return;
    };
    house(|house| {
        let (status, _, produced) = house.ask(request);
        assert_eq!(status == StatusCode::FOUND, produced.len() == 1, "{status}");
        produced.iter().for_each(check_produced);
    });
}

/// Lines of a feed, behind a hello or not.
pub(super) fn feed(data: &[u8]) {
    let (begun, data) = super::choice(data, 2);
    let mut body = Vec::new();
    if begun == 1 {
        body.extend_from_slice(b"{\"type\":\"hello\",\"protocol\":5,\"boot\":\"b\"}\n");
    }
    body.extend_from_slice(data);
    let request = TestRequest::post()
        .uri("/feed/shard")
        .insert_header((
            "authorization",
            format!("Bearer {FEED_TOKEN}.{FEED_SECRET}"),
        ))
        .set_payload(body);
    house(|house| {
        let (status, said, produced) = house.ask(request);
        assert_eq!(status, StatusCode::OK);
        let answers: Vec<serde_json::Value> = said
            .split(|b| *b == b'\n')
            .filter(|l| !l.is_empty())
            .map(|l| serde_json::from_slice(l).expect("an answer is JSON"))
            .collect();
        for answer in &answers {
            let kind = answer["type"].as_str().expect("a type");
            assert!(
                matches!(kind, "welcome" | "ack" | "refused" | "bye"),
                "{answer}"
            );
            assert!(answer["seq"].is_u64(), "{answer}");
        }
        let last = answers.last().expect("a goodbye");
        assert!(last["type"] == "bye" && last["code"] == "end", "{last}");
        let mut window = ReplayWindow::default();
        for record in &produced {
            let frame: Frame = serde_json::from_slice(&record.payload).expect("a frame");
            assert_eq!((record.topic_no, frame.ws, &*frame.shard), (3, 1, "shard"));
            assert_eq!(record.key, frame.log_key().as_bytes());
            assert!(!has_nul(&record.payload));
            assert!(frame.body.get().starts_with('{'));
            // Each boot's frames once, unless the sender said hello again and took its word back.
            let _ = window.admit(&frame.boot, frame.seq);
        }
    });
}

pub(super) fn postback(data: &[u8]) {
    let (form, data) = super::choice(data, 4);
    let method = if form & 1 == 1 {
        Method::POST
    } else {
        Method::GET
    };
    let path = if form & 2 == 2 {
        "/pb"
    } else {
        "/pb?secret=s3cret&"
    };
    let request = match path.strip_suffix("?secret=s3cret&") {
        Some(path) => {
            let with = [b"secret=s3cret&", data].concat();
            request(method, path, &with)
        }
        None => request(method, path, data),
    };
    let Some(request) = request else { return };
    house(|house| {
        let (status, body, produced) = house.ask(request);
        match status {
            StatusCode::OK => assert_eq!((&body[..], produced.len()), (&b"1"[..], 1)),
            StatusCode::BAD_REQUEST => assert_eq!(produced.len(), 1, "kept all the same"),
            _ => assert!(produced.is_empty(), "{status}"),
        }
        for record in &produced {
            check_produced(record);
            let read: PostbackRecord = serde_json::from_slice(&record.payload).expect("a postback");
            assert_eq!(read.read().is_ok(), status == StatusCode::OK);
        }
    });
}

pub(super) fn beacon(data: &[u8]) {
    let request = TestRequest::post().uri("/e").set_payload(data.to_vec());
    house(|house| {
        let (status, _, produced) = house.ask(request);
        assert_eq!(
            status == StatusCode::NO_CONTENT,
            produced.len() == 1,
            "{status}"
        );
        produced.iter().for_each(check_produced);
    });
}

pub(super) fn batch_visits(data: &[u8]) {
    batch("/v1/batch/visits", data);
}

pub(super) fn batch_clicks(data: &[u8]) {
    batch("/v1/batch/clicks", data);
}

pub(super) fn batch_postbacks(data: &[u8]) {
    batch("/v1/batch/postbacks", data);
}

fn batch(path: &str, data: &[u8]) {
    let request = TestRequest::post()
        .uri(path)
        .insert_header(("authorization", "Bearer good"))
        .set_payload(data.to_vec());
    house(|house| {
        let (status, body, produced) = house.ask(request);
        produced.iter().for_each(check_produced);
        if status == StatusCode::OK {
            let said: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(said["accepted"].as_u64(), Some(produced.len() as u64));
            for line in said["lines"].as_array().expect("lines") {
                let accepted = line["status"] == "accepted";
                assert_eq!(accepted, line.get("error").is_none(), "{line}");
            }
        } else {
            assert!(produced.is_empty(), "{status}");
        }
        if path.ends_with("postbacks") {
            for record in &produced {
                let read: PostbackRecord = serde_json::from_slice(&record.payload).expect("reads");
                assert!(read.read().is_ok(), "accepted, and can never be booked");
            }
        }
    });
}
