//! What all doors share, and the one way to have a record accepted: hand it to the log, await the acknowledgement.

use super::client::TrustedProxies;
use super::compile::Snapshot;
use super::counts::DoorCounts;
use super::disk::DiskWatch;
use super::errors::Refusal;
use super::feed::live::Feeds;
use super::feed::{FeedSetup, Looks};
use super::health::Readiness;
use super::keys::{HeldKeys, KeyCheck};
use super::patience::{Elapsed, Patience};
use super::snapshot::SnapshotHandle;
use crate::runtime::clock::SharedClock;
use crate::runtime::failpoint;
use crate::settings::Http;
use actix_web::HttpResponse;
use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use millrace_schemas::time::Micros;
use millrace_topics::contract::{Acknowledgement, Outgoing, ProduceError, Producer, TopicRef};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long a request may take to send its body, beside what the log may take to acknowledge.
pub(super) const SLOWEST_BODY: Duration = Duration::from_secs(5);

/// The same for a batch.
pub(super) const SLOWEST_BATCH: Duration = Duration::from_secs(60);

/// Partitions that stand still, each as one line for people (`attribution/3: poison …`).
pub type StoppedPartitions = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// What doors are made of.
pub struct DoorSetup {
    /// The log.
    pub producer: Arc<dyn Producer>,
    /// Topic `clicks`.
    pub clicks: TopicRef,
    /// Topic `postbacks`.
    pub postbacks: TopicRef,
    /// The configuration; keep it fresh with [`SnapshotHandle::keep_fresh`].
    pub snapshot: Arc<SnapshotHandle>,
    /// Who a bearer is ([`super::keys::StoredKeys`]).
    pub keys: Arc<dyn KeyCheck>,
    /// The wall clock.
    pub clock: SharedClock,
    /// Section `http` of the settings.
    pub http: Http,
    /// How long the log may take to acknowledge.
    pub ack_timeout: Duration,
    /// The disk under the log.
    pub disk: Arc<DiskWatch>,
    /// The feed of shards' sidecars.
    pub feed: FeedSetup,
    /// Partitions of this process that stand still.
    pub stopped: StoppedPartitions,
    /// The recorder, for `/metrics`; None: 404 there.
    pub metrics: Option<PrometheusHandle>,
}

/// The doors of a process; cheap to clone.
#[derive(Clone)]
pub struct DoorState(pub(super) Arc<Shared>);

/// What lies behind [`DoorState`].
pub(super) struct Shared {
    pub(super) setup: DoorSetup,
    pub(super) keys: HeldKeys,
    pub(super) feeds: Arc<Feeds>,
    /// Looks at the store for feed tokens that are not known.
    pub(super) looks: Looks,
    pub(super) trusted: TrustedProxies,
    /// Where campaigns answer, without the slash at its end; None: what the request names as its host.
    pub(super) public_url: Option<String>,
    pub(super) readiness: Readiness,
}

impl DoorState {
    /// Makes the doors. Install the metrics recorder first, if any.
    ///
    /// # Errors
    /// A setting that cannot be read, named.
    pub fn new(setup: DoorSetup) -> Result<DoorState, String> {
        super::counts::describe();
        let hold = Duration::from_secs(setup.http.configuration_hold_s);
        Ok(DoorState(Arc::new(Shared {
            feeds: Feeds::new(setup.feed.pool.clone()),
            looks: Looks::default(),
            keys: HeldKeys::new(Arc::clone(&setup.keys), hold),
            trusted: TrustedProxies::parse(&setup.http.trusted_proxies)
                .map_err(|e| format!("http.trusted_proxies: {e}"))?,
            public_url: setup
                .http
                .public_url
                .as_ref()
                .map(|u| u.trim_end_matches('/').to_owned()),
            readiness: Readiness::default(),
            setup,
        })))
    }

