//! The transaction: the bare loop's statements, and the positions that tell what came before.

use crate::postgres::copy::Rows;
use crate::postgres::types::Tz;
use crate::rows::Batch;
use anyhow::ensure;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use sentry_arroyo::backends::kafka::types::KafkaPayload;
use sentry_arroyo::types::BrokerMessage;
use std::collections::BTreeMap;
use std::time::SystemTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

const GROUP: &str = "arroyo";
const COPIES: [&str; 5] = [
    "COPY visits (workspace_id, click_key, visit_id, record_id, accepted_at, occurred_at, stage, direct, click_id, campaign_id, offer_id, ip, ip_hash, user_agent, source_url, fbp, fbc, params, journey) FROM STDIN BINARY",
    "COPY clicks (workspace_id, click_key, record_id, accepted_at, occurred_at, stage, click_id, campaign_id, offer_id) FROM STDIN BINARY",
    "COPY conversions (workspace_id, conversion_id, click_key, accepted_at, occurred_at, booked_at, click_id, campaign_id, visit_id, offer_id, role, network_id, external_id, txid, event, provider_event, returned_offer, payout, currency, status, status_at, email_hash, phone_hash, lead_hash, flags) FROM STDIN BINARY",
    "COPY postback_log (workspace_id, record_id, accepted_at, decided_at, click_key, conversion_id, outcome, reason, network_id, query) FROM STDIN BINARY",
    "COPY parked (workspace_id, click_key, record_id, hash, accepted_at, deadline, kind, click_id, payload) FROM STDIN BINARY",
];
const KEYS: &str = "INSERT INTO conversion_keys (key, conversion_id, accepted_at) SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) ON CONFLICT DO NOTHING";
const WAKE: &str = "DELETE FROM parked WHERE click_key = ANY($1)";
const MAKE: &str = "INSERT INTO positions (group_name, partition, topic_no) SELECT $1, * FROM unnest($2::int4[], $3::int4[]) ON CONFLICT DO NOTHING";
const HELD: &str = "SELECT partition, topic_no, next_offset FROM positions WHERE group_name = $1 AND (partition, topic_no) IN (SELECT * FROM unnest($2::int4[], $3::int4[])) ORDER BY partition, topic_no FOR UPDATE";
const MOVE: &str = "UPDATE positions p SET next_offset = m.next, consumed = consumed + m.n FROM unnest($2::int4[], $3::int4[], $4::int8[], $5::int8[]) AS m(partition, topic_no, next, n) WHERE p.group_name = $1 AND p.partition = m.partition AND p.topic_no = m.topic_no";

/// A record as it came.
pub struct Raw {
    pub topic_no: i32,
    pub partition: i32,
    pub offset: i64,
    pub payload: KafkaPayload,
}

impl Raw {
    /// A message with its topic's number; the payload is shared.
    pub fn of(m: &BrokerMessage<KafkaPayload>, numbers: [i32; 2]) -> Raw {
        Raw {
            topic_no: numbers[usize::from(m.partition.topic.as_str() != "clicks")],
            partition: i32::from(m.partition.index),
            offset: i64::try_from(m.offset).unwrap_or(i64::MAX),
            payload: m.payload.clone(),
        }
    }
}

/// Rows of these records.
pub fn rows_of<'a>(raw: impl Iterator<Item = &'a Raw>, numbers: [i32; 2]) -> anyhow::Result<Batch> {
    let mut batch = Batch::default();
    for r in raw {
        let id = RecordId {
            topic_no: r.topic_no,
            partition: r.partition,
            offset: r.offset,
        };
        let payload = r.payload.payload().map_or(&[][..], Vec::as_slice);
        if r.topic_no == numbers[0] {
            batch.click(id, payload)?;
        } else {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            batch.postback(id, payload, Micros(i64::try_from(now.as_micros())?))?;
        }
    }
    Ok(batch)
}

/// A connection with its statements.
pub struct Store {
    client: Client,
    numbers: [i32; 2],
    copies: Vec<Statement>,
    keys: Statement,
    wake: Statement,
    make: Statement,
    held: Statement,
    advance: Statement,
    /// Early postbacks whose rows go in the next transaction, as in the bare loop.
    woken: Vec<Uuid>,
}

