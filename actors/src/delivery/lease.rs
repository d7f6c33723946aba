//! Leases on what is due: claimed, ended, given back, and taken from the dead. All SQL on `outbox_due` and the ends of `outbox`.
//!
//! A claim commits before anything is sent. Whoever ends a message must still hold its token: one whose lease ran out meanwhile
//! changes nothing, and what became of the message is for its next holder to say. Leases are measured by the database's clock
//! alone, what is due by the caller's.

mod expired;

pub use expired::{Swept, sweep};

use super::channel::Leased;
use crate::postgres::copy::Rows;
use crate::postgres::types::Tz;
use crate::runtime::session::{Connect, Session, describe};
use millrace_schemas::time::Micros;
use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;
use tokio_postgres::Error;
use uuid::Uuid;

/// A connection for the statements here. Bitmap scans are off: planned while little is due, a claim would else gather and sort all
/// that is due to its destination each time, however much that has become, where a walk along the index stops at its limit.
///
/// # Errors
/// There is no connection.
pub async fn session(connect: &Connect) -> Result<Session, String> {
    let session = Session::new(connect().await?);
    let set = session.batch("SET enable_bitmapscan = off").await;
    set.map_err(|e| describe(&e))?;
    Ok(session)
}

/// What one claim brought.
#[derive(Debug)]
pub struct Claim {
    /// What ends its messages.
    pub token: Uuid,
    /// The messages.
    pub messages: Vec<Leased>,
    /// Messages whose body is gone: their partition was dropped.
    pub bodiless: Vec<Leased>,
}

/// Claims: destination, now, limit, milliseconds of lease, token, and behind which place it begins. A message that is to wait for
/// another one of its transaction is passed over until that has ended: a subquery of one row, since EXISTS beside OR may be planned
/// as a hash of the whole outbox. Public, as [`FINAL`] and [`LOG`] are, for whoever measures the
/// dispatcher against its bare statements.
pub const CLAIM: &str = "
WITH found AS (
    SELECT ctid FROM outbox_due d
    WHERE destination_no = $1 AND due_at <= $2 AND (due_at, outbox_id) > ($6, $7) AND lease_token IS NULL
      AND (after IS NULL OR coalesce((SELECT a.status <> 'scheduled' FROM outbox a
                                      WHERE a.outbox_id = d.after AND a.created_at = d.created_at LIMIT 1), true))
    ORDER BY due_at, outbox_id LIMIT $3 FOR UPDATE OF d SKIP LOCKED
), claimed AS (
    UPDATE outbox_due d SET lease_until = clock_timestamp() + $4 * interval '1 millisecond', lease_token = $5,
           attempts = d.attempts + 1
    FROM found WHERE d.ctid = found.ctid
    RETURNING d.outbox_id, d.created_at, d.due_at, d.attempts, d.unsure_since, d.lease_until
), noted AS (
    INSERT INTO outbox_leases (lease_token, destination_no, lease_until, due_from, due_to)
    SELECT $5, $1, max(lease_until), min(due_at), max(due_at) FROM claimed HAVING count(*) > 0
)
SELECT c.outbox_id, c.created_at, c.due_at, c.attempts, c.unsure_since, o.workspace_id, o.payload::text
FROM claimed c LEFT JOIN LATERAL (
    SELECT workspace_id, payload FROM outbox o WHERE o.outbox_id = c.outbox_id AND o.created_at = c.created_at
) o ON true";

/// A place in the order in which a destination's messages are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// When the message there is due.
    pub due_at: Micros,
    /// Its id.
    pub id: Uuid,
}

impl Place {
    /// Before everything.
    pub const BEGINNING: Place = Place {
        due_at: Micros(i64::MIN),
        id: Uuid::nil(),
    };
}

impl Claim {
    /// The last place that it came to, if it brought anything.
    #[must_use]
    pub fn last(&self) -> Option<Place> {
        let all = self.messages.iter().chain(&self.bodiless);
        all.map(|m| Place {
            due_at: m.due_at,
            id: m.id,
        })
        .max()
    }
}