    /// Ends all feeds in order, new ones are refused; waits for them, at most `patience`.
    pub async fn end_feeds(&self, patience: Duration) {
        self.0.feeds.end(patience).await;
    }
}

/// One door on one worker.
pub(super) struct Door {
    pub(super) shared: Arc<Shared>,
    pub(super) counts: DoorCounts,
    patience: Patience,
}

impl Door {
    pub(super) fn new(state: &DoorState, name: &'static str) -> Rc<Door> {
        Rc::new(Door {
            shared: Arc::clone(&state.0),
            counts: DoorCounts::new(name),
            patience: Patience::default(),
        })
    }

    /// Now, by the wall clock: what a record is stamped with.
    pub(super) fn now(&self) -> Micros {
        self.shared.setup.clock.wall()
    }

    /// The configuration, if the door is open at all.
    pub(super) fn open(&self) -> Result<arc_swap::Guard<Option<Arc<Snapshot>>>, Refusal> {
        if self.shared.setup.disk.is_low() {
            return Err(Refusal::disk_low());
        }
        self.shared
            .setup
            .snapshot
            .current()
            .ok_or_else(Refusal::configuration_stale)
    }

    pub(super) fn clicks(&self) -> i32 {
        self.shared.setup.clicks.no
    }

    pub(super) fn postbacks(&self) -> i32 {
        self.shared.setup.postbacks.no
    }

    /// Hands a record to the log.
    pub(super) fn produce(&self, topic_no: i32, key: Bytes, payload: Bytes) -> Acknowledgement {
        self.shared.setup.producer.produce(Outgoing {
            topic_no,
            key,
            payload,
        })
    }

    /// Hands a record to the log and waits until the log has it: from here on it is accepted.
    pub(super) async fn accept(
        &self,
        topic_no: i32,
        key: Bytes,
        payload: Bytes,
    ) -> Result<(), Refusal> {
        if failpoint::hit("door.before_produce") {
            return Err(Refusal::log_away());
        }
        let started = self.counts.start();
        let acknowledged = acknowledged(self.produce(topic_no, key, payload).await);
        self.counts.end(started);
        acknowledged?;
        self.counts.accepted(1);
        if failpoint::hit("door.produced") {
            return Err(Refusal::log_away());
        }
        Ok(())
    }

    /// Runs a door's work within the time that a request may take, `body` beside what the log may take, and counts its
    /// answer. `body_read`: whether it is the log that is waited for when the time runs out.
    pub(super) async fn serve(
        &self,
        body_read: &Cell<bool>,
        body: Duration,
        work: impl Future<Output = Result<HttpResponse, Refusal>>,
    ) -> HttpResponse {
        let deadline = self.shared.setup.ack_timeout.saturating_add(body);
        let answer = match self.patience.bound(deadline, work).await {
            Ok(answer) => answer,
            Err(Elapsed) if body_read.get() => Err(Refusal::log_away()),
            Err(Elapsed) => Err(Refusal::body_slow()),
        };
        match answer {
            Ok(response) => {
                self.counts.answered(response.status());
                response
            }
            Err(refusal) => {
                self.counts.refused(refusal.code, 1);
                self.counts.answered(refusal.status);
                refusal.response()
            }
        }
    }
}

/// What an acknowledgement says to a sender.
pub(super) fn acknowledged(
    answer: Result<
        Result<millrace_topics::contract::Position, ProduceError>,
        tokio::sync::oneshot::error::RecvError,
    >,
) -> Result<(), Refusal> {
    match answer {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(ProduceError::TooLarge { bytes, limit })) => Err(Refusal::new(
            actix_web::http::StatusCode::PAYLOAD_TOO_LARGE,
            "record_too_large",
            format!("it makes a record of {bytes} bytes; the log takes {limit}"),
        )),
        Ok(Err(error)) => {
            tracing::debug!(%error, "not acknowledged");
            Err(Refusal::log_away())
        }
        Err(_) => Err(Refusal::log_away()),
    }
}
