//! The log alone: records written and acknowledged, then read by a consumer that does nothing with them. The product's own
//! producers and consumers, the Postgres log by records an append, and Kafka.

mod counter;

use crate::broker::Broker;
use crate::cpu::{Clocks, Spent};
use crate::report::{median, publish};
use crate::{machine, stack};
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use counter::Counter;
use millrace_tests::kafka::group_name;
use millrace_tests::postgres::DedicatedServer;
use millrace_topics::contract::{
    Acknowledgement, BatchLimits, Consumer, Outgoing, Producer, Subscription, TopicRef,
};
use millrace_topics::kafka::{KafkaConsumer, KafkaProducer, KafkaSettings};
use millrace_topics::pglog::{
    self, Connector, ConsumerOptions, PgLogConsumer, PgLogProducer, ProducerOptions,
};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// How to measure the log.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Which logs.
    #[arg(long, value_enum, default_value_t = Which::Both)]
    backend: Which,
    /// Records in both topics; one in ten is in the second.
    #[arg(long, default_value_t = 1_000_000)]
    records: usize,
    /// Rounds of each, in turns; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Partitions of both topics.
    #[arg(long, default_value_t = 8)]
    partitions: i32,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    dry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Postgres,
    Kafka,
    Both,
}

/// Bytes of a record's payload; its key has 16 more.
const PAYLOAD: usize = 384;
/// Records that wait for their acknowledgement at a time, as from many clients of a door.
const UNDER_WAY: usize = 50_000;
/// Records an append of the Postgres log, at most; the last is the product's default.
const APPENDS: [usize; 4] = [100, 500, 1_000, 5_000];

type StartConsumer = dyn FnOnce(Arc<Counter>, Subscription) -> anyhow::Result<Box<dyn Consumer>>;

/// A log that runs, empty.
struct Log {
    name: String,
    /// Its server's process.
    pid: u32,
    topics: Vec<TopicRef>,
    producer: Box<dyn Producer>,
    consumer: Box<StartConsumer>,
}

/// One way through one log.
#[derive(Clone, Copy, Debug)]
struct Half {
    rate: f64,
    /// CPU-µs a record.
    client: f64,
    server: f64,
    /// Cores that others kept busy.
    others: f64,
}