/// Claims up to `limit` messages that are due by `now`, for `lease`; those behind a place, or all.
///
/// # Errors
/// The store's.
pub async fn claim(
    session: &Session,
    destination: i32,
    now: Micros,
    behind: Option<Place>,
    limit: usize,
    lease: Duration,
) -> Result<Claim, Error> {
    let behind = behind.unwrap_or(Place::BEGINNING);
    let token = Uuid::from_u128(random());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let millis = lease.as_secs_f64() * 1_000.0;
    let rows = session
        .query(
            CLAIM,
            &[
                &destination,
                &Tz(now),
                &limit,
                &millis,
                &token,
                &Tz(behind.due_at),
                &behind.id,
            ],
        )
        .await?;
    let mut claim = Claim {
        token,
        messages: Vec::with_capacity(rows.len()),
        bodiless: Vec::new(),
    };
    for row in &rows {
        let body: Option<&str> = row.get(6);
        let leased = Leased {
            id: row.get(0),
            created_at: row.get::<_, Tz>(1).0,
            due_at: row.get::<_, Tz>(2).0,
            attempt: row.get::<_, i16>(3).cast_unsigned(),
            unsure_since: row.get::<_, Option<Tz>>(4).map(|t| t.0),
            workspace: row.get::<_, Option<i32>>(5).unwrap_or_default(),
            payload: body.unwrap_or_default().to_owned(),
        };
        match body {
            Some(_) => claim.messages.push(leased),
            None => claim.bodiless.push(leased),
        }
    }
    // RETURNING keeps no order.
    claim.messages.sort_unstable_by_key(|m| (m.due_at, m.id));
    Ok(claim)
}

fn random() -> u128 {
    let mut bytes = [0u8; 16];
    // Without randomness the time is as good: a token must differ from others, not be secret.
    if getrandom::fill(&mut bytes).is_err() {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        return since.unwrap_or_default().as_nanos();
    }
    u128::from_ne_bytes(bytes)
}

/// How a lease on a message ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// For good: the status, and why.
    Final(&'static str, Option<Cow<'static, str>>),
    /// It is due again then.
    Again {
        /// When.
        due_at: Micros,
        /// It may have arrived.
        unsure: bool,
    },
    /// It was not sent, and the attempt does not count.
    Back,
}

/// A message whose lease ends.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its id.
    pub id: Uuid,
    /// Its partition in time.
    pub created_at: Micros,
    /// When it was due: where it stands in the index.
    pub due_at: Micros,
    /// Its destination.
    pub destination: i32,
    /// The token under which it was claimed.
    pub token: Uuid,
    /// Attempts, this one included.
    pub attempts: u16,
    /// How.
    pub end: End,
}

#[derive(Default)]
struct Columns {
    destinations: Vec<i32>,
    due: Vec<Tz>,
    ids: Vec<Uuid>,
    tokens: Vec<Uuid>,
}

impl Columns {
    fn push(&mut self, e: &Ended) {
        self.destinations.push(e.destination);
        self.due.push(Tz(e.due_at));
        self.ids.push(e.id);
        self.tokens.push(e.token);
    }
}

/// Ends messages for good, each under its token.
pub const FINAL: &str = "
WITH gone AS (
    DELETE FROM outbox_due d
    USING unnest($1::int4[], $2::timestamptz[], $3::uuid[], $4::uuid[], $5::timestamptz[], $6::text[], $7::text[], $8::int2[])
          AS e(destination_no, due_at, id, token, created_at, status, reason, attempts)
    WHERE d.destination_no = e.destination_no AND d.due_at = e.due_at AND d.outbox_id = e.id AND d.lease_token = e.token
    RETURNING e.id, e.created_at, e.status, e.reason, e.attempts
)
UPDATE outbox o SET status = gone.status, status_reason = gone.reason, attempts = gone.attempts, ended_at = $9
FROM gone WHERE o.outbox_id = gone.id AND o.created_at = gone.created_at";

const AGAIN: &str = "
UPDATE outbox_due d SET due_at = e.again, lease_until = NULL, lease_token = NULL,
       unsure_since = CASE WHEN e.unsure THEN coalesce(d.unsure_since, $7) ELSE d.unsure_since END
FROM unnest($1::int4[], $2::timestamptz[], $3::uuid[], $4::uuid[], $5::timestamptz[], $6::bool[])
     AS e(destination_no, due_at, id, token, again, unsure)
WHERE d.destination_no = e.destination_no AND d.due_at = e.due_at AND d.outbox_id = e.id AND d.lease_token = e.token";

const BACK: &str = "
UPDATE outbox_due d SET attempts = d.attempts - 1, lease_until = NULL, lease_token = NULL
FROM unnest($1::int4[], $2::timestamptz[], $3::uuid[], $4::uuid[]) AS e(destination_no, due_at, id, token)
WHERE d.destination_no = e.destination_no AND d.due_at = e.due_at AND d.outbox_id = e.id AND d.lease_token = e.token";

