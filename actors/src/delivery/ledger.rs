//! The outbox as people see it and lay hands on it, through the API and at the terminal: listed, shown, cancelled, released.

mod acts;

pub use acts::{Refused, cancel, release};

use crate::postgres::types::Tz;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, GenericClient, Row};
use uuid::Uuid;

/// Channels whose receivers know a message's id: a second sending does no harm. Of every other one, what is `unknown` is sent
/// again only by the word of a person who knows that it may arrive twice.
pub const IDEMPOTENT: &[&str] = &["meta", "webhook"];

/// A message as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: Uuid,
    /// Its workspace.
    pub workspace: i32,
    /// The channel's name.
    pub channel: String,
    /// The destination's number.
    pub destination_no: i32,
    /// What the destination stands for: `px_…`, `wh_…`.
    pub destination: String,
    /// Whom it is about.
    pub subject: Option<String>,
    /// The record it was born of.
    pub cause: RecordId,
    /// As stored, or `sending` while a sender holds it.
    pub status: String,
    /// Why it ended so.
    pub status_reason: Option<String>,
    /// Attempts so far.
    pub attempts: i16,
    /// When it was written.
    pub created_at: Micros,
    /// When it is due, unless it has ended.
    pub due_at: Option<Micros>,
    /// When it was first sent without an answer, if it may have arrived.
    pub unsure_since: Option<Micros>,
    /// When it ended.
    pub ended_at: Option<Micros>,
}

/// One row of the send log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// When.
    pub at: Micros,
    /// Which, from 1; 0: an end without one.
    pub attempt: i16,
    /// What came of it.
    pub result: String,
    /// A short code.
    pub code: Option<String>,
    /// How long the request took.
    pub duration_ms: Option<i32>,
    /// To whom, masked.
    pub target: Option<String>,
    /// What the receiver said, redacted.
    pub excerpt: Option<String>,
}

/// A message with all there is of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The message.
    pub delivery: Delivery,
    /// Its frozen payload, JSON text.
    pub payload: String,
    /// Its send log, oldest first; the last 200.
    pub attempts: Vec<Attempt>,
}

/// Narrows a listing.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of one workspace.
    pub workspace: Option<i32>,
    /// Of one status, `sending` among them.
    pub status: Option<String>,
    /// Of one channel.
    pub channel: Option<String>,
    /// Of one destination, by reference or number.
    pub destination: Option<String>,
    /// Written at or after.
    pub since: Option<Micros>,
    /// Written before.
    pub until: Option<Micros>,
    /// With a smaller id.
    pub before: Option<Uuid>,
}

const COLUMNS: &str = "o.outbox_id, o.workspace_id, o.channel, o.destination_no, coalesce(t.ref, ''), o.subject_key, o.cause,
     o.status, o.status_reason, o.attempts, o.created_at, o.ended_at";
const FROM: &str = "outbox o LEFT JOIN destinations t ON t.destination_no = o.destination_no";
const LEASED: &str = "(SELECT outbox_id FROM outbox_due WHERE lease_token IS NOT NULL)";

fn delivery(row: &Row) -> Result<Delivery, Error> {
    Ok(Delivery {
        id: row.try_get(0)?,
        workspace: row.try_get(1)?,
        channel: row.try_get(2)?,
        destination_no: row.try_get(3)?,
        destination: row.try_get(4)?,
        subject: row.try_get(5)?,
        cause: RecordId::from_uuid(row.try_get(6)?),
        status: row.try_get(7)?,
        status_reason: row.try_get(8)?,
        attempts: row.try_get(9)?,
        created_at: row.try_get::<_, Tz>(10)?.0,
        due_at: None,
        unsure_since: None,
        ended_at: row.try_get::<_, Option<Tz>>(11)?.map(|t| t.0),
    })
}

impl Filter {
    /// The conditions and their values.
    fn conditions(&self) -> (String, Vec<Box<dyn ToSql + Sync + Send>>) {
        let mut clauses = vec!["true".to_owned()];
        let mut values: Vec<Box<dyn ToSql + Sync + Send>> = Vec::new();
        let mut and = |clause: &str, value: Option<Box<dyn ToSql + Sync + Send>>| {
            if let Some(value) = value {
                values.push(value);
                clauses.push(clause.replace('$', &format!("${}", values.len())));
            }
        };
        and("o.workspace_id = $", self.workspace.map(boxed));
        and("o.channel = $", self.channel.clone().map(boxed));
        let destination = "o.destination_no IN (SELECT destination_no FROM destinations WHERE ref = $ OR destination_no::text = $)";
        and(destination, self.destination.clone().map(boxed));
        and("o.created_at >= $", self.since.map(Tz).map(boxed));
        and("o.created_at < $", self.until.map(Tz).map(boxed));
        and("o.outbox_id < $", self.before.map(boxed));
        // Leases are few; what is due may be many.
        match self.status.as_deref() {
            None => {}
            Some("sending") => {
                clauses.push(format!(
                    "o.status = 'scheduled' AND o.outbox_id IN {LEASED}"
                ));
            }
            Some("scheduled") => clauses.push(format!(
                "o.status = 'scheduled' AND o.outbox_id NOT IN {LEASED}"
            )),
            Some(other) => and("o.status = $", Some(boxed(other.to_owned()))),
        }
        (clauses.join(" AND "), values)
    }
}

fn boxed<T: ToSql + Sync + Send + 'static>(value: T) -> Box<dyn ToSql + Sync + Send> {
    Box::new(value)
}

fn refs(values: &[Box<dyn ToSql + Sync + Send>]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|v| &**v as &(dyn ToSql + Sync)).collect()
}

