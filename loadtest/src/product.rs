//! The product's attribution without its command line: the same consumer, host and actors, wired as `run` wires them. For
//! profiling, and for measuring what the program's own start is not part of.

use anyhow::Context;
use millrace::attribution::actor::Attribution;
use millrace::postgres::pool::Database;
use millrace::runtime::books::Emits;
use millrace::runtime::clock::SystemClock;
use millrace::runtime::connector::connector;
use millrace::runtime::host::{GroupHost, HostConfig};
use millrace::settings;
use millrace_topics::catalogue::{self, ATTRIBUTION};
use millrace_topics::contract::{BatchLimits, Subscription};
use millrace_topics::kafka::{KafkaConsumer, KafkaSettings};
use std::sync::Arc;
use std::time::Duration;

/// What to consume, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Kafka's brokers.
    #[arg(long)]
    pub brokers: String,
    /// The database.
    #[arg(long)]
    pub database: String,
    /// Arbiters.
    #[arg(long, default_value_t = 2)]
    pub arbiters: usize,
    /// Records a transaction.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
    /// Clicks of a partition's slice.
    #[arg(long, default_value_t = 100_000)]
    pub slice_clicks: usize,
}

/// Consumes until the process is ended.
///
/// # Errors
/// The database or the topics are not there.
pub fn consume(options: &Options) -> anyhow::Result<()> {
    let settings = settings::Database {
        url: Some(options.database.clone()),
        ..settings::Database::default()
    };
    let database = Database::new(&settings, "attribution")?;
    actix_rt::System::new().block_on(async move {
        let (client, _driver) = database.single().await?;
        let topics = catalogue::group_topics(&catalogue::load(&client).await?, &ATTRIBUTION)?;
        let connect = connector(&database, Duration::from_secs(2));
        let config = HostConfig {
            topics: topics.clone(),
            connect,
            clock: Arc::new(SystemClock),
            owner: format!("loadtest:{}", std::process::id()),
            tick: Duration::from_secs(1),
            emits: Emits::Relayed,
        };
        let attribution = settings::Attribution {
            slice_clicks: options.slice_clicks,
            ..settings::Attribution::default()
        };
        let host = GroupHost::new(config, options.arbiters, move || {
            Attribution::new(attribution.clone())
        });
        let limits = BatchLimits {
            records: options.batch,
            high_records: options.batch * 2,
            ..BatchLimits::default()
        };
        let _consumer = KafkaConsumer::start(
            &KafkaSettings {
                brokers: options.brokers.clone(),
                ..KafkaSettings::default()
            },
            Subscription {
                group: ATTRIBUTION.name.to_owned(),
                topics,
                limits,
            },
            host,
        )
        .context("the consumer")?;
        std::future::pending::<anyhow::Result<()>>().await
    })
}
