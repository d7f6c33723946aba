//! A member of a Kafka consumer group that tests start, stop and kill: it holds what it is given, commits nothing and tells
//! what it sees. `kafka-member BROKERS classic|consumer GROUP TOPIC:PARTITIONS …`

use anyhow::{Context, bail, ensure};
use millrace_tests::recording_host::{Event, RecordingHost, RecordingStore};
use millrace_topics::contract::{BatchLimits, Subscription, TopicRef};
use millrace_topics::kafka::{GroupProtocol, KafkaConsumer, KafkaSettings};
use std::sync::Arc;
use std::time::Duration;

/// Whoever started it kills it within that time; else it ends by itself.
const LIFETIME: Duration = Duration::from_secs(600);

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_ansi(false).init();
    let mut arguments = std::env::args().skip(1);
    let mut next = |what| arguments.next().context(what);
    let settings = KafkaSettings {
        brokers: next("brokers")?,
        protocol: match next("a protocol")?.as_str() {
            "classic" => GroupProtocol::Classic,
            "consumer" => GroupProtocol::Consumer,
            other => bail!("no protocol {other}"),
        },
        ..KafkaSettings::default()
    };
    let group = next("a group")?;
    let topics = (1..)
        .zip(arguments)
        .map(|(no, topic)| {
            let (name, partitions) = topic.rsplit_once(':').context("TOPIC:PARTITIONS")?;
            Ok(TopicRef {
                no,
                name: name.to_owned(),
                log_name: name.to_owned(),
                partitions: partitions.parse()?,
            })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let numbers: Vec<i32> = topics.iter().map(|t| t.no).collect();
    let host = RecordingHost::new("member", &numbers, &RecordingStore::new());
    host.hold();
    let subscription = Subscription {
        group,
        topics,
        limits: BatchLimits::default(),
    };
    let _consumer = KafkaConsumer::start(&settings, subscription, Arc::clone(&host) as _)?;
    let mut told = 0;
    loop {
        let seen = host.wait_events(LIFETIME, |events| events.len() > told);
        ensure!(seen, "nobody killed this process");
        let events = host.events();
        for event in events.iter().skip(told) {
            match event {
                Event::Assigned { .. } => println!("owns {}.", host.owned().len()),
                Event::Revoked { lost, .. } => println!("revoked, lost: {lost}."),
                _ => {}
            }
        }
        told = events.len();
    }
}
