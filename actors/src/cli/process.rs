//! One process of Millrace, put together from roles: started in the order in which its parts need each other, watched, and
//! stopped in the order that loses nothing: doors refuse, consumers let go of their partitions, the producer empties its queue.

mod channels;
mod groups;
mod http;
mod observe;
mod reload;
mod remade;
mod roles;
pub(super) mod seeding;

pub use roles::Roles;

use super::log::{self, Log};
use crate::delivery::dispatcher::{Delivery, DeliveryConfig};
use crate::delivery::holds;
use crate::ingress::state::StoppedPartitions;
use crate::modules::Live;
use crate::postgres::pool::{Database, DatabaseError, chain};
use crate::postgres::{Pool, migrate};
use crate::runtime::clock::{self, SharedClock};
use crate::runtime::connector::connector;
use crate::runtime::maintenance;
use crate::runtime::mount::{AnyHost, Mount};
use crate::runtime::telemetry::Metrics;
use crate::sealing::Seals;
use crate::settings::{Backend, Settings};
use anyhow::bail;
use groups::Group;
use http::Http;
use millrace_topics::catalogue::{GROUPS, GroupSpec};
use millrace_topics::contract::{Producer, TopicRef};
use reload::Reload;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

/// How long a starting process waits for a database that does not answer yet.
const DATABASE_WAIT: Duration = Duration::from_secs(30);
/// How often the parts are asked whether they live.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Looks in a row at which a consumer must be ill: a process that was stopped and continued looks ill once.
const ILL_LOOKS: u32 = 2;

/// What a process is made of.
pub struct Plan {
    /// Settings, with a database.
    pub settings: Settings,
    /// What it does.
    pub roles: Roles,
    /// Streams with state beside those of the roles.
    pub also: Vec<Mount>,
    /// Whether it may make topics that are missing.
    pub create_topics: bool,
    /// The recorder of its metrics.
    pub metrics: Metrics,
    /// Keys under which secrets are sealed.
    pub seals: Seals,
    /// The folder whose disk holds the log, where it is this machine's.
    pub log_disk: Option<PathBuf>,
    /// Why nothing may leave the outbox before a person lets it go on, if so.
    pub hold: Option<&'static str>,
}

/// What works behind the listeners.
struct Works {
    producer: Arc<dyn Producer>,
    groups: Vec<Group>,
    delivery: Option<Delivery>,
    tasks: Vec<JoinHandle<()>>,
    pool: Pool,
    shutdown: Duration,
}

/// A running process. Stop it by [`Process::stop`]; dropped, it lets go without order.
pub struct Process {
    http: Http,
    works: Works,
    reload: Reload,
}