impl Half {
    fn new(records: usize, spent: &Spent<1>) -> Half {
        let per_record = |d: Duration| d.as_secs_f64() * 1e6 / records as f64;
        let [server] = spent.trees;
        Half {
            rate: records as f64 / spent.wall.as_secs_f64(),
            client: per_record(spent.own),
            server: per_record(server),
            others: spent.others(spent.own + server),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Round {
    write: Half,
    read: Half,
    batch: f64,
}

/// Runs it.
///
/// # Errors
/// A server is missing or fails, or a log loses or refuses a record.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let postgres = match options.backend {
        Which::Kafka => None,
        _ => Some(
            tokio::task::spawn_blocking(|| {
                DedicatedServer::start_durable_with(&stack::POSTGRES_SETTINGS)
            })
            .await?,
        ),
    };
    let broker = match options.backend {
        Which::Postgres => None,
        _ => Some(tokio::task::spawn_blocking(Broker::start).await??),
    };
    let mut seen: Vec<(String, Vec<Round>)> = Vec::new();
    let mut keep = |name: String, round: Round| {
        println!(
            "{name}: written at {:.0} records/s, read at {:.0}",
            round.write.rate, round.read.rate
        );
        match seen.iter_mut().find(|(n, _)| *n == name) {
            Some((_, rounds)) => rounds.push(round),
            None => seen.push((name, vec![round])),
        }
    };
    for _ in 0..options.rounds.max(1) {
        if let Some(server) = &postgres {
            for append in APPENDS {
                let (database, topics) = stack::database_on(server, options.partitions).await?;
                let client = database.client().await;
                for topic in &topics {
                    pglog::create_topic(&client, topic).await?;
                }
                // What earlier rounds left to be written is not this one's.
                client.batch_execute("CHECKPOINT").await?;
                let pid = server.pid().context("the server runs")?;
                let log = postgres_log(database.url(), pid, topics, append)?;
                let name = log.name.clone();
                keep(name, round(log, options).await?);
            }
        }
        if let Some(broker) = &broker {
            let log = kafka_log(broker, options.partitions).await?;
            let name = log.name.clone();
            keep(name, round(log, options).await?);
        }
    }
    let body = section(options, broker.as_ref().map(Broker::version), &seen)?;
    publish("log", &body, !options.dry)
}

fn postgres_log(url: &str, pid: u32, topics: Vec<TopicRef>, append: usize) -> anyhow::Result<Log> {
    let defaults = ProducerOptions::default();
    let producing = ProducerOptions {
        batch_records: append,
        linger_records: defaults.linger_records.min(append),
        ..defaults
    };
    let connector = Connector::plain(url)?;
    Ok(Log {
        name: format!("Postgres log, at most {append} an append"),
        pid,
        producer: Box::new(PgLogProducer::start(connector.clone(), &topics, producing)?),
        topics,
        consumer: Box::new(move |host, subscription| {
            let options = ConsumerOptions::default();
            let consumer = PgLogConsumer::start(connector, subscription, host, options)?;
            Ok(Box::new(consumer))
        }),
    })
}

async fn kafka_log(broker: &Broker, partitions: i32) -> anyhow::Result<Log> {
    let settings = KafkaSettings {
        brokers: broker.address().to_owned(),
        ..KafkaSettings::default()
    };
    let topics = stack::fresh_topics(&settings, partitions).await?;
    Ok(Log {
        name: "Kafka, one node".to_owned(),
        pid: broker.pid(),
        producer: Box::new(KafkaProducer::start(&settings, &topics)?),
        topics,
        consumer: Box::new(move |host, subscription| {
            let consumer = KafkaConsumer::start(&settings, subscription, host)?;
            Ok(Box::new(consumer))
        }),
    })
}

async fn round(log: Log, options: &Options) -> anyhow::Result<Round> {
    let Log {
        pid,
        topics,
        producer,
        consumer,
        ..
    } = log;
    // The connection is made before the clock runs.
    producer
        .health(Duration::from_secs(10))
        .await
        .map_err(anyhow::Error::msg)?;
    let clocks = Clocks::read([pid]);
    write_all(producer.as_ref(), &topics, options.records).await?;
    let write = Half::new(options.records, &clocks.since());
    producer.close(Duration::from_secs(10)).await;

    let counter = Counter::new(&topics);
    let subscription = Subscription {
        // A fresh one each time: another round's positions are another log's.
        group: group_name("log"),
        topics,
        limits: BatchLimits::default(),
    };
    let consumer = consumer(Arc::clone(&counter), subscription)?;
    let records = options.records;
    tokio::task::spawn_blocking(move || {
        // From the first batch on: the group's forming is not measured.
        let first = counter.wait(1)?;
        let clocks = Clocks::read([pid]);
        let last = counter.wait(records)?;
        let spent = clocks.since();
        consumer.shutdown();
        ensure!(
            last.records == records,
            "{} records read, {records} written",
            last.records
        );
        Ok(Round {
            write,
            read: Half::new(last.records - first.records, &spent),
            batch: last.records as f64 / last.batches as f64,
        })
    })
    .await?
}

/// Writes the records and waits for every acknowledgement.
async fn write_all(
    producer: &dyn Producer,
    topics: &[TopicRef],
    records: usize,
) -> anyhow::Result<()> {
    let [first, second] = topics else {
        bail!("two topics were made");
    };
    let payload = Bytes::from(vec![b'x'; PAYLOAD]);
    let mut waiting = VecDeque::with_capacity(UNDER_WAY);
    for i in 0..records {
        if waiting.len() == UNDER_WAY
            && let Some(oldest) = waiting.pop_front()
        {
            acknowledged(oldest).await?;
        }
        let topic = if i % 10 == 9 { second } else { first };
        waiting.push_back(producer.produce(Outgoing {
            topic_no: topic.no,
            // Ten records in a row have one key.
            key: Bytes::from(format!("{:016x}", i / 10)),
            payload: payload.clone(),
        }));
    }
    for acknowledgement in waiting {
        acknowledged(acknowledgement).await?;
    }
    Ok(())
}

async fn acknowledged(acknowledgement: Acknowledgement) -> anyhow::Result<()> {
    acknowledgement.await.context("the producer ended")??;
    Ok(())
}

fn section(
    options: &Options,
    kafka: Option<&str>,
    seen: &[(String, Vec<Round>)],
) -> anyhow::Result<String> {
    let mut out = String::new();
    writeln!(out, "## The log alone\n")?;
    writeln!(out, "{}\n", machine::describe(kafka, None::<u64>))?;
    writeln!(
        out,
        "{} records of {} bytes in two topics of {} partitions, through the product's producers and consumers; written by one program\nthat has at most {UNDER_WAY} unacknowledged, then read by a consumer that drops them. PostgreSQL durable (fsync on), with\n{}. CPU-µs a record; medians of {} rounds in turns.\n",
        options.records,
        PAYLOAD + 16,
        options.partitions,
        stack::POSTGRES_SETTINGS.join(", "),
        options.rounds.max(1),
    )?;
    writeln!(
        out,
        "| | written, records/s | program | server | read, records/s | program | server | records a batch |\n|---|---|---|---|---|---|---|---|"
    )?;
    let mut others: f64 = 0.0;
    for (name, rounds) in seen {
        let of = |f: fn(&Round) -> f64| median(&rounds.iter().map(f).collect::<Vec<_>>());
        writeln!(
            out,
            "| {name} | {:.0} | {:.2} | {:.2} | {:.0} | {:.2} | {:.2} | {:.0} |",
            of(|r| r.write.rate),
            of(|r| r.write.client),
            of(|r| r.write.server),
            of(|r| r.read.rate),
            of(|r| r.read.client),
            of(|r| r.read.server),
            of(|r| r.batch),
        )?;
        others = others.max(of(|r| r.write.others.max(r.read.others)));
    }
    writeln!(
        out,
        "\nAt most {} an append is the product's default; a door with few clients makes smaller appends, each with its fsync. Others used\nup to {others:.2} of the {} cores meanwhile.",
        ProducerOptions::default().batch_records,
        std::thread::available_parallelism().map_or(0, usize::from),
    )?;
    Ok(out)
}
