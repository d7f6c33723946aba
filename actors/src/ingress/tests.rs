//! The doors over actix's own test service, with a log in memory: what each kind of input gets, and what is produced.

mod accepted;
mod batches;
mod fuzz;
mod refusals;

use super::compile::{self, CampaignRow, NetworkRow, OfferRow, Snapshot, Workspace};
use super::disk::DiskWatch;
use super::feed::FeedSetup;
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
pub(super) fn snapshot() -> Snapshot {
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
pub(super) struct House {
    log: Arc<MemoryLog>,
    pub(super) state: DoorState,
}

impl House {
    fn new() -> House {
        let held = SnapshotHandle::empty(Duration::from_secs(600));
        held.put(snapshot(), Instant::now());
        House::on(held, Arc::default())
    }

    pub(super) fn on(held: Arc<SnapshotHandle>, disk: Arc<DiskWatch>) -> House {
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
            feed: FeedSetup::off(),
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