impl Process {
    /// Starts everything. Needs a running actix system.
    ///
    /// # Errors
    /// The database does not answer within half a minute, its schema cannot be brought up to date, topics are missing, of unequal
    /// counts or another backend's, an address is taken.
    pub async fn start(plan: Plan) -> anyhow::Result<Process> {
        let (settings, roles) = (plan.settings, plan.roles);
        let modules = Live::from(seeding::modules(&settings)?);
        let mut mounts = groups::of_roles(roles, &settings, &modules);
        mounts.extend(plan.also);
        let specs: Vec<GroupSpec> = mounts.iter().map(Mount::group).collect();
        let clock = clock::from_environment();
        let database = Database::new(&settings.database, &roles.name())?;
        let client = migrated(&database).await?;
        if let Some(reason) = plan.hold {
            holds::hold(&client, holds::EVERYTHING, reason, "cli").await?;
        }
        let log = Log::of(&settings, &database)?;
        let topics = topics(&client, &log, &settings, plan.create_topics, &specs).await?;
        drop(client);
        let mut works = Works {
            producer: log.producer(&settings.log, &topics)?,
            groups: Vec::new(),
            delivery: None,
            tasks: Vec::new(),
            pool: database.pool()?,
            shutdown: Duration::from_millis(settings.runtime.shutdown_ms),
        };
        if roles.admin {
            seeding::rules(&works.pool, &modules.now(), &clock).await?;
        }
        // Actors before doors: what is accepted finds somebody who decides it.
        for mount in mounts {
            let group = Group::start(mount, &settings, &database, &log, &topics, &clock)?;
            works.groups.push(group);
        }
        let seals = Arc::new(plan.seals);
        if roles.delivery {
            works.delivery = Some(delivery(&settings, &database, &clock, &seals)?);
        }
        let http = Http::start(http::Parts {
            settings: &settings,
            roles,
            pool: works.pool.clone(),
            producer: works.producer.clone(),
            topics: &topics,
            modules: modules.clone(),
            clock: clock.clone(),
            seals,
            metrics: plan.metrics.clone(),
            stopped: works.stopped(),
            log_disk: plan.log_disk,
        })
        .await;
        let http = match http {
            Ok(http) => http,
            Err(error) => {
                works.end().await;
                return Err(error);
            }
        };
        let reload = Reload {
            began_with_one: !modules.now().is_empty(),
            live: modules,
            seeds: roles.admin.then(|| works.pool.clone()),
            clock: clock.clone(),
        };
        let retention = (log.backend() == Backend::Postgres)
            .then(|| Duration::from_secs(settings.log.retention_s));
        works.tasks = works
            .groups
            .iter()
            .map(|group| tokio::spawn(group.relay(&database, &works.producer, &topics)))
            .collect();
        works.tasks.extend([
            tokio::spawn(maintenance::keep(
                database.clone(),
                clock,
                settings.clone(),
                retention,
            )),
            tokio::spawn(plan.metrics.upkeep()),
            tokio::spawn(observe::keep(
                database.for_role("observe"),
                log.clone(),
                topics.clone(),
            )),
        ]);
        if !works.groups.is_empty() && log.backend() == Backend::Kafka {
            let database = database.for_role("topics");
            works
                .tasks
                .push(tokio::spawn(remade::watch(database, log, topics)));
        }
        reload.tell(true);
        Ok(Process {
            http,
            works,
            reload,
        })
    }

    /// What to tell whoever started it.
    #[must_use]
    pub fn greeting(&self) -> String {
        let mut text = "millrace is up".to_owned();
        for (what, url) in [("doors", self.doors_url()), ("admin API", self.admin_url())] {
            if let Some(url) = url {
                text.push_str(&format!("\n  {what:<10} {url}"));
            }
        }
        text
    }

    /// Where the doors answer.
    #[must_use]
    pub fn doors_url(&self) -> Option<String> {
        self.http.doors.map(url)
    }

    /// Where the admin API answers, or `/metrics` and `/healthz` of a process without doors and API.
    #[must_use]
    pub fn admin_url(&self) -> Option<String> {
        self.http.admin.map(url)
    }

    /// Puts other manifests in force, or says why those before stay: each batch, request and frame is decided by one set whole.
    pub fn reload(&self, wanted: anyhow::Result<crate::settings::Modules>) {
        self.reload.modules(wanted);
    }

    /// Resolves when a part has died that the process cannot go on without, with the reason.
    pub async fn failed(&self) -> String {
        tokio::select! {
            why = self.http.failed() => why,
            why = self.works.failed() => why,
        }
    }

    /// Stops everything in order, within `runtime.shutdown_ms` and what doors and partitions need to let go.
    pub async fn stop(self) {
        let begun = Instant::now();
        self.http.stop().await;
        self.works.end().await;
        tracing::info!(ms = begun.elapsed().as_millis(), "stopped");
    }
}

impl Works {
    async fn failed(&self) -> String {
        let mut every = tokio::time::interval(LOOK_EVERY);
        let mut ill = vec![0_u32; self.groups.len()];
        loop {
            every.tick().await;
            if self.delivery.as_ref().is_some_and(|d| !d.is_alive()) {
                return "a channel of delivery is gone".to_owned();
            }
            for (group, ill) in self.groups.iter().zip(&mut ill) {
                match group.consumer.health() {
                    Ok(()) => *ill = 0,
                    Err(why) => {
                        *ill += 1;
                        if *ill >= ILL_LOOKS {
                            return format!(
                                "the consumer of group `{}` is gone: {why}",
                                group.name
                            );
                        }
                    }
                }
            }
        }
    }

