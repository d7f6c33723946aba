//! Topic to topic: the same work with a ledger topic at its end, without PostgreSQL; shown, without a target.

use super::content;
use super::measure::{Bench, Round, State, run_name, used};
use super::peer::{Given, Peer};
use crate::cpu::Clocks;
use anyhow::{Context, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::time::{Duration, Instant};

/// Runs a contender from both topics to a ledger topic; it is done when its group has committed all offsets. Then the topic's rows
/// are counted.
///
/// # Errors
/// It ends or stands still, or the topic does not hold each row of the workload once.
pub async fn round(bench: &Bench<'_>, peer: Peer) -> anyhow::Result<Round> {
    let run = run_name(peer);
    let state = State::new(&run)?;
    let partitions = bench.tuning.partitions;
    let admin = bench.stack.admin();
    admin.create_topic(&run, partitions, 1).await?;
    let clocks = Clocks::read([bench.stack.kafka_pid(), bench.stack.postgres_pid()]);
    let mut running = peer.start(&Given {
        brokers: bench.stack.brokers(),
        database: None,
        run: &run,
        ledger: &run,
        topics: "1,2",
        tried: bench.tried.get(&peer).map_or("", String::as_str),
        tuning: &bench.tuning,
        state: state.path(),
    })?;
    let group: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bench.stack.brokers())
        .set("group.id", &run)
        .create()?;
    let mut list = TopicPartitionList::new();
    for topic in ["clicks", "postbacks"] {
        list.add_partition_range(topic, 0, partitions - 1);
    }
    let mut began: Option<(u64, Instant, Duration)> = None;
    let (mut before, mut moved) = (0, Instant::now());
    let round = loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let asked = list.clone();
        let committed =
            tokio::task::block_in_place(|| group.committed_offsets(asked, Duration::from_secs(10)));
        // A coordinator that is not there yet.
        let at = committed.map_or(before, |list| {
            let offsets = list.elements();
            offsets.iter().map(|e| offset(e.offset())).sum()
        });
        if at > before {
            (before, moved) = (at, Instant::now());
        }
        if at > 0 && began.is_none() {
            began = Some((at, Instant::now(), used(&running)));
        }
        if let Some((first, since, start)) = began
            && at >= bench.totals.records
        {
            let share = (at - first) as f64 / at as f64;
            break bench.take(&running, &clocks, start, |records| {
                records * share / since.elapsed().as_secs_f64().max(1e-3)
            });
        }
        for (what, process) in &mut running {
            process.check().with_context(|| (*what).to_owned())?;
        }
        ensure!(
            moved.elapsed() < Duration::from_secs(60),
            "{}: no progress for a minute at {before} of {}",
            peer.name(),
            bench.totals.records
        );
    };
    // Before the processes end: one commits offsets before the topic has what it produced.
    let (brokers, totals) = (bench.stack.brokers(), &bench.totals);
    tokio::task::block_in_place(|| content::check(brokers, &run, partitions, totals))
        .with_context(|| format!("{}, topic to topic", peer.name()))?;
    for (_, process) in &mut running {
        process.stop().await?;
    }
    admin.delete_topic(&run).await?;
    if peer.has_ledger_topic() {
        admin
            .delete_topic(&format!("{run}-journeys-changelog"))
            .await?;
    }
    Ok(round)
}

fn offset(offset: Offset) -> u64 {
    match offset {
        Offset::Offset(at) => u64::try_from(at).unwrap_or(0),
        _ => 0,
    }
}
