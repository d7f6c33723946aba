//! Who takes part: names, guarantees, settings, and how each is started.

use super::build;
use crate::contender::{Contender, Running, Tuning};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Peer {
    /// `millrace run --roles attribution`.
    Product,
    /// The bare rdkafka loop: the limit.
    Bare,
    /// Kafka Streams with its state in memory, and its sink.
    Streams,
    /// The same with its state in RocksDB.
    StreamsRocksdb,
    /// `sentry_arroyo`.
    Arroyo,
    /// Quix Streams.
    Quix,
}

/// What a contender promises by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Each record's effects once, through crashes and rebalances.
    ExactlyOnce,
    /// At-least-once; what comes twice must be dropped by code that is not its own.
    AtLeastOnce,
    /// None to be compared: the limit.
    Limit,
}

impl Guarantee {
    /// For a table.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Guarantee::ExactlyOnce => "exactly once",
            Guarantee::AtLeastOnce => "at least once",
            Guarantee::Limit => "the limit",
        }
    }
}

/// What a run gives each contender.
pub struct Given<'a> {
    /// Kafka's brokers.
    pub brokers: &'a str,
    /// The database; none topic to topic.
    pub database: Option<&'a str>,
    /// What is the run's own: consumer group, application id.
    pub run: &'a str,
    /// The ledger topic, where there is one.
    pub ledger: &'a str,
    /// Numbers of `clicks` and `postbacks`.
    pub topics: &'a str,
    /// Settings in place of the file's.
    pub tried: &'a str,
    /// What the product and the bare loop are told.
    pub tuning: &'a Tuning,
    /// A folder for state, removed after the run.
    pub state: &'a Path,
}

