//! axum that awaits one produce a request.

use super::Options;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use millrace::ingress::wire::{self, ClickOut};
use millrace_schemas::click::Kind;
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a page sends.
#[derive(Deserialize)]
struct Beacon<'a> {
    click_id: &'a str,
    link_id: &'a str,
    #[serde(default)]
    stage: u16,
}

struct Log {
    producer: FutureProducer,
    topic: String,
}

/// The one workspace of the measurement.
const WORKSPACE: i32 = 1;

async fn beacon(State(log): State<Arc<Log>>, body: Bytes) -> StatusCode {
    let Ok(beacon) = serde_json::from_slice::<Beacon<'_>>(&body) else {
        return StatusCode::BAD_REQUEST;
    };
    let mut record = ClickOut::<&RawValue>::new(Kind::Click, WORKSPACE, beacon.click_id, now());
    record.campaign = Some(beacon.link_id);
    record.stage = beacon.stage;
    let Ok(payload) = wire::to_bytes(&record, 128 + body.len()) else {
        return StatusCode::INTERNAL_SERVER_ERROR;
    };
    let key = ids::partition_key(WORKSPACE, beacon.click_id);
    let record = FutureRecord::to(&log.topic).key(&key).payload(&*payload);
    match log.producer.send(record, Duration::ZERO).await {
        Ok(_) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn now() -> Micros {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

pub fn router(options: &Options) -> anyhow::Result<Router> {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", &options.brokers)
        .set("socket.nagle.disable", "true")
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", options.linger_ms.to_string())
        .set("message.timeout.ms", "10000")
        .set("queue.buffering.max.messages", "1000000")
        .set("partitioner", "murmur2_random")
        .create()?;
    let log = Log {
        producer,
        topic: options.topic.clone(),
    };
    Ok(Router::new()
        .route("/e", post(beacon))
        .with_state(Arc::new(log)))
}
