//! Who owns a partition of a group: the epoch, the positions, stopping and resuming. All SQL on `ownership` and `positions`.

use super::failpoint;
use super::session::{Failure, Session, describe};
use millrace_topics::contract::{ClaimError, StoredPosition, TopicRef};

/// A claim that holds until another one of the same partition.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The group.
    pub group: &'static str,
    /// The partition.
    pub partition: i32,
    /// The fence.
    pub epoch: i64,
}

/// What the store knows of a partition's progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// A topic of the group.
    pub topic_no: i32,
    /// First offset not consumed.
    pub next_offset: i64,
    /// Greatest `accepted_at` consumed, in microseconds.
    pub stream_time: i64,
}

impl Progress {
    /// As the consumer needs it.
    #[must_use]
    pub fn stored(&self) -> StoredPosition {
        StoredPosition {
            topic_no: self.topic_no,
            next_offset: self.next_offset,
        }
    }
}

const TAKE: &str = "UPDATE ownership SET epoch = epoch + 1, owner = $3, claimed_at = now()
     WHERE group_name = $1 AND partition = $2 AND stopped_reason IS NULL RETURNING epoch";

/// How long a batch's transaction may be open while its client says nothing, in seconds: the same that
/// `idle_in_transaction_session_timeout` allows between two statements.
const HUNG_AFTER_S: f64 = 10.0;

/// Ends sessions that hold a fence and whose client has gone silent in the middle of a COPY: neither the timeout of idle
/// transactions nor that of statements reaches a server that waits for the rest of one.
const EVICT: &str = "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
       AND a.wait_event = 'ClientRead' AND a.state <> 'idle'
       AND a.xact_start < clock_timestamp() - make_interval(secs => $1)
       AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'ownership'::regclass
                   AND l.mode = 'RowShareLock' AND l.granted)";

/// Claims a partition: epoch + 1, whoever held it. Waits for the former owner's open transaction up to the session's
/// `lock_timeout`, then names the holder, and ends a holder that hangs.
///
/// # Errors
/// [`ClaimError`].
pub async fn claim(
    session: &Session,
    group: &'static str,
    partition: i32,
    owner: &str,
) -> Result<Claim, ClaimError> {
    let later = |e: tokio_postgres::Error| ClaimError::Later(describe(&e));
    session
        .execute(
            "INSERT INTO ownership (group_name, partition) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            &[&group, &partition],
        )
        .await
        .map_err(later)?;
    let taken = session.query(TAKE, &[&group, &partition, &owner]).await;
    match taken {
        Ok(rows) => match rows.first() {
            Some(row) => Ok(Claim {
                group,
                partition,
                epoch: row.get(0),
            }),
            None => Err(ClaimError::Stopped(
                stopped_reason(session, group, partition).await,
            )),
        },
        Err(e) if e.code().is_some_and(|c| c.code() == "55P03") => {
            match session.query(EVICT, &[&HUNG_AFTER_S]).await {
                Ok(rows) if rows.is_empty() => {}
                Ok(rows) => tracing::warn!(
                    partition,
                    ended = rows.len(),
                    "ended sessions that hung in an open transaction"
                ),
                Err(e) => {
                    tracing::warn!(partition, error = %describe(&e), "cannot look for hung sessions")
                }
            }
            let holder = session
                .query(
                    "SELECT owner FROM ownership WHERE group_name = $1 AND partition = $2",
                    &[&group, &partition],
                )
                .await
                .ok()
                .and_then(|rows| rows.first().map(|r| r.get::<_, String>(0)))
                .unwrap_or_default();
            Err(ClaimError::Later(format!(
                "partition {partition} of `{group}` is held by {holder}"
            )))
        }
        Err(e) => Err(later(e)),
    }
}

async fn stopped_reason(session: &Session, group: &'static str, partition: i32) -> String {
    session
        .query(
            "SELECT coalesce(stopped_reason, '') FROM ownership WHERE group_name = $1 AND partition = $2",
            &[&group, &partition],
        )
        .await
        .ok()
        .and_then(|rows| rows.first().map(|r| r.get(0)))
        .unwrap_or_default()
}

/// Claims again after a lost COMMIT reply: only if the claim still stands. A zombie that stole its partition back would
/// leave it with no owner in the group at all.
///
/// # Errors
/// [`Failure::Fenced`] if somebody else has claimed since; the store's.
pub async fn reclaim(session: &Session, claim: &Claim) -> Result<Claim, Failure> {
    let rows = session
        .query(
            "UPDATE ownership SET epoch = epoch + 1, claimed_at = now()
             WHERE group_name = $1 AND partition = $2 AND epoch = $3 AND stopped_reason IS NULL RETURNING epoch",
            &[&claim.group, &claim.partition, &claim.epoch],
        )
        .await?;
    match rows.first() {
        Some(row) => Ok(Claim {
            epoch: row.get(0),
            ..claim.clone()
        }),
        None => Err(Failure::Fenced),
    }
}

