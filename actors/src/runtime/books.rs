//! What every batch writes beside its facts: outcomes, dead letters, replays, emits. All SQL on those tables.

use super::failpoint;
use super::session::{Failure, Session};
use super::vertical::{DeadLetter, Effects, Emit, Tally};
use crate::postgres::copy::Rows;
use crate::postgres::types::Tz;
use bytes::Bytes;
use millrace_schemas::emit::{self, EmitSource};
use millrace_schemas::ids::RecordId;
use millrace_topics::contract::{Outgoing, TopicRef};
use millrace_topics::pglog::append::AppendError;
use millrace_topics::relay::{self, EmitError};
use std::collections::HashMap;
use std::sync::Arc;
use uuid::Uuid;

/// Adds the tally to the outcome counts.
///
/// # Errors
/// The store's.
pub async fn count(session: &Session, group: &str, tally: &Tally) -> Result<(), Failure> {
    let (mut topics, mut partitions, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reasons, mut counts) = (Vec::new(), Vec::new());
    for (topic, partition, outcome, reason, n) in tally.changes() {
        topics.push(topic);
        partitions.push(partition);
        outcomes.push(outcome.code());
        reasons.push(reason);
        counts.push(n);
    }
    if topics.is_empty() {
        return Ok(());
    }
    session
        .execute(
            "INSERT INTO outcomes (group_name, topic_no, partition, outcome, reason, n)
             SELECT $1, * FROM unnest($2::int4[], $3::int4[], $4::int2[], $5::text[], $6::int8[])
             ON CONFLICT (group_name, topic_no, partition, outcome, reason)
             DO UPDATE SET n = outcomes.n + excluded.n",
            &[&group, &topics, &partitions, &outcomes, &reasons, &counts],
        )
        .await?;
    Ok(())
}

/// Writes dead letters. One that was replayed and died again is open again.
///
/// # Errors
/// The store's.
pub async fn bury(session: &Session, group: &str, dead: &[DeadLetter]) -> Result<(), Failure> {
    for letter in dead {
        session
            .execute(
                "INSERT INTO dead_letters (record_id, group_name, workspace_id, topic_no, partition, \"offset\",
                        key, payload, reason, detail, accepted_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
                 ON CONFLICT (record_id) DO UPDATE SET status = 'open', reason = excluded.reason,
                        detail = excluded.detail, dead_at = now(), deaths = dead_letters.deaths + 1",
                &[
                    &letter.id.to_uuid(),
                    &group,
                    &letter.workspace,
                    &letter.id.topic_no,
                    &letter.id.partition,
                    &letter.id.offset,
                    &letter.key,
                    &letter.payload,
                    &letter.reason,
                    &letter.detail,
                    &letter.accepted_at.map(Tz),
                ],
            )
            .await?;
    }
    Ok(())
}

/// Which of these dead letters are open, locked, with the reason each died of. What is not open was replayed already: a
/// second copy of a replay changes nothing.
///
/// # Errors
/// The store's.
pub async fn open_letters(
    session: &Session,
    ids: &[RecordId],
) -> Result<HashMap<RecordId, String>, Failure> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = ids.iter().map(|id| id.to_uuid()).collect();
    let rows = session
        .query(
            "SELECT record_id, reason FROM dead_letters WHERE record_id = ANY($1) AND status = 'open'
             ORDER BY record_id FOR UPDATE",
            &[&ids],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|r| (RecordId::from_uuid(r.get(0)), r.get(1)))
        .collect())
}

/// Marks dead letters as replayed.
///
/// # Errors
/// The store's.
pub async fn mark_replayed(session: &Session, ids: &[RecordId]) -> Result<(), Failure> {
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = ids.iter().map(|id| id.to_uuid()).collect();
    session
        .execute(
            "UPDATE dead_letters SET status = 'replayed', changed_at = now() WHERE record_id = ANY($1)",
            &[&ids],
        )
        .await?;
    Ok(())
}

/// How records for other topics leave.
#[derive(Debug, Clone, Default)]
pub enum Emits {
    /// As rows of `emits`: the relay that runs where the partition is owned sends them on after the commit.
    #[default]
    Relayed,
    /// Appended to the Postgres log by the batch's own transaction, into these topics (the live ones of the catalogue).
    Direct(Arc<[TopicRef]>),
}

