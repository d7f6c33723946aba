//! Listeners of a process: doors and admin API on one address or on two; a process with neither still tells how it is at
//! `http.admin` (`/metrics`, `/healthz`).

use super::Roles;
use crate::api::keys::KeyCache;
use crate::api::operations::events::Events;
use crate::api::{self, ApiState};
use crate::ingress::client::TrustedProxies;
use crate::ingress::disk::DiskWatch;
use crate::ingress::feed::{FeedSetup, kinds};
use crate::ingress::keys::StoredKeys;
use crate::ingress::server;
use crate::ingress::snapshot::SnapshotHandle;
use crate::ingress::state::{DoorSetup, DoorState, StoppedPartitions};
use crate::modules::Live;
use crate::postgres::Pool;
use crate::runtime::clock::SharedClock;
use crate::runtime::telemetry::Metrics;
use crate::sealing::Seals;
use crate::settings::Settings;
use crate::unsubscribe;
use actix_web::dev::{Server, ServerHandle};
use actix_web::web::{self, ServiceConfig};
use actix_web::{App, HttpResponse, HttpServer};
use anyhow::{Context as _, bail};
use millrace_topics::catalogue::{self, CLICKS, FRAMES, POSTBACKS, TRIGGERS};
use millrace_topics::contract::{Producer, TopicRef};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long requests under way may take once the doors refuse new ones; then connections that idle are cut.
const DRAIN: Duration = Duration::from_secs(3);
/// How long the first reading of the configuration may take before the doors open without it (and answer 503).
const FIRST_READ: Duration = Duration::from_secs(10);

/// What listeners are made of.
pub(super) struct Parts<'a> {
    pub settings: &'a Settings,
    pub roles: Roles,
    pub pool: Pool,
    pub producer: Arc<dyn Producer>,
    pub topics: &'a [TopicRef],
    pub modules: Live,
    pub clock: SharedClock,
    pub seals: Arc<Seals>,
    pub metrics: Metrics,
    pub stopped: StoppedPartitions,
    /// The folder whose disk holds the log, where it is this machine's.
    pub log_disk: Option<PathBuf>,
}

/// The running listeners.
pub(super) struct Http {
    handles: Vec<ServerHandle>,
    /// The doors, for the feeds that are to be ended before their connections.
    feeds: Option<DoorState>,
    ended: watch::Receiver<Option<String>>,
    pub doors: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
}

impl Http {
    /// Binds and serves.
    pub async fn start(parts: Parts<'_>) -> anyhow::Result<Http> {
        let (tell, ended) = watch::channel(None);
        let mut http = Http {
            handles: Vec::new(),
            feeds: None,
            ended,
            doors: None,
            admin: None,
        };
        let own = &parts.settings.http;
        let shared = own.doors == own.admin;
        let status = status(&parts);
        if parts.roles.doors {
            let state = doors(&parts).await?;
            http.feeds = Some(state.clone());
            let api = admin(&parts, parts.roles.admin && shared)?;
            // Links in mails lead to the doors: what the world sees of a deployment.
            let pages = unsubscribe::Pages::new(parts.pool.clone());
            let also = move |config: &mut ServiceConfig| {
                unsubscribe::configure(config, &pages);
                api(config);
            };
            let (server, addresses) =
                server::serve(own, state, also).with_context(|| taken("doors", own.doors))?;
            http.run(server, &tell);
            http.doors = addresses.first().copied();
            if parts.roles.admin && shared {
                http.admin = http.doors;
            }
        }
        if http.admin.is_none() && (parts.roles.admin || !parts.roles.doors) {
            let also = admin(&parts, parts.roles.admin)?;
            let server = HttpServer::new(move || {
                let (also, status) = (also.clone(), status.clone());
                App::new()
                    .configure(move |config| mount_status(config, &status))
                    .configure(also)
            })
            .workers(if parts.roles.admin {
                own.workers.max(1)
            } else {
                1
            })
            .disable_signals()
            .bind(own.admin)
            .with_context(|| taken("admin", own.admin))?;
            http.admin = server.addrs().first().copied();
            http.run(server.run(), &tell);
        }
        Ok(http)
    }

    fn run(&mut self, server: Server, tell: &watch::Sender<Option<String>>) {
        self.handles.push(server.handle());
        let tell = tell.clone();
        actix_rt::spawn(async move {
            let why = match server.await {
                Ok(()) => "its listener has ended".to_owned(),
                Err(error) => error.to_string(),
            };
            let _ = tell.send(Some(why));
        });
    }

    /// Resolves when a listener has ended, with the reason.
    pub async fn failed(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => format!("HTTP: {}", why.clone().unwrap_or_default()),
            // No listener at all: nothing that could end.
            Err(_) => std::future::pending().await,
        }
    }

    /// New connections are refused, requests under way are answered, feeds are told and await what the log has of them.
    pub async fn stop(&self) {
        if let Some(doors) = &self.feeds {
            doors.end_feeds(DRAIN).await;
        }
        let graceful = futures::future::join_all(self.handles.iter().map(|h| h.stop(true)));
        if tokio::time::timeout(DRAIN, graceful).await.is_err() {
            futures::future::join_all(self.handles.iter().map(|h| h.stop(false))).await;
        }
    }
}