/// Messages, newest first.
///
/// # Errors
/// The store's.
pub async fn list(
    client: &impl GenericClient,
    filter: &Filter,
    limit: i64,
) -> Result<Vec<Delivery>, Error> {
    let (conditions, values) = filter.conditions();
    let sql = format!(
        "SELECT {COLUMNS} FROM {FROM} WHERE {conditions} ORDER BY o.outbox_id DESC LIMIT {limit}"
    );
    let rows = client.query(&sql, &refs(&values)).await?;
    let found = rows.iter().map(delivery).collect::<Result<_, _>>()?;
    with_due(client, found).await
}

/// How many messages fit, counted up to `most`.
///
/// # Errors
/// The store's.
pub async fn count(client: &impl GenericClient, filter: &Filter, most: i64) -> Result<i64, Error> {
    let (conditions, values) = filter.conditions();
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM {FROM} WHERE {conditions} LIMIT {most}) AS counted"
    );
    client.query_one(&sql, &refs(&values)).await?.try_get(0)
}

/// Messages that were born of these records, oldest first; none written before `since` is looked for.
///
/// # Errors
/// The store's.
pub async fn born_of(
    client: &impl GenericClient,
    workspace: i32,
    causes: &[Uuid],
    since: Micros,
) -> Result<Vec<Delivery>, Error> {
    let sql = format!(
        "SELECT {COLUMNS} FROM {FROM} WHERE o.workspace_id = $1 AND o.cause = ANY($2) AND o.created_at >= $3
         ORDER BY o.outbox_id LIMIT 10000"
    );
    let rows = client
        .query(&sql, &[&workspace, &causes, &Tz(since)])
        .await?;
    let found = rows.iter().map(delivery).collect::<Result<_, _>>()?;
    with_due(client, found).await
}

/// Adds what the narrow table knows of those that have not ended. Nothing is due before it is written, which keeps the look
/// into its index short.
async fn with_due(
    client: &impl GenericClient,
    mut found: Vec<Delivery>,
) -> Result<Vec<Delivery>, Error> {
    let waiting = || found.iter().filter(|d| d.status == "scheduled");
    let Some(oldest) = waiting().map(|d| d.created_at).min() else {
        return Ok(found);
    };
    let mut destinations: Vec<i32> = waiting().map(|d| d.destination_no).collect();
    destinations.sort_unstable();
    destinations.dedup();
    let ids: Vec<Uuid> = waiting().map(|d| d.id).collect();
    let rows = client
        .query(
            "SELECT outbox_id, due_at, attempts, unsure_since, lease_token IS NOT NULL FROM outbox_due
             WHERE destination_no = ANY($1) AND due_at >= $2 AND outbox_id = ANY($3)",
            &[&destinations, &Tz(oldest), &ids],
        )
        .await?;
    for row in &rows {
        let id: Uuid = row.try_get(0)?;
        let Some(d) = found.iter_mut().find(|d| d.id == id) else {
            continue;
        };
        d.due_at = Some(row.try_get::<_, Tz>(1)?.0);
        d.attempts = row.try_get(2)?;
        d.unsure_since = row.try_get::<_, Option<Tz>>(3)?.map(|t| t.0);
        if row.try_get(4)? {
            "sending".clone_into(&mut d.status);
        }
    }
    Ok(found)
}

/// One message with its payload and its attempts.
///
/// # Errors
/// The store's.
pub async fn show(
    client: &impl GenericClient,
    workspace: Option<i32>,
    id: Uuid,
) -> Result<Option<Whole>, Error> {
    let sql = format!(
        "SELECT {COLUMNS}, o.payload::text FROM {FROM} WHERE o.outbox_id = $1 AND ($2::int IS NULL OR o.workspace_id = $2)"
    );
    let Some(row) = client.query_opt(&sql, &[&id, &workspace]).await? else {
        return Ok(None);
    };
    let payload: String = row.try_get(12)?;
    let Some(delivery) = with_due(client, vec![delivery(&row)?]).await?.pop() else {
        return Ok(None);
    };
    let mut attempts: Vec<Attempt> = attempts(client, &[id], delivery.created_at, 200)
        .await?
        .into_iter()
        .map(|(_, a)| a)
        .collect();
    attempts.reverse();
    Ok(Some(Whole {
        delivery,
        payload,
        attempts,
    }))
}

impl Delivery {
    /// Whether its receiver knows its id.
    #[must_use]
    pub fn idempotent(&self) -> bool {
        IDEMPOTENT.contains(&self.channel.as_str())
    }
}

/// The send log of messages none of which was written before `since`, newest first.
///
/// # Errors
/// The store's.
pub async fn attempts(
    client: &impl GenericClient,
    ids: &[Uuid],
    since: Micros,
    most: i64,
) -> Result<Vec<(Uuid, Attempt)>, Error> {
    let rows = client
        .query(
            "SELECT sent_at, attempt, result, code, duration_ms, target, excerpt, outbox_id FROM send_log
             WHERE outbox_id = ANY($1) AND sent_at >= $2::timestamptz - interval '1 day'
             ORDER BY sent_at DESC, attempt DESC LIMIT $3",
            &[&ids, &Tz(since), &most],
        )
        .await?;
    rows.iter()
        .map(|r| {
            let attempt = Attempt {
                at: r.try_get::<_, Tz>(0)?.0,
                attempt: r.try_get(1)?,
                result: r.try_get(2)?,
                code: r.try_get(3)?,
                duration_ms: r.try_get(4)?,
                target: r.try_get(5)?,
                excerpt: r.try_get(6)?,
            };
            Ok((r.try_get(7)?, attempt))
        })
        .collect()
}