/// Writes records for other topics, numbered after the source's last: the last statement before the commit, since an append
/// holds the heads of the log, for which all others wait.
///
/// # Errors
/// [`Failure::Data`] for a payload that cannot carry its source: it would block all behind it for good. The store's.
pub async fn emit(
    session: &Session,
    group: &str,
    partition: i32,
    emits: &[Emit],
    how: &Emits,
) -> Result<(), Failure> {
    if emits.is_empty() {
        return Ok(());
    }
    match how {
        Emits::Direct(topics) if !rows_wait(session, group, partition).await? => {
            let records: Vec<Outgoing> = emits
                .iter()
                .map(|emit| Outgoing {
                    topic_no: emit.topic_no,
                    key: Bytes::copy_from_slice(&emit.key),
                    payload: Bytes::copy_from_slice(&emit.payload),
                })
                .collect();
            relay::emit_directly(session.client(), topics, group, partition, &records)
                .await
                .map(|_| ())
                .map_err(refused)
        }
        Emits::Direct(_) | Emits::Relayed => put_rows(session, group, partition, emits).await,
    }
}

/// Whether emits of this source wait for the relay still, as after a build that relayed on this log, too. What is emitted now
/// has greater numbers and stays behind them: a receiver takes a lower number for one that it has seen.
async fn rows_wait(session: &Session, group: &str, partition: i32) -> Result<bool, Failure> {
    let rows = session
        .query(
            "SELECT 1 FROM emits WHERE group_name = $1 AND source_partition = $2 LIMIT 1",
            &[&group, &partition],
        )
        .await?;
    Ok(!rows.is_empty())
}

fn refused(error: EmitError) -> Failure {
    match error {
        EmitError::Store(e) | EmitError::Append(AppendError::Store(e)) => e.into(),
        EmitError::Payload(e) => Failure::Data(e.to_string()),
        // The catalogue lacks it: all records of its kind would end the same way.
        error @ (EmitError::Append(AppendError::UnknownTopic(_))
        | EmitError::UnknownTopic { .. }) => Failure::Stop(error.to_string()),
    }
}

/// Which of the records that arrived from other streams are new, in their order, and notes it: what a receiver asks in
/// [`super::vertical::Vertical::claim`], under its fence. `arrived`: topic number and source of each. A replayed dead letter is not
/// asked for: greater numbers have come since, and that it was open says that it is new.
///
/// # Errors
/// The store's.
pub async fn receive(
    session: &Session,
    group: &str,
    partition: i32,
    arrived: &[(i32, EmitSource)],
) -> Result<Vec<bool>, Failure> {
    if failpoint::sabotaged("relay") {
        return Ok(vec![true; arrived.len()]);
    }
    Ok(relay::accept(session.client(), group, partition, arrived).await?)
}

async fn put_rows(
    session: &Session,
    group: &str,
    partition: i32,
    emits: &[Emit],
) -> Result<(), Failure> {
    if !emits.iter().all(|e| emit::can_carry(&e.payload)) {
        return Err(Failure::Data(emit::NotAnObject.to_string()));
    }
    let n = i64::try_from(emits.len()).unwrap_or(i64::MAX);
    let rows = session
        .query(
            "INSERT INTO emit_heads (group_name, source_partition, next_seq) VALUES ($1, $2, $3)
             ON CONFLICT (group_name, source_partition)
             DO UPDATE SET next_seq = emit_heads.next_seq + $3 RETURNING next_seq - $3",
            &[&group, &partition, &n],
        )
        .await?;
    let first: i64 = rows.first().map_or(0, |r| r.get(0));
    let mut out = Rows::new();
    for (emit, seq) in emits.iter().zip(first..) {
        out.row(6)
            .text(group)
            .i32(partition)
            .i64(seq)
            .i32(emit.topic_no);
        out.bytes(&emit.key).bytes(&emit.payload);
    }
    session
        .copy(
            "COPY emits (group_name, source_partition, seq, topic_no, key, payload) FROM STDIN BINARY",
            out,
        )
        .await?;
    Ok(())
}

/// Dead letters and outcomes.
///
/// # Errors
/// The store's.
pub async fn write(session: &Session, group: &str, effects: &Effects) -> Result<(), Failure> {
    bury(session, group, &effects.dead).await?;
    count(session, group, &effects.tally).await
}