fn taken(what: &str, address: SocketAddr) -> String {
    format!(
        "nothing can listen on {address}; choose another address by http.{what} \
         (MILLRACE_HTTP__{}=127.0.0.1:8090)",
        what.to_uppercase()
    )
}

async fn doors(parts: &Parts<'_>) -> anyhow::Result<DoorState> {
    let settings = parts.settings;
    let hold = Duration::from_secs(settings.http.configuration_hold_s);
    let snapshot = SnapshotHandle::empty(hold);
    // Doors that open with the configuration read need not begin with a 503.
    match tokio::time::timeout(FIRST_READ, snapshot.refresh(&parts.pool)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the doors' configuration cannot be read yet"),
        Err(_) => tracing::warn!("the doors' configuration cannot be read in time"),
    }
    // Runs as long as the handle lives.
    drop(snapshot.keep_fresh(parts.pool.clone()));
    let setup = DoorSetup {
        producer: parts.producer.clone(),
        clicks: catalogue::find(parts.topics, CLICKS)?,
        postbacks: catalogue::find(parts.topics, POSTBACKS)?,
        snapshot,
        keys: Arc::new(StoredKeys {
            pool: parts.pool.clone(),
        }),
        clock: parts.clock.clone(),
        http: settings.http.clone(),
        ack_timeout: Duration::from_millis(settings.log.ack_timeout_ms),
        disk: DiskWatch::start(parts.log_disk.clone(), settings.http.disk_low_watermark),
        feed: FeedSetup {
            frames: catalogue::find(parts.topics, FRAMES).ok(),
            kinds: kinds::of(parts.modules.clone()),
            idle: Duration::from_secs(settings.http.feed_idle_s.max(1)),
            pool: Some(parts.pool.clone()),
        },
        stopped: parts.stopped.clone(),
        metrics: Some(parts.metrics.handle()),
    };
    match DoorState::new(setup) {
        Ok(state) => Ok(state),
        Err(why) => bail!(why),
    }
}

/// Mounts the admin API, or nothing.
fn admin(
    parts: &Parts<'_>,
    mounted: bool,
) -> anyhow::Result<impl Fn(&mut ServiceConfig) + Clone + Send + 'static> {
    let mut state = ApiState::new(
        parts.pool.clone(),
        parts.clock.clone(),
        parts.seals.clone(),
        Arc::new(KeyCache::new()),
        parts.settings.http.public_url.clone(),
    );
    let trusted = match TrustedProxies::parse(&parts.settings.http.trusted_proxies) {
        Ok(trusted) => trusted,
        Err(why) => bail!("http.trusted_proxies: {why}"),
    };
    state.modules = parts.modules.clone();
    state.events = events(parts);
    state.client_address = Box::new(move |request| trusted.client_of(request));
    let state = mounted.then(|| web::Data::new(state));
    Ok(move |config: &mut ServiceConfig| {
        if let Some(state) = &state {
            api::configure(config, state.clone());
            config.default_service(web::to(api::not_found));
        }
    })
}

/// The door of firings from outside; none where no module is enabled.
fn events(parts: &Parts<'_>) -> Option<Events> {
    let triggers = catalogue::find(parts.topics, TRIGGERS).ok()?;
    (!parts.modules.now().is_empty()).then(|| Events {
        producer: Arc::clone(&parts.producer),
        triggers: triggers.no,
        ack_timeout: Duration::from_millis(parts.settings.log.ack_timeout_ms),
    })
}

/// What a listener without doors tells of its process.
#[derive(Clone)]
struct Status {
    metrics: Metrics,
    stopped: StoppedPartitions,
}

fn status(parts: &Parts<'_>) -> Status {
    Status {
        metrics: parts.metrics.clone(),
        stopped: parts.stopped.clone(),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "/metrics and /healthz of a process without doors; every other route comes from the registry"
)]
fn mount_status(config: &mut ServiceConfig, status: &Status) {
    let metrics = status.metrics.clone();
    config.service(web::resource("/metrics").route(web::get().to(move || {
        let text = metrics.render();
        async move {
            HttpResponse::Ok()
                .content_type("text/plain; version=0.0.4; charset=utf-8")
                .body(text)
        }
    })));
    let stopped = status.stopped.clone();
    config.service(web::resource("/healthz").route(web::get().to(move || {
        let body = serde_json::json!({"status": "ok", "stopped_partitions": stopped()});
        async move {
            HttpResponse::Ok()
                .insert_header(("cache-control", "no-store"))
                .json(body)
        }
    })));
}