    /// Partitions of this process that stand still, as lines for people.
    fn stopped(&self) -> StoppedPartitions {
        let hosts: Vec<(&'static str, Arc<dyn AnyHost>)> = self
            .groups
            .iter()
            .map(|g| (g.name, Arc::clone(&g.host)))
            .collect();
        Arc::new(move || {
            let lines = |(name, host): &(&'static str, Arc<dyn AnyHost>)| {
                let all = host.stopped().into_iter();
                all.map(|(partition, why)| format!("{name}/{partition}: {why}"))
                    .collect::<Vec<_>>()
            };
            hosts.iter().flat_map(lines).collect()
        })
    }

    async fn end(self) {
        let begun = Instant::now();
        // Blocks up to some seconds, by the contract; all groups at once.
        let leaving: Vec<JoinHandle<()>> = self
            .groups
            .into_iter()
            .map(|group| {
                tokio::task::spawn_blocking(move || {
                    group.consumer.shutdown();
                    group.host.close();
                })
            })
            .collect();
        for left in leaving {
            if left.await.is_err() {
                tracing::warn!(
                    "a consumer did not shut down in order; its partitions are claimed anew by the next owner"
                );
            }
        }
        if let Some(delivery) = self.delivery {
            delivery.stop().await;
        }
        self.producer
            .close(self.shutdown.saturating_sub(begun.elapsed()))
            .await;
        for task in &self.tasks {
            task.abort();
        }
        self.pool.close();
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Connects, waiting for a database that is still starting, and brings the schema up to date.
async fn migrated(database: &Database) -> anyhow::Result<Client> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let refused = match migrated_now(database).await {
            Ok(client) => return Ok(client),
            Err(migrate::MigrateError::Database(DatabaseError::Connect { at, source })) => {
                format!("the database at {at} does not answer: {}", chain(&source))
            }
            Err(migrate::MigrateError::Database(silent @ DatabaseError::Silent { .. })) => {
                silent.to_string()
            }
            Err(other) => return Err(other.into()),
        };
        if begun.elapsed() > DATABASE_WAIT {
            bail!("{refused}; `millrace doctor` says more");
        }
        if !told {
            tracing::warn!("{refused}; waiting for it");
            told = true;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// A connection to a database whose schema is up to date, without waiting: each of the two that it takes may be refused.
async fn migrated_now(database: &Database) -> Result<Client, migrate::MigrateError> {
    let report = migrate::migrate(database).await?;
    if !report.applied.is_empty() {
        tracing::info!(
            applied = report.applied.join(", "),
            "schema brought up to date"
        );
    }
    let (client, _driver) = database.single().await?;
    Ok(client)
}

async fn topics(
    client: &Client,
    log: &Log,
    settings: &Settings,
    create: bool,
    mounted: &[GroupSpec],
) -> anyhow::Result<Vec<TopicRef>> {
    if create {
        let mut groups = GROUPS.to_vec();
        groups.extend(
            mounted
                .iter()
                .filter(|m| GROUPS.iter().all(|g| g.name != m.name)),
        );
        return log::create_topics(client, log, &settings.log, &groups).await;
    }
    let topics = log::live_topics(client, log).await?;
    for topic in &topics {
        log.agrees(client, topic).await?;
    }
    log.remember(client, &topics).await?;
    Ok(topics)
}

/// Starts an actor for each channel.
fn delivery(
    settings: &Settings,
    database: &Database,
    clock: &SharedClock,
    seals: &Arc<Seals>,
) -> anyhow::Result<Delivery> {
    let config = DeliveryConfig {
        connect: connector(
            &database.for_role("delivery"),
            Duration::from_millis(settings.runtime.lock_timeout_ms),
        ),
        clock: clock.clone(),
        poll: Duration::from_millis(settings.delivery.poll_ms),
        drain: Duration::from_millis(settings.runtime.shutdown_ms),
    };
    let public_url = settings.http.public_url.as_ref();
    let channels = channels::all(
        &settings.delivery,
        clock,
        seals,
        &config.connect,
        public_url,
    )?;
    Ok(Delivery::start(&config, channels))
}