/// Positions of all topics (made at zero where missing), in the topics' order, and the greatest mark of the group.
///
/// # Errors
/// The store's.
pub async fn progress(
    session: &Session,
    claim: &Claim,
    topics: &[TopicRef],
) -> Result<(Vec<Progress>, i64), Failure> {
    let numbers: Vec<i32> = topics.iter().map(|t| t.no).collect();
    session
        .execute(
            "INSERT INTO positions (group_name, partition, topic_no)
             SELECT $1, $2, unnest($3::int4[]) ON CONFLICT DO NOTHING",
            &[&claim.group, &claim.partition, &numbers],
        )
        .await?;
    let rows = session
        .query(
            "SELECT topic_no, next_offset, stream_time FROM positions
             WHERE group_name = $1 AND partition = $2 AND topic_no = ANY($3)",
            &[&claim.group, &claim.partition, &numbers],
        )
        .await?;
    let mark: i64 = session
        .query(
            "SELECT coalesce(max(mark), 0) FROM positions WHERE group_name = $1",
            &[&claim.group],
        )
        .await?
        .first()
        .map_or(0, |r| r.get(0));
    let mut found: Vec<Progress> = rows
        .iter()
        .map(|r| Progress {
            topic_no: r.get(0),
            next_offset: r.get(1),
            stream_time: r.get(2),
        })
        .collect();
    found.sort_by_key(|p| numbers.iter().position(|n| *n == p.topic_no));
    Ok((found, mark))
}

/// Opens the batch's transaction and takes the fence: the ownership row under our epoch, locked to the end.
///
/// # Errors
/// [`Failure::Fenced`] if another owner claimed or an operator stopped it; the store's.
pub async fn begin(session: &Session, claim: &Claim) -> Result<(), Failure> {
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&claim.group, &claim.partition, &claim.epoch];
    let fence = session.query(
        "SELECT 1 FROM ownership WHERE group_name = $1 AND partition = $2 AND epoch = $3
         AND stopped_reason IS NULL FOR NO KEY UPDATE",
        &params,
    );
    // Sent together: the server runs them in this order.
    let (begun, fenced) = futures::join!(session.batch("BEGIN"), fence);
    begun?;
    if fenced?.is_empty() && !failpoint::sabotaged("fence") {
        return Err(Failure::Fenced);
    }
    Ok(())
}

/// How one topic's position moves.
#[derive(Debug, Clone, Default)]
pub struct Advance {
    /// The topic.
    pub topic_no: i32,
    /// The stored position on which the batch was decided.
    pub expected: i64,
    /// The new one.
    pub next: i64,
    /// Records consumed, replays apart.
    pub consumed: i64,
    /// Replays among them.
    pub replayed: i64,
    /// Greatest `accepted_at`.
    pub stream_time: i64,
}

/// Moves the positions, each only from where the batch found it.
///
/// # Errors
/// [`Failure::Fenced`] if one stood elsewhere: somebody moved it; the store's.
pub async fn advance(
    session: &Session,
    claim: &Claim,
    moves: &[Advance],
    mark: i64,
) -> Result<(), Failure> {
    if moves.is_empty() {
        return Ok(());
    }
    let column = |f: fn(&Advance) -> i64| moves.iter().map(f).collect::<Vec<i64>>();
    let topics: Vec<i32> = moves.iter().map(|m| m.topic_no).collect();
    let (expected, next) = (column(|m| m.expected), column(|m| m.next));
    let (consumed, replayed) = (column(|m| m.consumed), column(|m| m.replayed));
    let stream = column(|m| m.stream_time);
    let lax = failpoint::sabotaged("position");
    let moved = session
        .execute(
            "UPDATE positions p SET next_offset = m.next, consumed = p.consumed + m.consumed,
                    replayed = p.replayed + m.replayed, stream_time = greatest(p.stream_time, m.stream),
                    mark = greatest(p.mark, $8)
             FROM unnest($3::int4[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $9::int8[])
                  AS m(topic_no, expected, next, consumed, replayed, stream)
             WHERE p.group_name = $1 AND p.partition = $2 AND p.topic_no = m.topic_no
               AND (p.next_offset = m.expected OR $10)",
            &[
                &claim.group,
                &claim.partition,
                &topics,
                &expected,
                &next,
                &consumed,
                &replayed,
                &mark,
                &stream,
                &lax,
            ],
        )
        .await?;
    if usize::try_from(moved) == Ok(moves.len()) {
        Ok(())
    } else {
        Err(Failure::Fenced)
    }
}

/// Stops a partition red, if the claim still stands. Kept in the store, so that every process and tool sees it.
///
/// # Errors
/// The store's.
pub async fn stop(session: &Session, claim: &Claim, reason: &str) -> Result<(), Failure> {
    session
        .execute(
            "UPDATE ownership SET stopped_reason = $4, stopped_at = now()
             WHERE group_name = $1 AND partition = $2 AND epoch = $3 AND stopped_reason IS NULL",
            &[&claim.group, &claim.partition, &claim.epoch, &reason],
        )
        .await?;
    Ok(())
}