impl Peer {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Peer::Product => Contender::Product.name(),
            Peer::Bare => Contender::Bare.name(),
            Peer::Streams => "Kafka Streams, memory",
            Peer::StreamsRocksdb => "Kafka Streams, RocksDB",
            Peer::Arroyo => "sentry_arroyo",
            Peer::Quix => "Quix Streams",
        }
    }

    /// What it promises.
    #[must_use]
    pub fn guarantee(self) -> Guarantee {
        match self {
            Peer::Product | Peer::Streams | Peer::StreamsRocksdb => Guarantee::ExactlyOnce,
            Peer::Bare => Guarantee::Limit,
            Peer::Arroyo | Peer::Quix => Guarantee::AtLeastOnce,
        }
    }

    /// The same in words, with how each row comes to stand once.
    #[must_use]
    pub fn promise(self) -> &'static str {
        match self {
            Peer::Product => {
                "exactly once: epoch and positions in the rows' transaction; joins, from a slice and the store"
            }
            Peer::Bare => {
                "none: positions in the transaction, no fence; joins nothing, takes the visit from the generator"
            }
            Peer::Streams | Peer::StreamsRocksdb => {
                "exactly once: `exactly_once_v2`, then a read_committed sink with its offsets in the rows' transaction; joins, from its state store"
            }
            Peer::Arroyo => {
                "at least once; rows once by positions that our code keeps in their transaction; joins nothing, as the bare loop"
            }
            Peer::Quix => {
                "at least once; rows once by positions that our sink keeps in their transaction; joins nothing, as the bare loop"
            }
        }
    }

    /// Where its settings stand, from the folder of this crate.
    #[must_use]
    pub fn settings(self) -> Option<&'static str> {
        match self {
            Peer::Product | Peer::Bare => None,
            Peer::Streams | Peer::StreamsRocksdb => Some("peers/streams/peer.properties"),
            Peer::Arroyo => Some("peers/arroyo/peer.toml"),
            Peer::Quix => Some("peers/python/peer.toml"),
        }
    }

    /// The group under which it keeps its positions in the store.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Peer::Product => Contender::Product.group(),
            Peer::Bare => Contender::Bare.group(),
            Peer::Streams | Peer::StreamsRocksdb => "streams",
            Peer::Arroyo => "arroyo",
            Peer::Quix => "quix",
        }
    }

    /// Whether it keeps a ledger topic between its work and the store.
    #[must_use]
    pub fn has_ledger_topic(self) -> bool {
        matches!(self, Peer::Streams | Peer::StreamsRocksdb)
    }

    /// Whether going from topics to a topic is natural to it.
    #[must_use]
    pub fn topic_to_topic(self) -> bool {
        !matches!(self, Peer::Product | Peer::Quix)
    }

    /// Starts its processes, each with what it is.
    ///
    /// # Errors
    /// A program is not there.
    pub fn start(self, given: &Given<'_>) -> anyhow::Result<Vec<(&'static str, Running)>> {
        let contender = match self {
            Peer::Product => Contender::Product,
            Peer::Bare => Contender::Bare,
            Peer::Arroyo => return one("arroyo", self.arroyo(given)),
            Peer::Quix => return one("quix", self.quix(given)),
            Peer::Streams | Peer::StreamsRocksdb => return self.streams(given),
        };
        if let Some(database) = given.database {
            let running = contender.start(given.brokers, database, given.tuning)?;
            return Ok(vec![("consumer", running)]);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("bare-ledger")
            .args(["--brokers", given.brokers, "--group", given.run])
            .args(["--ledger", given.ledger, "--topics", given.topics])
            .args(["--consumers", &given.tuning.arbiters.to_string()])
            .args(["--batch", &given.tuning.batch.to_string()]);
        one("consumer", command)
    }

    fn settings_file(self) -> PathBuf {
        build::folder().join(self.settings().unwrap_or_default())
    }

    fn arroyo(self, given: &Given<'_>) -> Command {
        let mut command = Command::new(build::arroyo());
        command
            .args(["--brokers", given.brokers, "--group", given.run])
            .args(["--topics", given.topics, "--set", given.tried])
            .arg("--settings")
            .arg(self.settings_file());
        match given.database {
            Some(database) => command.args(["--database", database]),
            None => command.args(["--ledger", given.ledger]),
        };
        command
    }

    fn quix(self, given: &Given<'_>) -> Command {
        let mut command = Command::new(build::python());
        command
            .arg(build::folder().join("peers/python/peer.py"))
            .args(["--brokers", given.brokers, "--group", given.run])
            .args(["--database", given.database.unwrap_or_default()])
            .args(["--topics", given.topics, "--set", given.tried])
            .arg("--state")
            .arg(given.state)
            .arg("--settings")
            .arg(self.settings_file());
        command
    }

    fn streams(self, given: &Given<'_>) -> anyhow::Result<Vec<(&'static str, Running)>> {
        let file = self.settings_file();
        let text = std::fs::read_to_string(&file)?;
        let store = if self == Peer::Streams {
            "memory"
        } else {
            "rocksdb"
        };
        // Topology and sink share a JVM where the settings give one for both.
        let shared = !build::property(&text, "jvm.both").is_empty();
        let roles: &[(&str, &'static str)] = match (given.database, shared) {
            (Some(_), true) => &[("both", "streams and sink")],
            (Some(_), false) => &[("streams", "streams"), ("sink", "sink")],
            (None, _) => &[("streams", "streams")],
        };
        roles
            .iter()
            .map(|(role, what)| {
                let mut command = Command::new("java");
                command
                    .args(build::property(&text, &format!("jvm.{role}")).split_whitespace())
                    .arg("-cp")
                    .arg(build::class_path())
                    .args(["millrace.peers.Main", role, "--settings"])
                    .arg(&file)
                    .args(["--set", &format!("store={store},{}", given.tried)])
                    .args(["--brokers", given.brokers, "--application", given.run])
                    .args(["--topics", given.topics, "--ledger", given.ledger])
                    .args(["--partitions", &given.tuning.partitions.to_string()])
                    .arg("--state-dir")
                    .arg(given.state);
                if let Some((_, at)) = given.database.and_then(|url| url.split_once('@')) {
                    command.args(["--jdbc", &format!("jdbc:postgresql://{at}")]);
                }
                Ok((*what, Running::start(command, what)?))
            })
            .collect()
    }
}

fn one(what: &'static str, command: Command) -> anyhow::Result<Vec<(&'static str, Running)>> {
    Ok(vec![(what, Running::start(command, what)?)])
}
