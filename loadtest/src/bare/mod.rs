//! The comparator of consuming: a consumer loop that writes the same rows into the same tables by the fastest statements
//! known, and decides nothing.
//!
//! As many consumers as the product has arbiters, each on a thread of its own with its share of the partitions; one
//! connection a partition; the product's number of records a transaction; the positions move in the same transaction. COPY
//! BINARY where nothing conflicts, `INSERT … SELECT unnest … ON CONFLICT DO NOTHING` for the identity keys; all statements
//! of a transaction are sent at once. No claim, no fence, no read, no slice, no outcome counts. What it must know beyond the
//! record it takes from the generator: a mark on repeats (no row but the postback log's) and on early postbacks (their parked
//! row is written and later deleted, their second log row written, and their conversion booked at once), and the visit
//! behind a click id (campaign, offers, visit id).

pub mod ledger;
mod line;
mod rows;

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures::SinkExt;
use millrace::postgres::copy::Rows;
use millrace::postgres::types::Tz;
use millrace::runtime::clock::{Clock, SystemClock};
use millrace_schemas::ids::RecordId;
use millrace_topics::contract::TopicRef;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use rows::Batch;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

/// What to consume, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Kafka's brokers.
    #[arg(long)]
    pub brokers: String,
    /// The database, migrated, with both topics in its catalogue.
    #[arg(long)]
    pub database: String,
    /// Consumers, each a thread.
    #[arg(long, default_value_t = 2)]
    pub consumers: usize,
    /// Records a transaction.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
    /// Bytes a transaction.
    #[arg(long, default_value_t = 4 << 20)]
    pub batch_bytes: usize,
}

/// The group under which the loop keeps its positions.
pub const GROUP: &str = "bare";

const VISITS: &str = "COPY visits (workspace_id, click_key, visit_id, record_id, accepted_at, occurred_at, stage, direct, click_id, campaign_id, offer_id, ip, ip_hash, user_agent, source_url, fbp, fbc, params, journey) FROM STDIN BINARY";
const CLICKS: &str = "COPY clicks (workspace_id, click_key, record_id, accepted_at, occurred_at, stage, click_id, campaign_id, offer_id) FROM STDIN BINARY";
const CONVERSIONS: &str = "COPY conversions (workspace_id, conversion_id, click_key, accepted_at, occurred_at, booked_at, click_id, campaign_id, visit_id, offer_id, role, network_id, external_id, txid, event, provider_event, returned_offer, payout, currency, status, status_at, email_hash, phone_hash, lead_hash, flags) FROM STDIN BINARY";
const LOG: &str = "COPY postback_log (workspace_id, record_id, accepted_at, decided_at, click_key, conversion_id, outcome, reason, network_id, query) FROM STDIN BINARY";
const PARKED: &str = "COPY parked (workspace_id, click_key, record_id, hash, accepted_at, deadline, kind, click_id, payload) FROM STDIN BINARY";
const KEYS: &str = "INSERT INTO conversion_keys (key, conversion_id, accepted_at) SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) ON CONFLICT DO NOTHING";
const WAKE: &str = "DELETE FROM parked WHERE click_key = ANY($1)";
const MOVE: &str = "UPDATE positions p SET next_offset = m.next, consumed = consumed + $5 FROM unnest($3::int4[], $4::int8[]) AS m(topic_no, next) WHERE p.group_name = $1 AND p.partition = $2 AND p.topic_no = m.topic_no";

/// Consumes both topics from their beginning to the ends that they have now.
///
/// # Errors
/// Kafka or PostgreSQL is away, or a record is none of the workload's.
pub fn consume(options: &Options) -> anyhow::Result<std::convert::Infallible> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let topics = runtime.block_on(prepare(options))?;
    let partitions = topics.first().map_or(0, |t| t.partitions);
    let consumers = i32::try_from(options.consumers)?.max(1);
    let mut lanes: Vec<HashMap<i32, mpsc::Sender<Batch>>> = Vec::new();
    let mut writers = Vec::new();
    let local = tokio::task::LocalSet::new();
    for consumer in 0..consumers {
        let mut mine = HashMap::new();
        for partition in (0..partitions).filter(|p| p % consumers == consumer) {
            // One batch is written while the next is made.
            let (send, receive) = mpsc::channel(1);
            mine.insert(partition, send);
            let options = options.clone();
            writers
                .push(local.spawn_local(async move { write(&options, partition, receive).await }));
        }
        lanes.push(mine);
    }
    let readers: Vec<_> = lanes
        .into_iter()
        .map(|mine| {
            let (options, topics) = (options.clone(), topics.clone());
            std::thread::spawn(move || read(&options, &topics, mine))
        })
        .collect();
    runtime.block_on(local.run_until(async {
        for writer in writers {
            writer.await??;
        }
        anyhow::Ok(())
    }))?;
    for reader in readers {
        reader
            .join()
            .map_err(|_| anyhow::anyhow!("a consumer panicked"))??;
    }
    // Stays, so that whoever measures can read its CPU time.
    loop {
        std::thread::park();
    }
}

