//! `/metrics`, `/healthz`, `/readyz`.
//!
//! `/readyz` speaks for the doors alone (log, configuration, disk), so that one stopped partition never takes the click doors
//! out of a load balancer; `/healthz` is 200 while the process answers and names stopped partitions in its body.

use super::state::{DoorState, Shared};
use actix_web::HttpResponse;
use actix_web::http::header::CACHE_CONTROL;
use serde_json::json;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer about the log is good for.
const KEPT: Duration = Duration::from_secs(1);

/// How long the log may take to answer that it is there.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the log last said of itself.
#[derive(Default)]
pub(super) struct Readiness(Mutex<Option<(Instant, Result<(), String>)>>);

/// `/metrics`: Prometheus text.
pub(super) fn metrics(state: &DoorState) -> HttpResponse {
    match &state.0.setup.metrics {
        Some(handle) => HttpResponse::Ok()
            .content_type("text/plain; version=0.0.4; charset=utf-8")
            .body(handle.render()),
        None => HttpResponse::NotFound().finish(),
    }
}

/// `/healthz`.
pub(super) fn health(state: &DoorState) -> HttpResponse {
    let stopped = (state.0.setup.stopped)();
    HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, "no-store"))
        .content_type("application/json")
        .body(json!({"status": "ok", "stopped_partitions": stopped}).to_string())
}

/// `/readyz`: 200, or 503 with every reason.
pub(super) async fn ready(state: &DoorState) -> HttpResponse {
    let shared = &state.0;
    let mut reasons = Vec::new();
    if let Err(error) = log_health(shared).await {
        reasons.push(format!("log: {error}"));
    }
    if shared.setup.snapshot.current().is_none() {
        reasons.push(match shared.setup.snapshot.age() {
            None => "configuration: not read yet".to_owned(),
            Some(age) => format!("configuration: {} s old", age.as_secs()),
        });
    }
    if shared.setup.disk.is_low() {
        reasons.push("disk: below the watermark".to_owned());
    }
    let mut builder = if reasons.is_empty() {
        HttpResponse::Ok()
    } else {
        HttpResponse::ServiceUnavailable()
    };
    builder
        .insert_header((CACHE_CONTROL, "no-store"))
        .content_type("application/json")
        .body(json!({"ready": reasons.is_empty(), "reasons": reasons}).to_string())
}

async fn log_health(shared: &Shared) -> Result<(), String> {
    let kept = shared
        .readiness
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    if let Some((at, answer)) = kept
        && at.elapsed() < KEPT
    {
        return answer;
    }
    let asked = shared.setup.producer.health(PATIENCE);
    let answer = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer,
        Err(_) => Err("it did not answer in time".to_owned()),
    };
    *shared
        .readiness
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), answer.clone()));
    answer
}
