//! Consumer groups of a process: streams with state mounted, each with its host, its consumer and the relay of what it emits.

use super::super::log::{self, Log};
use super::Roles;
use crate::attribution::actor::Attribution;
use crate::directory::actor::Directory;
use crate::engagement::actor::Engagement;
use crate::modules::Live;
use crate::postgres::pool::Database;
use crate::recipients::actor::Recipients;
use crate::recipients::facts::Configured;
use crate::runtime::books::Emits;
use crate::runtime::clock::SharedClock;
use crate::runtime::connector::connector;
use crate::runtime::failpoint;
use crate::runtime::host::HostConfig;
use crate::runtime::mount::{AnyHost, Mount};
use crate::settings::{Backend, Settings};
use crate::thresholds::actor::Thresholds;
use anyhow::Context as _;
use millrace_topics::catalogue::{self, NOTICES, TRIGGERS};
use millrace_topics::contract::{Consumer, Producer, TopicRef};
use millrace_topics::relay::Relayed;
use std::sync::Arc;
use std::time::Duration;

/// How often a relay without work looks for some.
const RELAY_IDLE: Duration = Duration::from_millis(500);

/// The streams with state of these roles. Where no module is enabled, none of theirs.
pub(super) fn of_roles(roles: Roles, settings: &Settings, live: &Live) -> Vec<Mount> {
    let modules = live.now();
    let mut mounts = Vec::new();
    let (url, push) = (&settings.http.public_url, &settings.delivery.push);
    let configured = Configured::of(url.as_deref(), &push.origins);
    if roles.attribution {
        let own = settings.attribution.clone();
        mounts.push(Mount::new(move |_| {
            Ok(move || Attribution::new(own.clone()))
        }));
    }
    if roles.thresholds && !modules.is_empty() {
        let (live, own) = (live.clone(), settings.thresholds.clone());
        mounts.push(Mount::new(move |topics| {
            let triggers = catalogue::find(topics, TRIGGERS)?.no;
            Ok(move || Thresholds::new(live.clone(), own.clone(), triggers))
        }));
    }
    if roles.engagement && !modules.is_empty() {
        let live = live.clone();
        mounts.push(Mount::new(move |topics| {
            let notices = catalogue::find(topics, NOTICES)?.no;
            Ok(move || Engagement::new(live.clone(), notices).only(configured))
        }));
    }
    if roles.recipients && !modules.is_empty() {
        let own = settings.recipients.clone();
        mounts.push(Mount::new(move |_| {
            Ok(move || Recipients::new(configured).with(own.clone()))
        }));
    }
    if roles.directory && !modules.is_empty() {
        mounts.push(Mount::new(|_| Ok(Directory::default)));
    }
    mounts
}

/// A running consumer group of this process.
pub(super) struct Group {
    pub name: &'static str,
    pub host: Arc<dyn AnyHost>,
    pub consumer: Arc<dyn Consumer>,
}

impl Group {
    /// Starts a mounted stream: its host, then the consumer that feeds it.
    pub fn start(
        mount: Mount,
        settings: &Settings,
        database: &Database,
        log: &Log,
        all: &[TopicRef],
        clock: &SharedClock,
    ) -> anyhow::Result<Group> {
        let group = mount.group();
        let topics = catalogue::group_topics(all, &group)?;
        let runtime = &settings.runtime;
        let config = HostConfig {
            topics: topics.clone(),
            connect: connector(
                &database.for_role(group.name),
                Duration::from_millis(runtime.lock_timeout_ms),
            ),
            clock: clock.clone(),
            owner: owner(),
            tick: Duration::from_millis(runtime.tick_ms),
            emits: match log.backend() {
                Backend::Postgres => Emits::Direct(all.into()),
                Backend::Kafka => Emits::Relayed,
            },
        };
        let host = mount.host(config, runtime.arbiters, all)?;
        let consumer = log
            .consumer(runtime, group.name, topics, Arc::clone(&host) as _)
            .with_context(|| format!("starting the consumer of group `{}`", group.name))?;
        Ok(Group {
            name: group.name,
            host,
            consumer,
        })
    }

    /// Sends on what the group's partitions of this process emit; on the Postgres log, what an older build has left.
    pub fn relay(
        &self,
        database: &Database,
        producer: &Arc<dyn Producer>,
        topics: &[TopicRef],
    ) -> impl Future<Output = ()> + Send + 'static {
        let host = Arc::clone(&self.host);
        let relayed = Relayed {
            connector: log::connector(&database.for_role("relay")),
            producer: Arc::clone(producer),
            topics: topics.to_vec(),
            group: self.name.to_owned(),
            sent: Arc::new(|| {
                let _ = failpoint::hit("relay.sent");
            }),
            idle: RELAY_IDLE,
        };
        millrace_topics::relay::keep(relayed, move || host.owned())
    }
}

/// How this process names itself in `ownership.owner`.
fn owner() -> String {
    format!(
        "{}:{}",
        rustix::system::uname().nodename().to_string_lossy(),
        std::process::id()
    )
}