/// Ends leases, within the caller's transaction. Answers how many were still held.
///
/// # Errors
/// The store's.
pub async fn end<'a>(
    session: &Session,
    ended: impl IntoIterator<Item = &'a Ended>,
    wall: Micros,
) -> Result<u64, Error> {
    let mut finals = (
        Columns::default(),
        Vec::new(),
        Vec::new(),
        Vec::new(),
        Vec::new(),
    );
    let mut agains = (Columns::default(), Vec::new(), Vec::new());
    let mut backs = Columns::default();
    for e in ended {
        match &e.end {
            End::Final(status, reason) => {
                finals.0.push(e);
                finals.1.push(Tz(e.created_at));
                finals.2.push(*status);
                finals.3.push(reason.as_deref());
                finals.4.push(e.attempts.cast_signed());
            }
            End::Again { due_at, unsure } => {
                agains.0.push(e);
                agains.1.push(Tz(*due_at));
                agains.2.push(*unsure);
            }
            End::Back => backs.push(e),
        }
    }
    let mut held = 0;
    if !finals.1.is_empty() {
        let c = &finals.0;
        held += session
            .execute(
                FINAL,
                &[
                    &c.destinations,
                    &c.due,
                    &c.ids,
                    &c.tokens,
                    &finals.1,
                    &finals.2,
                    &finals.3,
                    &finals.4,
                    &Tz(wall),
                ],
            )
            .await?;
    }
    if !agains.1.is_empty() {
        let c = &agains.0;
        held += session
            .execute(
                AGAIN,
                &[
                    &c.destinations,
                    &c.due,
                    &c.ids,
                    &c.tokens,
                    &agains.1,
                    &agains.2,
                    &Tz(wall),
                ],
            )
            .await?;
    }
    if !backs.ids.is_empty() {
        let c = &backs;
        held += session
            .execute(BACK, &[&c.destinations, &c.due, &c.ids, &c.tokens])
            .await?;
    }
    Ok(held)
}

/// A row of the send log.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// When it was over.
    pub at: Micros,
    /// The message.
    pub id: Uuid,
    /// Its workspace.
    pub workspace: i32,
    /// The channel.
    pub channel: &'static str,
    /// The destination.
    pub destination: i32,
    /// Which attempt, from 1; 0: ended without one.
    pub attempt: u16,
    /// `delivered`, `retry`, `rejected`, `bounced`, `suppressed`, `cancelled`, `paused`, `unknown`.
    pub result: &'static str,
    /// A short code.
    pub code: Cow<'static, str>,
    /// How long the request took; of a batch, the whole of it.
    pub took: Duration,
    /// To whom, masked.
    pub target: Option<String>,
    /// What was said, redacted.
    pub excerpt: Option<String>,
}

/// The send log.
pub const LOG: &str = "COPY send_log (sent_at, outbox_id, workspace_id, channel, destination_no, attempt, result, code,
     duration_ms, target, excerpt) FROM STDIN BINARY";

/// Writes the send log, within the caller's transaction.
///
/// # Errors
/// The store's.
pub async fn log<'a>(
    session: &Session,
    attempts: impl IntoIterator<Item = &'a Attempt>,
) -> Result<(), Error> {
    let mut rows = Rows::new();
    for a in attempts {
        rows.row(11).time(a.at).uuid(a.id).i32(a.workspace);
        rows.text(a.channel).i32(a.destination);
        rows.i16(a.attempt.cast_signed())
            .text(a.result)
            .text(&a.code);
        rows.i32(i32::try_from(a.took.as_millis()).unwrap_or(i32::MAX));
        rows.opt_text(a.target.as_deref())
            .opt_text(a.excerpt.as_deref());
    }
    session.copy(LOG, rows).await?;
    Ok(())
}

/// Those of these attempts that stand in the log: message, attempt and moment.
///
/// # Errors
/// The store's.
pub async fn logged(
    session: &Session,
    attempts: &[&Attempt],
) -> Result<HashSet<(Uuid, u16, Micros)>, Error> {
    let ids: Vec<Uuid> = attempts.iter().map(|a| a.id).collect();
    let since = attempts.iter().map(|a| a.at).min().unwrap_or(Micros(0));
    let rows = session
        .query(
            "SELECT outbox_id, attempt, sent_at FROM send_log WHERE outbox_id = ANY($1) AND sent_at >= $2",
            &[&ids, &Tz(since)],
        )
        .await?;
    let key = |r: &tokio_postgres::Row| {
        let attempt: i16 = r.get(1);
        (r.get(0), attempt.cast_unsigned(), r.get::<_, Tz>(2).0)
    };
    Ok(rows.iter().map(key).collect())
}
