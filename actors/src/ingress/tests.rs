//! The doors over actix's own test service, with a log in memory: what each kind of input gets, and what is produced.

mod batches;
mod fuzz;
mod refusals;

use super::compile::{self, CampaignRow, NetworkRow, OfferRow, Snapshot, Workspace};
use super::disk::DiskWatch;
use super::keys::{KeyCheck, KeyError, KeyHolder};
use super::server::configure;
use super::snapshot::SnapshotHandle;
use super::state::{DoorSetup, DoorState};
use crate::runtime::clock::ManualClock;
use crate::settings::Http;
use actix_web::body::to_bytes;
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::test::{TestRequest, init_service};
use actix_web::{App, Error};
use bytes::Bytes;
use millrace_schemas::click::{ClickRecord, Kind};
use millrace_schemas::ids;
use millrace_schemas::postback::PostbackRecord;
use millrace_schemas::time::Micros;
use millrace_topics::contract::{
    Acknowledgement, BoxFuture, Outgoing, Position, ProduceError, Producer, TopicRef,
};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// 2026-01-01T00:00:00Z
const NOW: Micros = Micros(1_767_225_600_000_000);

/// How the log in memory answers.
#[derive(Clone)]
enum Answer {
    Acknowledge,
    Fail(ProduceError),
    /// The n-th record (from 0) and all after it are not acknowledged.
    FailFrom(usize),
    Never,
}

/// A log in memory.
struct MemoryLog {
    records: Mutex<Vec<Outgoing>>,
    answer: Mutex<Answer>,
    kept: Mutex<Vec<oneshot::Sender<Result<Position, ProduceError>>>>,
}

impl Producer for MemoryLog {
    fn produce(&self, record: Outgoing) -> Acknowledgement {
        let (sender, receiver) = oneshot::channel();
        let mut records = self.records.lock().expect("lock");
        let position = Ok(Position {
            partition: 0,
            offset: 0,
        });
        let _ = match self.answer.lock().expect("lock").clone() {
            Answer::Acknowledge => sender.send(position),
            Answer::Fail(error) => sender.send(Err(error)),
            Answer::FailFrom(n) if records.len() >= n => {
                sender.send(Err(ProduceError::Unavailable("away".into())))
            }
            Answer::FailFrom(_) => sender.send(position),
            Answer::Never => {
                self.kept.lock().expect("lock").push(sender);
                Ok(())
            }
        };
        records.push(record);
        receiver
    }

    fn health(&self, _: Duration) -> BoxFuture<'_, Result<(), String>> {
        let answer = self.answer.lock().expect("lock").clone();
        Box::pin(async move {
            match answer {
                Answer::Acknowledge => Ok(()),
                _ => Err("away".into()),
            }
        })
    }

    fn close(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Keys by name.
struct NamedKeys;

impl KeyCheck for NamedKeys {
    fn check<'a>(
        &'a self,
        bearer: &'a str,
        _: Option<IpAddr>,
    ) -> BoxFuture<'a, Result<KeyHolder, KeyError>> {
        let holder = |workspace, may_ingest| {
            Ok(KeyHolder {
                key_id: "rk_x".into(),
                workspace,
                may_ingest,
            })
        };
        let answer = match bearer {
            "good" => holder(Some(1), true),
            "other" => holder(Some(2), true),
            "archived" => holder(Some(3), true),
            "narrow" => holder(Some(1), false),
            "deployment" => holder(None, true),
            "away" => Err(KeyError::Unavailable),
            "elsewhere" => Err(KeyError::AddressRefused),
            _ => Err(KeyError::Unauthenticated),
        };
        Box::pin(async move { answer })
    }
}

fn offer(url: &str) -> OfferRow {
    OfferRow {
        workspace: 1,
        url_template: url.into(),
        network: Some("nw_1".into()),
        payout: Some("2.5".parse().expect("decimal")),
        currency: "USD".into(),
    }
}

