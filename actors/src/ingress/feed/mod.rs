//! The sidecar feed: `GET /feed/:shard` (WebSocket) and `POST /feed/:shard` (NDJSON, both ways streamed), with a token of
//! that shard (spec: engagement § Sidecar feed).
//!
//! A sidecar says hello with its protocol, its shard's boot and the last sequence that it will not send again; the door
//! welcomes it with the sequence after which to go on. Frames then come in order, and are acknowledged in bulk once the log
//! has them. After a cut the sidecar says hello again and replays; (shard, boot, sequence) makes that harmless. A message
//! that is too large, no JSON, out of order or of another protocol is answered with its sequence and the reason, and the feed
//! goes on. A shard that restarted says hello again, with its new boot, on the same connection or another.
//!
//! - `wire`: what is said; `order`: which sequence is to come; [`kinds`]: which frames the log gets. All pure.
//! - [`admission`]: whose feed a token opens. [`live`]: one feed a shard. `standing`: how far each is, in the store.
//! - `engine`: one feed, over `socket` (whose messages [`cutter`] bounds) or `ndjson`.
//!
//! What may not live here: what a kind means. The modules say which kinds they map; everything else is counted, acknowledged
//! and kept for nothing.

pub mod admission;
pub mod cutter;
pub(super) mod engine;
pub mod kinds;
pub mod live;
mod ndjson;
mod order;
mod socket;
mod standing;
pub(super) mod wire;

use super::errors::{Refusal, bare_not_found};
use super::state::Door;
use crate::postgres::Pool;
use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_ENCODING, UPGRADE};
use actix_web::web::{Bytes, Payload};
use actix_web::{FromRequest, HttpRequest, HttpResponse};
use admission::Admitted;
use millrace_topics::contract::TopicRef;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How often the store may be asked for tokens that are not known: those of strangers must not make work for it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

/// What the feed needs beside what all doors need.
#[derive(Clone)]
pub struct FeedSetup {
    /// Topic `frames`; none: there is no feed.
    pub frames: Option<TopicRef>,
    /// What the enabled modules map.
    pub kinds: kinds::KindMap,
    /// How long a feed may be silent.
    pub idle: Duration,
    /// Where it is written how far feeds are; none: nowhere.
    pub pool: Option<Pool>,
}

impl FeedSetup {
    /// No feed at all.
    #[must_use]
    pub fn off() -> FeedSetup {
        FeedSetup {
            frames: None,
            kinds: kinds::none(),
            idle: Duration::from_secs(60),
            pool: None,
        }
    }
}

/// `GET`: becomes a WebSocket.
pub(super) async fn get(door: Rc<Door>, request: HttpRequest, payload: Payload) -> HttpResponse {
    let upgraded = upgrade(&door, &request, payload).await;
    answered(&door, upgraded)
}

async fn upgrade(
    door: &Rc<Door>,
    request: &HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, Refusal> {
    let admitted = let_in(door, request).await?;
    if !request.headers().contains_key(UPGRADE) {
        return Err(Refusal::new(
            StatusCode::UPGRADE_REQUIRED,
            "upgrade_required",
            "a GET here becomes a WebSocket; POST takes NDJSON",
        ));
    }
    let malformed = |_| Refusal::bad("handshake", "the WebSocket's handshake is malformed");
    let (mut payload, cutter) = cutter::Cut::payload(payload.into_inner());
    // The one way to make a payload of that type; it waits for nothing.
    let payload = Payload::from_request(request, &mut payload)
        .await
        .map_err(malformed)?;
    let (response, session, stream) = actix_ws::handle(request, payload).map_err(malformed)?;
    let carrier = socket::Socket::new(session, stream, cutter);
    let feeds = Arc::clone(&door.shared.feeds);
    actix_rt::spawn(engine::run(Rc::clone(door), feeds, admitted, carrier));
    Ok(response)
}

/// `POST`: NDJSON in, NDJSON out.
pub(super) async fn post(door: Rc<Door>, request: HttpRequest, payload: Payload) -> HttpResponse {
    let streamed = let_in(&door, &request).await.and_then(|admitted| {
        if request
            .headers()
            .get(CONTENT_ENCODING)
            .is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"))
        {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "media_type",
                "send the body without content encoding",
            ));
        }
        let (lines, mut answers) = mpsc::channel::<Bytes>(64);
        let carrier = ndjson::Lines::new(payload, lines);
        let feeds = Arc::clone(&door.shared.feeds);
        actix_rt::spawn(engine::run(Rc::clone(&door), feeds, admitted, carrier));
        let body = futures::stream::poll_fn(move |context| {
            answers
                .poll_recv(context)
                .map(|line| line.map(Ok::<Bytes, actix_web::Error>))
        });
        Ok(HttpResponse::Ok()
            .insert_header((CACHE_CONTROL, "no-store"))
            .content_type("application/x-ndjson")
            .streaming(body))
    });
    answered(&door, streamed)
}