impl Store {
    pub async fn connect(url: &str, numbers: [i32; 2]) -> anyhow::Result<Store> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let mut copies = Vec::new();
        for copy in COPIES {
            copies.push(client.prepare(copy).await?);
        }
        Ok(Store {
            numbers,
            copies,
            keys: client.prepare(KEYS).await?,
            wake: client.prepare(WAKE).await?,
            make: client.prepare(MAKE).await?,
            held: client.prepare(HELD).await?,
            advance: client.prepare(MOVE).await?,
            woken: Vec::new(),
            client,
        })
    }

    /// Writes a batch; records below the stored positions are left out.
    pub async fn write(&mut self, raw: &[Raw], mut batch: Batch) -> anyhow::Result<()> {
        // By place: first offset, first one after, how many.
        let mut places: BTreeMap<(i32, i32), (i64, i64, i64)> = BTreeMap::new();
        for r in raw {
            let place = places
                .entry((r.partition, r.topic_no))
                .or_insert((r.offset, 0, 0));
            place.1 = r.offset + 1;
            place.2 += 1;
        }
        let (partitions, topics): (Vec<i32>, Vec<i32>) = places.keys().copied().unzip();
        self.client.batch_execute("BEGIN").await?;
        let mut held = self.held(&partitions, &topics).await?;
        if held.len() < places.len() {
            self.client
                .execute(&self.make, &[&GROUP, &partitions, &topics])
                .await?;
            held = self.held(&partitions, &topics).await?;
        }
        let at = |place| held.get(&place).copied().unwrap_or(0);
        if places
            .iter()
            .any(|(place, (first, ..))| at(*place) > *first)
        {
            let fresh = raw
                .iter()
                .filter(|r| r.offset >= at((r.partition, r.topic_no)));
            batch = rows_of(fresh, self.numbers)?;
            for (place, (_, next, n)) in &mut places {
                *n = (*next - at(*place)).max(0);
                *next = at(*place).max(*next);
            }
        } else {
            ensure!(
                places
                    .iter()
                    .all(|(place, (first, ..))| at(*place) == *first),
                "a gap: another consumer has not written what lies before"
            );
        }
        self.rows(batch, &partitions, &topics, places.into_values().collect())
            .await
    }

    async fn held(
        &self,
        partitions: &[i32],
        topics: &[i32],
    ) -> anyhow::Result<BTreeMap<(i32, i32), i64>> {
        let rows = self
            .client
            .query(&self.held, &[&GROUP, &partitions, &topics])
            .await?;
        Ok(rows
            .iter()
            .map(|r| ((r.get(0), r.get(1)), r.get(2)))
            .collect())
    }

    /// All statements of the transaction sent together, as the bare loop sends them.
    async fn rows(
        &mut self,
        batch: Batch,
        partitions: &[i32],
        topics: &[i32],
        places: Vec<(i64, i64, i64)>,
    ) -> anyhow::Result<()> {
        let next: Vec<i64> = places.iter().map(|p| p.1).collect();
        let n: Vec<i64> = places.iter().map(|p| p.2).collect();
        let mut keys = (Vec::new(), Vec::new(), Vec::new());
        for (key, (conversion, accepted_at)) in batch.keys {
            keys.0.push(key);
            keys.1.push(conversion);
            keys.2.push(Tz(accepted_at));
        }
        let woken = std::mem::replace(&mut self.woken, batch.woken);
        let copy = |i: usize, rows: Rows| rows.copy_into(&self.client, &self.copies[i]);
        let client = &self.client;
        let keyed: [&(dyn ToSql + Sync); 3] = [&keys.0, &keys.1, &keys.2];
        let waking: [&(dyn ToSql + Sync); 1] = [&woken];
        let moves: [&(dyn ToSql + Sync); 5] = [&GROUP, &partitions, &topics, &next, &n];
        let done = futures::join!(
            copy(0, batch.visits),
            copy(1, batch.clicks),
            copy(2, batch.conversions),
            copy(3, batch.postback_log),
            copy(4, batch.parked),
            client.execute(&self.keys, &keyed),
            client.execute(&self.wake, &waking),
            client.execute(&self.advance, &moves),
            client.batch_execute("COMMIT"),
        );
        for rows in [
            done.0, done.1, done.2, done.3, done.4, done.5, done.6, done.7,
        ] {
            rows?;
        }
        done.8?;
        Ok(())
    }
}
