//! sentry_arroyo on workload W: both topics through Reduce, two tasks (rows; the transaction) and CommitOffsets, as its own
//! users chain them.
//!
//! Its guarantee is at-least-once: offsets are committed to Kafka after the transaction. What comes again after a crash in
//! between is dropped by the positions that this program (not arroyo) keeps in the transaction. The rows are made by the very
//! code of the bare loop, and what must be known beyond the record is taken from the generator, as there.

extern crate self as millrace;

#[path = "../../../../actors/src/postgres/copy.rs"]
pub mod copy;
#[path = "../../../src/bare/line.rs"]
mod line;
#[path = "../../../src/bare/rows.rs"]
mod rows;
mod store;
mod strategy;
#[path = "../../../../actors/src/postgres/types.rs"]
pub mod types;
#[path = "../../../src/workload/visit.rs"]
#[allow(dead_code)]
mod visit;

/// Where the product has its COPY rows.
pub mod postgres {
    pub use crate::{copy, types};
}

const CAMPAIGNS: u32 = 60;
const WORKSPACES: u32 = 3;

/// What the bare loop takes from the generator.
mod workload {
    pub use crate::visit::VisitFacts;
    pub const MARK_REPEAT: &[u8] = br#""gen":"r"}"#;
    pub const MARK_EARLY: &[u8] = br#""gen":"e"}"#;
}

use anyhow::Context;
use clap::Parser;
use sentry_arroyo::backends::kafka::config::KafkaConfig;
use sentry_arroyo::backends::kafka::{InitialOffset, KafkaConsumer};
use sentry_arroyo::processing::{Callbacks, ConsumerState, StreamProcessor};
use sentry_arroyo::types::Topic;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use strategy::End;
use tokio::sync::Mutex;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What to consume, and how.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// Kafka's brokers.
    #[arg(long)]
    pub brokers: String,
    /// The database, where rows go into it.
    #[arg(long)]
    pub database: Option<String>,
    /// The ledger topic, where they go there.
    #[arg(long, conflicts_with = "database")]
    pub ledger: Option<String>,
    /// The consumer group.
    #[arg(long)]
    pub group: String,
    /// The numbers of `clicks` and `postbacks`.
    #[arg(long, value_delimiter = ',')]
    pub topics: Vec<i32>,
    /// The settings file.
    #[arg(long)]
    pub settings: PathBuf,
    /// Settings in its place, for trying: `processors=4`.
    #[arg(long, value_delimiter = ',')]
    pub set: Vec<String>,
}

/// The settings file.
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    /// Stream processors, each with a consumer and a connection of its own.
    pub processors: usize,
    /// Records a transaction.
    pub batch: usize,
    /// Milliseconds after which a smaller one is made.
    pub batch_ms: u64,
    /// Milliseconds between two commits of offsets to Kafka.
    pub commit_ms: u64,
    /// Milliseconds to wait when the strategy takes no more.
    pub rejected_ms: u64,
    /// Tasks under way at once where records are produced.
    pub produced_at_once: usize,
    /// Of librdkafka.
    pub consumer: HashMap<String, String>,
    /// Of librdkafka, too.
    pub producer: HashMap<String, String>,
}

fn settings(options: &Options) -> anyhow::Result<Settings> {
    let mut table: toml::Table = std::fs::read_to_string(&options.settings)?.parse()?;
    for pair in options.set.iter().filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').context("--set name=value")?;
        match name.strip_prefix("consumer.") {
            Some(name) => table
                .get_mut("consumer")
                .and_then(|t| t.as_table_mut())
                .context("no consumer settings")?
                .insert(name.to_owned(), value.to_owned().into()),
            None => table.insert(name.to_owned(), value.parse::<i64>()?.into()),
        };
    }
    Ok(table.try_into()?)
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let settings = settings(&options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut processors = Vec::new();
    for _ in 0..settings.processors {
        let numbers: [i32; 2] = options
            .topics
            .clone()
            .try_into()
            .map_err(|_| anyhow::anyhow!("--topics wants two numbers"))?;
        let end = match (&options.database, &options.ledger) {
            (Some(url), _) => {
                let store = runtime.block_on(store::Store::connect(url, numbers))?;
                End::Store(Arc::new(Mutex::new(store)))
            }
            (None, Some(topic)) => End::Ledger(
                KafkaConfig::new_producer_config(
                    vec![options.brokers.clone()],
                    Some(settings.producer.clone()),
                ),
                Topic::new(topic),
            ),
            (None, None) => anyhow::bail!("--database or --ledger"),
        };
        let factory = strategy::Factory {
            settings: settings.clone(),
            end,
            numbers,
            runtime: runtime.handle().clone(),
        };
        let (options, settings) = (options.clone(), settings.clone());
        processors.push(std::thread::spawn(move || -> anyhow::Result<()> {
            let config = KafkaConfig::new_consumer_config(
                vec![options.brokers],
                options.group,
                InitialOffset::Earliest,
                false,
                60_000,
                Some(settings.consumer),
            );
            let state = ConsumerState::new(Box::new(factory), None);
            let topics = [Topic::new("clicks"), Topic::new("postbacks")];
            let consumer = KafkaConsumer::new(config, &topics, Callbacks(state.clone()))
                .map_err(|e| anyhow::anyhow!("the consumer: {e}"))?;
            StreamProcessor::new(Box::new(consumer), state)
                .run()
                .map_err(|e| anyhow::anyhow!("the processor: {e}: {e:?}"))
        }));
    }
    for processor in processors {
        processor
            .join()
            .map_err(|_| anyhow::anyhow!("a processor panicked"))??;
    }
    Ok(())
}
