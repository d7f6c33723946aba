//! The product's own batch transaction, statement by statement as its partition actor runs it: fence, claims, settling, facts,
//! outcome counts, positions, COMMIT. Decoding, loading, deciding and merging stand outside the clock.

use super::rows::Cells;
use super::{Clock, Spent};
use crate::decide;
use crate::delivery::connect;
use anyhow::ensure;
use millrace::attribution::actor::Attribution;
use millrace::attribution::decide::Record;
use millrace::attribution::draft::Draft;
use millrace::attribution::store::FACTS;
use millrace::postgres::copy::Rows;
use millrace::runtime::ownership::{self, Advance, Progress};
use millrace::runtime::session::{Failure, Session};
use millrace::runtime::vertical::{Effects, Item, Raw, Start, Vertical};
use millrace::runtime::{books, days};
use millrace::settings;
use millrace_schemas::time::{Micros, Now};
use millrace_topics::contract::{Batch, TopicRef};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// The rows of one transaction, and how its positions move.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// Per table of [`FACTS`].
    pub facts: Vec<Cells>,
    /// Of `conversion_keys`.
    pub keys: Cells,
    /// Parked rows that go: click key and record id.
    pub unparked: (Vec<Uuid>, Vec<Uuid>),
    /// The partition.
    pub partition: i32,
    /// Topics whose positions move.
    pub topics: Vec<i32>,
    /// Where to.
    pub next: Vec<i64>,
    /// How many records it is of.
    pub records: usize,
}

/// Writes all batches into a fresh database; the rows come back as `Transaction`s if they are to be kept.
///
/// # Errors
/// The store's, or the workload brings about what no other way of writing is measured with.
pub async fn write(
    url: &str,
    all: &[Vec<Batch>],
    topics: &[TopicRef],
    keep: bool,
) -> anyhow::Result<(Spent, Vec<Transaction>)> {
    let client = connect(url, "ledger")?()
        .await
        .map_err(anyhow::Error::msg)?;
    let session = Session::new(client);
    let (mut spent, mut kept) = (Spent::default(), Vec::new());
    for batches in all {
        let Some(partition) = batches.first().map(|b| b.partition) else {
            continue;
        };
        let claim =
            ownership::claim(&session, Attribution::GROUP.name, partition, "loadtest").await?;
        let (mut progress, mark) = ownership::progress(&session, &claim, topics)
            .await
            .map_err(failed)?;
        let mut vertical = Attribution::new(settings::Attribution {
            slice_clicks: usize::MAX,
            ..settings::Attribution::default()
        });
        vertical.reset(&Start {
            partition,
            partitions: topics.first().map_or(1, |t| t.partitions),
            mark,
        });
        let mut stream = Micros(0);
        for batch in batches {
            let items = decide::decode(&vertical, batch, topics, &mut stream)?;
            make_days(&session, &items).await?;
            vertical.load(&session, &items, &[]).await.map_err(failed)?;
            let (mut draft, mut effects) = (Draft::default(), Effects::default());
            let mut now = Now {
                stream,
                wall: stream,
            };
            let raw = Raw::of(batch);
            for item in &items {
                now.stream = item.stream;
                vertical.decide(&mut draft, &mut effects, item, &raw, now);
            }
            let moves = moves(batch, &items, &progress);
            let clock = Clock::start();
            ownership::begin(&session, &claim).await.map_err(failed)?;
            vertical.claim(&session, &mut draft).await.map_err(failed)?;
            let taken: Option<BTreeMap<Uuid, Uuid>> =
                keep.then(|| draft.claims.taken.iter().map(|(k, id)| (*k, *id)).collect());
            vertical.settle(&mut draft, &mut effects, now);
            vertical
                .write(&session, &draft, &items, now)
                .await
                .map_err(failed)?;
            books::write(&session, Attribution::GROUP.name, &effects)
                .await
                .map_err(failed)?;
            ownership::advance(&session, &claim, &moves, effects.mark)
                .await
                .map_err(failed)?;
            session.batch("COMMIT").await?;
            clock.stop(&mut spent);
            if let Some(taken) = taken {
                let keys = keys(&draft, &taken);
                kept.push(transaction(&draft, keys, &items, now, &moves, batch)?);
            }
            for p in &mut progress {
                if let Some(done) = moves.iter().find(|m| m.topic_no == p.topic_no) {
                    p.next_offset = done.next;
                }
            }
            vertical.merge(draft);
        }
    }
    Ok((spent, kept))
}

/// A failure as an error.
pub fn failed(failure: Failure) -> anyhow::Error {
    anyhow::anyhow!("{failure:?}")
}

async fn make_days(session: &Session, items: &[Item<Record>]) -> anyhow::Result<()> {
    let wanted: BTreeSet<i64> = items.iter().map(|i| i.accepted_at.day()).collect();
    let wanted: Vec<i64> = wanted.into_iter().collect();
    let tables = millrace::attribution::store::FACT_TABLES;
    days::make(session, tables, &wanted).await.map_err(failed)
}

fn moves(batch: &Batch, items: &[Item<Record>], progress: &[Progress]) -> Vec<Advance> {
    let mut moves = Vec::new();
    for p in progress {
        let of = |topic_no: i32| {
            batch
                .records()
                .iter()
                .filter(move |r| r.topic_no == topic_no)
        };
        let Some(last) = of(p.topic_no).map(|r| r.offset).max() else {
            continue;
        };
        moves.push(Advance {
            topic_no: p.topic_no,
            expected: p.next_offset,
            next: last + 1,
            consumed: i64::try_from(of(p.topic_no).count()).unwrap_or(0),
            replayed: 0,
            stream_time: items
                .iter()
                .filter(|i| i.id.topic_no == p.topic_no)
                .map(|i| i.accepted_at.0)
                .max()
                .unwrap_or(0),
        });
    }
    moves
}

/// Identity keys that stand, in the order of claiming.
fn keys(draft: &Draft, taken: &BTreeMap<Uuid, Uuid>) -> Rows {
    let mut all: Vec<(Uuid, Uuid, Micros)> = draft
        .booked
        .iter()
        .flat_map(|b| b.keys.iter().map(move |key| (key, b)))
        .filter(|(key, b)| taken.get(key) == Some(&b.id.to_uuid()))
        .map(|(key, b)| (key, b.id.to_uuid(), b.accepted_at))
        .collect();
    all.sort_unstable_by_key(|(key, ..)| *key);
    let mut rows = Rows::new();
    for (key, conversion, at) in all {
        rows.row(3).uuid(key).uuid(conversion).time(at);
    }
    rows
}

fn transaction(
    draft: &Draft,
    keys: Rows,
    items: &[Item<Record>],
    now: Now,
    moves: &[Advance],
    batch: &Batch,
) -> anyhow::Result<Transaction> {
    ensure!(
        draft.changes.is_empty() && draft.provider.is_empty(),
        "the workload changes what is booked"
    );
    let facts = FACTS
        .iter()
        .map(|facts| Cells::read((facts.rows)(draft, items, now).into_stream()))
        .collect::<anyhow::Result<_>>()?;
    Ok(Transaction {
        facts,
        keys: Cells::read(keys.into_stream())?,
        unparked: draft
            .unparked
            .iter()
            .map(|(click, id)| (click.key, id.to_uuid()))
            .unzip(),
        partition: batch.partition,
        topics: moves.iter().map(|m| m.topic_no).collect(),
        next: moves.iter().map(|m| m.next).collect(),
        records: batch.len(),
    })
}