/// Two workspaces; campaigns `camp` (of the first), `paused`, `empty`, and `theirs` (of the second); network `nw_1`.
fn snapshot() -> Snapshot {
    let offers = [(
        "of_1".to_owned(),
        offer("https://offer.example/?c={click_id}&v={visit_id}&r={ref}&n={campaign_name}&s={sub1}&u={utm_term}&x={theirs}"),
    )]
    .into();
    let mut out = Snapshot::default();
    for (number, slug, store_ip) in [(1, "acme", true), (2, "other", false)] {
        out.workspaces.insert(
            number,
            Workspace {
                slug: slug.into(),
                store_ip,
            },
        );
    }
    for (id, workspace, routing, active) in [
        ("camp", 1, r#"{"offers":[{"offer":"of_1"}]}"#, true),
        ("paused", 1, r#"{"offers":[{"offer":"of_1"}]}"#, false),
        ("empty", 1, r#"{"offers":[{"offer":"gone"}]}"#, true),
        ("theirs", 2, r#"{"offers":[]}"#, true),
    ] {
        let row = CampaignRow {
            id: id.into(),
            workspace,
            name: "Spring & Sale".into(),
            reference: Some("REF".into()),
            routing: routing.into(),
            active,
        };
        let campaign = compile::campaign(row, workspace == 1, &offers).expect("routing reads");
        out.campaigns.insert(id.into(), Arc::new(campaign));
    }
    let network = Arc::new(compile::network(NetworkRow {
        id: "nw_1".into(),
        workspace: 1,
        status_words: r#"{"paid":"approved"}"#.into(),
        comma_decimals: false,
        currency_signs: false,
        reversals: false,
    }));
    out.networks_by_digest
        .insert(Sha256::digest(b"s3cret+/").into(), Arc::clone(&network));
    out.networks.insert("nw_1".into(), network);
    out
}

/// Doors on a log in memory.
struct House {
    log: Arc<MemoryLog>,
    state: DoorState,
}

impl House {
    fn new() -> House {
        let held = SnapshotHandle::empty(Duration::from_secs(600));
        held.put(snapshot(), Instant::now());
        House::on(held, Arc::default())
    }

    fn on(held: Arc<SnapshotHandle>, disk: Arc<DiskWatch>) -> House {
        let log = Arc::new(MemoryLog {
            records: Mutex::default(),
            answer: Mutex::new(Answer::Acknowledge),
            kept: Mutex::default(),
        });
        let topic = |no, name: &str| TopicRef {
            no,
            name: name.into(),
            log_name: name.into(),
            partitions: 8,
        };
        let state = DoorState::new(DoorSetup {
            producer: log.clone(),
            clicks: topic(1, "clicks"),
            postbacks: topic(2, "postbacks"),
            snapshot: held,
            keys: Arc::new(NamedKeys),
            clock: ManualClock::at(NOW),
            http: Http {
                max_body: 1_000,
                max_batch_body: 20_000,
                ..Http::default()
            },
            ack_timeout: Duration::from_millis(50),
            disk,
            stopped: Arc::new(|| vec!["attribution/3: poison".into()]),
            metrics: None,
        })
        .expect("settings read");
        House { log, state }
    }

    fn answers(&self, answer: Answer) {
        *self.log.answer.lock().expect("lock") = answer;
    }

    async fn service(
        &self,
    ) -> impl Service<actix_http::Request, Response = ServiceResponse, Error = Error> + use<> {
        let state = self.state.clone();
        init_service(App::new().configure(move |c| configure(c, &state))).await
    }

    /// One request; the answer with its body.
    async fn ask(&self, request: TestRequest) -> Reply {
        let service = self.service().await;
        reply(&service, request).await
    }

    fn produced(&self) -> Vec<Outgoing> {
        std::mem::take(&mut *self.log.records.lock().expect("lock"))
    }

    fn only_click(&self) -> (String, ClickRecord) {
        let all = self.produced();
        assert_eq!(all.len(), 1, "one record");
        assert_eq!(all[0].topic_no, 1);
        let key = String::from_utf8(all[0].key.to_vec()).expect("text");
        (key, serde_json::from_slice(&all[0].payload).expect("reads"))
    }

    fn only_postback(&self) -> (String, PostbackRecord) {
        let all = self.produced();
        assert_eq!(all.len(), 1, "one record");
        assert_eq!(all[0].topic_no, 2);
        let key = String::from_utf8(all[0].key.to_vec()).expect("text");
        (key, serde_json::from_slice(&all[0].payload).expect("reads"))
    }
}

/// What came back.
struct Reply {
    status: StatusCode,
    headers: actix_web::http::header::HeaderMap,
    body: Bytes,
}

impl Reply {
    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
    }
}

async fn reply<S>(service: &S, request: TestRequest) -> Reply
where
    S: Service<actix_http::Request, Response = ServiceResponse, Error = Error>,
{
    let response = service.call(request.to_request()).await.expect("answers");
    let (status, headers) = (response.status(), response.headers().clone());
    let body = to_bytes(response.into_body()).await.unwrap_or_default();
    Reply {
        status,
        headers,
        body,
    }
}

fn get(uri: &str) -> TestRequest {
    TestRequest::get()
        .uri(uri)
        .peer_addr("203.0.113.9:4711".parse().expect("address"))
}

fn beacon(body: impl Into<Bytes>) -> TestRequest {
    TestRequest::post().uri("/e").set_payload(body)
}

#[actix_web::test]
async fn a_visit_is_produced_then_redirected() {
    let house = House::new();
    let got = house
        .ask(
            get("/c/camp?sub1=a+b&fbclid=IwAR&sub1=c&ref=")
                .insert_header(("user-agent", "Mozilla"))
                .insert_header((
                    "cookie",
                    "a=b; _fbp=fb.1.1558571054389.1098115397; _fbc=junk",
                ))
                .insert_header(("host", "door.example")),
        )
        .await;
    assert_eq!(got.status, StatusCode::FOUND);
    assert_eq!(got.header("cache-control"), "no-store");
    let (key, r) = house.only_click();
    assert_eq!(key, ids::partition_key(1, &r.click_id));
    assert_eq!(r.check(), Ok(()));
    assert_eq!((r.kind, r.direct, r.stage), (Kind::Visit, true, 0));
    assert_eq!(r.accepted_at, NOW);
    assert_eq!(r.key().minted_millis(), Some(NOW.millis()));
    assert_eq!(r.campaign.as_deref(), Some("camp"));
    assert_eq!(r.ip.as_deref(), Some("203.0.113.9"));
    assert!(r.ip_hash.is_some());
    assert_eq!(r.user_agent.as_deref(), Some("Mozilla"));
    assert_eq!(r.source_url.as_deref(), Some("http://door.example/c/camp"));
    assert_eq!((r.fbp.is_some(), r.fbc.is_some()), (true, false));
    assert_eq!(
        r.params.as_deref().map(|p| p.get()),
        Some(r#"{"sub1":["a b","c"],"fbclid":"IwAR","ref":""}"#)
    );
    assert_eq!(
        r.journey.as_deref().map(|p| p.get()),
        Some(r#"{"offer":{"id":"of_1","network":"nw_1","payout":"2.5","currency":"USD"}}"#)
    );
    assert_eq!(
        got.header("location"),
        format!(
            "https://offer.example/?c={}&v={}&r=REF&n=Spring%20%26%20Sale&s=a%20b&u=&x={{theirs}}",
            r.click_id,
            r.visit_id.expect("a visit id")
        )
    );
}

#[actix_web::test]
async fn head_answers_as_get_and_records_nothing_a_prefetch_is_refused() {
    let house = House::new();
    let head = house
        .ask(TestRequest::with_uri("/c/camp").method(actix_web::http::Method::HEAD))
        .await;
    assert_eq!(head.status, StatusCode::FOUND);
    for (name, value) in [
        ("sec-purpose", "prefetch;prerender"),
        ("purpose", "prefetch"),
        ("x-moz", "Prefetch"),
    ] {
        let got = house.ask(get("/c/camp").insert_header((name, value))).await;
        assert_eq!(got.status, StatusCode::FORBIDDEN, "{name}");
    }
    assert!(house.produced().is_empty());
}

#[actix_web::test]
async fn a_beacon_is_a_click_and_a_provider_click_is_none() {
    let house = House::new();
    let got = house
        .ask(beacon(
            r#"{"click_id":"a\"b","link_id":"paused","stage":2,"later":[1]}"#,
        ))
        .await;
    assert_eq!(got.status, StatusCode::NO_CONTENT);
    assert_eq!(got.header("access-control-allow-origin"), "*");
    let (key, r) = house.only_click();
    assert_eq!((key.as_str(), r.click_id.as_str()), ("1:a\"b", "a\"b"));
    assert_eq!((r.kind, r.stage, r.check()), (Kind::Click, 2, Ok(())));
    assert_eq!(r.campaign.as_deref(), Some("paused"));
    let got = house
        .ask(beacon(
            r#"{"click_id":"a","link_id":"camp","provider_click":{"network":"nw_1","network_offer_id":"007","txid":"t"}}"#,
        ))
        .await;
    assert_eq!(got.status, StatusCode::NO_CONTENT);
    let (_, r) = house.only_click();
    assert_eq!(r.kind, Kind::ProviderClick);
    assert_eq!(r.network_offer_id.as_deref(), Some("007"));
    let preflight = house
        .ask(
            TestRequest::with_uri("/e")
                .method(actix_web::http::Method::OPTIONS)
                .insert_header(("origin", "https://page.example")),
        )
        .await;
    assert_eq!(preflight.status, StatusCode::NO_CONTENT);
    assert_eq!(preflight.header("access-control-allow-methods"), "POST");
}

#[actix_web::test]
async fn a_postback_is_kept_without_its_secret_and_answered_1() {
    let house = House::new();
    for request in [
        get("/pb?secret=s3cret%2B%2F&click_id=a%2Fb&payout=1.5&secret=x"),
        TestRequest::post()
            .uri("/pb?click_id=a%2Fb&%73ecret=s3cret%2b/&payout=1.5")
            .set_payload("click_id=ignored&secret=ignored"),
    ] {
        let got = house.ask(request).await;
        assert_eq!((got.status, &got.body[..]), (StatusCode::OK, &b"1"[..]));
        let (key, r) = house.only_postback();
        assert_eq!(key, "1:a/b");
        assert_eq!(r.query, "click_id=a%2Fb&payout=1.5");
        assert_eq!((r.workspace, r.network.as_str()), (1, "nw_1"));
        assert_eq!(r.rules.status_words.len(), 1);
    }
}

#[actix_web::test]
async fn what_can_never_be_booked_is_kept_and_answered_400() {
    let house = House::new();
    for (query, code, key) in [
        ("payout=1", "click_id_missing", "1:payout=1"),
        ("click_id={click_id}", "macro_unsubstituted", "1:{click_id}"),
        ("click_id=a&payout=NaN", "payout_malformed", "1:a"),
        (
            "click_id=a&txid=1&transaction_id=2",
            "alias_conflict",
            "1:a",
        ),
        ("click_id=a%00", "click_id_malformed", "1:a\0"),
        ("click_id=a&sub9=%00", "field_malformed", "1:a"),
    ] {
        let got = house
            .ask(get(&format!("/pb?secret=s3cret%2B/&{query}")))
            .await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(got.code(), code, "{query}");
        let (at, r) = house.only_postback();
        assert_eq!((r.query.as_str(), at.as_str()), (query, key));
        assert_eq!(r.read().err(), Some(code), "the actor says the same");
    }
}
