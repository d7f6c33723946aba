//! The oracle of an operator: recounts a store from its facts by plain SQL, read-only, and names each difference.
//!
//! Everything is read in ONE transaction, `REPEATABLE READ READ ONLY`: actors and dispatchers write all of a batch in one
//! transaction, so what must hold holds in every snapshot, and a deployment at full load is seen at one moment. It works on a
//! replica and under a role that may only SELECT. Differences are streamed; a bounded number of examples is kept.
//!
//! One file a family of checks: `consumed`, `outcomes`, `ends` (records); `identities`, `bookings`, `parked`,
//! `dead_letters` (the ledger); `outbox`, `send_log`, `leases`, `causes`, `gates`, `told` (delivery); `positions`, `emits`,
//! `log` (the streams). `kept` says what retention has left: nothing dropped on purpose is called lost. `check` has
//! their names and words, `report` what is found, `snapshot` the transaction.
//!
//! **What it cannot answer**, since only whoever made the records knows it:
//! - whether a record that a door acknowledged is in the log at all, and with the bytes that were sent;
//! - whether an outcome is the *right* one: a postback called a duplicate, a payout, the offer credited. It sees that each
//!   record has one outcome and that all tables tell the same story;
//! - which visit or click a `duplicate` of topic `clicks` repeated: it leaves no fact, and is known by its count alone;
//! - whether a parked postback should have been woken: whether a journey credits its network is for `decide` to say (a parked
//!   click that has its visit is named);
//! - whether a pixel should have fired, and whom webhooks that were changed since should have told: what was configured at the
//!   time is not kept. Webhooks that never changed are asked for each fact they listen to;
//! - whether somebody was told within a cooldown, or outside a ceiling, by a rule or a segment that was changed since, or what a
//!   preference said at the time: `told` names what it judges by;
//! - whether a receiver has a message, or has it twice: the send log is our side of it;
//! - what Kafka holds: its ends are asked for with `--log` alone, its records never.

mod bookings;
mod causes;
pub mod check;
mod consumed;
mod dead_letters;
mod emits;
mod ends;
mod gates;
mod identities;
mod kept;
mod leases;
mod log;
mod outbox;
mod outcomes;
mod parked;
mod positions;
pub mod report;
mod send_log;
mod snapshot;
mod told;

pub use check::Check;
pub use report::{Checked, Difference, Kind, Report};

use crate::postgres::pool::chain;
use futures::future::BoxFuture;
use snapshot::Snapshot;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// The end of one partition in the log, as the log itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The topic's number.
    pub topic_no: i32,
    /// The partition.
    pub partition: i32,
    /// Offset of its next record.
    pub high: i64,
}

/// Asks the log for its ends; called once the snapshot is taken, so that no position of it can be ahead.
pub type AskLog =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Vec<LogEnd>, String>> + Send + Sync + 'static>;

/// What to verify.
#[derive(Clone)]
pub struct Options {
    /// These checks alone; empty: all.
    pub checks: Vec<Check>,
    /// Facts of records accepted within this time alone; counts of all time are left out then.
    pub since: Option<Duration>,
    /// Examples kept of each check.
    pub limit: usize,
    /// How long one question to the store may take.
    pub statement_timeout: Duration,
    /// Asks a log that is not in the store.
    pub log: Option<AskLog>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            checks: Vec::new(),
            since: None,
            limit: 5,
            statement_timeout: Duration::from_secs(600),
            log: None,
        }
    }
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The store failed, refused, or took longer than the timeout.
    #[error("the store: {}", chain(.0))]
    Store(#[from] tokio_postgres::Error),
    /// The log could not be asked.
    #[error("the log: {0}")]
    Log(String),
}

/// Verifies a store.
///
/// The client must not be in a transaction. If the future is dropped midway, its transaction stays open until the server's
/// `idle_in_transaction_session_timeout`; the client is not to be used again.
///
/// # Errors
/// [`VerifyError`].
pub async fn run(client: &Client, options: &Options) -> Result<Report, VerifyError> {
    run_watched(client, options, &mut |_, _| ()).await
}

/// [`run`], telling before each check which it is and how many are done.
///
/// # Errors
/// [`VerifyError`].
pub async fn run_watched(
    client: &Client,
    options: &Options,
    watch: &mut (dyn FnMut(Check, usize) + Send),
) -> Result<Report, VerifyError> {
    let done = verify(client, options, watch).await;
    // A snapshot that is not let go keeps the store from cleaning up.
    let closed = client.batch_execute("ROLLBACK").await;
    let report = done?;
    closed?;
    Ok(report)
}

async fn verify(
    client: &Client,
    options: &Options,
    watch: &mut (dyn FnMut(Check, usize) + Send),
) -> Result<Report, VerifyError> {
    let begun = Instant::now();
    let snapshot = Snapshot::take(client, options).await?;
    let ends = match &options.log {
        Some(ask) => ask().await.map_err(VerifyError::Log)?,
        None => Vec::new(),
    };
    let mut checked = Vec::new();
    let wanted = |check: &Check| options.checks.is_empty() || options.checks.contains(check);
    for (done, check) in Check::ALL.into_iter().filter(wanted).enumerate() {
        watch(check, done);
        let begun = Instant::now();
        let mut found = Checked::new(check, options.limit);
        ask(check, &snapshot, &ends, &mut found).await?;
        found.seconds = begun.elapsed().as_secs_f64();
        checked.push(found);
    }
    Ok(Report {
        moment: snapshot.moment.rfc3339(),
        on_replica: snapshot.on_replica,
        seconds: begun.elapsed().as_secs_f64(),
        checks: checked,
    })
}

async fn ask(
    check: Check,
    s: &Snapshot<'_>,
    ends: &[LogEnd],
    found: &mut Checked,
) -> Result<(), tokio_postgres::Error> {
    match check {
        Check::Consumed => consumed::check(s, found).await,
        Check::Outcomes => outcomes::check(s, found).await,
        Check::Ends => ends::check(s, found).await,
        Check::Identities => identities::check(s, found).await,
        Check::Bookings => bookings::check(s, found).await,
        Check::Parked => parked::check(s, found).await,
        Check::DeadLetters => dead_letters::check(s, found).await,
        Check::Outbox => outbox::check(s, found).await,
        Check::SendLog => send_log::check(s, found).await,
        Check::Leases => leases::check(s, found).await,
        Check::Causes => causes::check(s, found).await,
        Check::Gates => gates::check(s, found).await,
        Check::Positions => positions::check(s, ends, found).await,
        Check::Emits => emits::check(s, found).await,
        Check::Log => log::check(s, found).await,
    }
}