fn answered(door: &Door, answer: Result<HttpResponse, Refusal>) -> HttpResponse {
    let response = match answer {
        Ok(response) => response,
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => bare_not_found(),
        Err(refusal) => {
            door.counts.refused(refusal.code, 1);
            refusal.response()
        }
    };
    door.counts.answered(response.status());
    response
}

async fn let_in(door: &Door, request: &HttpRequest) -> Result<Admitted, Refusal> {
    if door.shared.setup.feed.frames.is_none() {
        return Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "no_feed",
            "there is no feed",
        ));
    }
    if *door.shared.feeds.ending().borrow() {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "shutdown",
            "the door closes; connect again",
        ));
    }
    let admitted = by_what_is_held(door, request);
    // A token, or its new secret, may be younger than what the door holds.
    if matches!(&admitted, Err(refusal) if refusal.status == StatusCode::UNAUTHORIZED)
        && admission::may_be_token(request)
        && look_again(door).await
    {
        return by_what_is_held(door, request);
    }
    admitted
}

/// Whom the configuration that is held lets in.
fn by_what_is_held(door: &Door, request: &HttpRequest) -> Result<Admitted, Refusal> {
    let open = door.open()?;
    let snapshot = open.as_ref().ok_or_else(Refusal::configuration_stale)?;
    let shard = request.match_info().get("shard").unwrap_or_default();
    admission::admit(snapshot, request, shard, door.now())
}

/// Asks the store for newer configuration than what is held, once a second at most; whether it answered.
async fn look_again(door: &Door) -> bool {
    let setup = &door.shared.setup;
    let Some(pool) = setup.feed.pool.clone() else {
        return false;
    };
    if !door.shared.looks.take(Instant::now()) {
        return false;
    }
    let snapshot = Arc::clone(&setup.snapshot);
    // Apart: a sidecar that hangs up must not leave a question half asked on a connection of the pool.
    let asked = actix_rt::spawn(async move { snapshot.refresh(&pool).await });
    match tokio::time::timeout(LOOK_TIMEOUT, asked).await {
        // Nothing newer was found by this look: another may have found it a moment ago.
        Ok(Ok(Ok(_))) => true,
        Ok(Ok(Err(error))) => {
            tracing::debug!(%error, "a token that is not known could not be looked up");
            false
        }
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Lets one look at the store through in each [`LOOK_EVERY`], whoever asks.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<Option<Instant>>);

impl Looks {
    /// Whether there may be one now; it is then the one.
    pub fn take(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|at| now.saturating_duration_since(at) < LOOK_EVERY) {
            return false;
        }
        *last = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_asked_once_a_second() {
        let looks = Looks::default();
        let start = Instant::now();
        let asked = [0, 1, 999, 1_000, 1_001, 1_999, 5_000]
            .map(|ms| looks.take(start + Duration::from_millis(ms)));
        assert_eq!(asked, [true, false, false, true, false, false, true]);
    }
}