async fn prepare(options: &Options) -> anyhow::Result<Vec<TopicRef>> {
    let client = connect(&options.database).await?;
    let all = millrace_topics::catalogue::load(&client).await?;
    let topics =
        millrace_topics::catalogue::group_topics(&all, &millrace_topics::catalogue::ATTRIBUTION)?;
    for topic in &topics {
        client
            .execute(
                "INSERT INTO positions (group_name, partition, topic_no) SELECT $1, generate_series(0, $2 - 1), $3 ON CONFLICT DO NOTHING",
                &[&GROUP, &topic.partitions, &topic.no],
            )
            .await?;
    }
    Ok(topics)
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// One consumer: polls, parses, makes rows, hands whole batches to the partition's writer.
fn read(
    options: &Options,
    topics: &[TopicRef],
    lanes: HashMap<i32, mpsc::Sender<Batch>>,
) -> anyhow::Result<()> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &options.brokers)
        .set("group.id", GROUP)
        .set("enable.auto.commit", "false")
        .set("fetch.queue.backoff.ms", "2")
        .create()?;
    let (mut list, mut left) = (TopicPartitionList::new(), 0_i64);
    for topic in topics {
        for partition in lanes.keys() {
            let wait = Duration::from_secs(10);
            let (low, high) = consumer.fetch_watermarks(&topic.log_name, *partition, wait)?;
            ensure!(low == 0, "the topic does not begin at 0");
            left += high;
            list.add_partition_offset(&topic.log_name, *partition, Offset::Offset(0))?;
        }
    }
    consumer.assign(&list)?;
    let numbers: Vec<(&str, i32)> = topics.iter().map(|t| (t.log_name.as_str(), t.no)).collect();
    let clicks = numbers.first().map_or(0, |(_, no)| *no);
    let mut open: HashMap<i32, Batch> = HashMap::new();
    while left > 0 {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let message = message?;
        let topic_no = numbers
            .iter()
            .find(|(name, _)| *name == message.topic())
            .map_or(0, |(_, no)| *no);
        let id = RecordId {
            topic_no,
            partition: message.partition(),
            offset: message.offset(),
        };
        let payload = message.payload().unwrap_or_default();
        let batch = open.entry(id.partition).or_default();
        if topic_no == clicks {
            batch.click(id, payload)?;
        } else {
            batch.postback(id, payload, SystemClock.wall())?;
        }
        left -= 1;
        if batch.records >= options.batch || batch.bytes >= options.batch_bytes {
            let full = std::mem::take(batch);
            hand_over(&lanes, id.partition, full)?;
        }
    }
    for (partition, batch) in open {
        if batch.records > 0 {
            hand_over(&lanes, partition, batch)?;
        }
    }
    Ok(())
}

fn hand_over(
    lanes: &HashMap<i32, mpsc::Sender<Batch>>,
    partition: i32,
    batch: Batch,
) -> anyhow::Result<()> {
    lanes
        .get(&partition)
        .context("a partition that was not assigned")?
        .blocking_send(batch)
        .map_err(|_| anyhow::anyhow!("the writer of partition {partition} has ended"))
}

struct Statements {
    visits: Statement,
    clicks: Statement,
    conversions: Statement,
    log: Statement,
    parked: Statement,
    keys: Statement,
    wake: Statement,
    advance: Statement,
}

async fn write(
    options: &Options,
    partition: i32,
    mut batches: mpsc::Receiver<Batch>,
) -> anyhow::Result<()> {
    let client = connect(&options.database).await?;
    let sql = Statements {
        visits: client.prepare(VISITS).await?,
        clicks: client.prepare(CLICKS).await?,
        conversions: client.prepare(CONVERSIONS).await?,
        log: client.prepare(LOG).await?,
        parked: client.prepare(PARKED).await?,
        keys: client.prepare(KEYS).await?,
        wake: client.prepare(WAKE).await?,
        advance: client.prepare(MOVE).await?,
    };
    let mut woken = Vec::new();
    while let Some(mut batch) = batches.recv().await {
        let waking = std::mem::replace(&mut woken, std::mem::take(&mut batch.woken));
        transaction(&client, &sql, partition, batch, &waking).await?;
    }
    client.execute(&sql.wake, &[&woken]).await?;
    Ok(())
}

async fn transaction(
    client: &Client,
    sql: &Statements,
    partition: i32,
    batch: Batch,
    woken: &[uuid::Uuid],
) -> anyhow::Result<()> {
    let mut keys = (Vec::new(), Vec::new(), Vec::new());
    for (key, (conversion, accepted_at)) in batch.keys {
        keys.0.push(key);
        keys.1.push(conversion);
        keys.2.push(Tz(accepted_at));
    }
    let (topics, next): (Vec<i32>, Vec<i64>) = batch.next.into_iter().unzip();
    let records = i64::try_from(batch.records)?;
    let moves: [&(dyn ToSql + Sync); 5] = [&GROUP, &partition, &topics, &next, &records];
    // Sent together; the server runs them in this order.
    let done = futures::join!(
        client.batch_execute("BEGIN"),
        copy(client, &sql.visits, batch.visits),
        copy(client, &sql.clicks, batch.clicks),
        copy(client, &sql.conversions, batch.conversions),
        copy(client, &sql.log, batch.postback_log),
        copy(client, &sql.parked, batch.parked),
        async {
            match keys.0.is_empty() {
                true => Ok(0),
                false => {
                    client
                        .execute(&sql.keys, &[&keys.0, &keys.1, &keys.2])
                        .await
                }
            }
        },
        async {
            match woken.is_empty() {
                true => Ok(0),
                false => client.execute(&sql.wake, &[&woken]).await,
            }
        },
        client.execute(&sql.advance, &moves),
        client.batch_execute("COMMIT"),
    );
    done.0?;
    for rows in [
        done.1, done.2, done.3, done.4, done.5, done.6, done.7, done.8,
    ] {
        rows?;
    }
    done.9?;
    Ok(())
}

async fn copy(
    client: &Client,
    statement: &Statement,
    rows: Rows,
) -> Result<u64, tokio_postgres::Error> {
    if rows.is_empty() {
        return Ok(0);
    }
    let sink = client.copy_in::<_, Bytes>(statement).await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(rows.into_stream()).await?;
    sink.finish().await
}
