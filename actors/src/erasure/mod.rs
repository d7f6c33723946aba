//! A person's contact taken out of everything that is stored, found by its SHA-256 alone.
//!
//! Two steps. First every place that may hold a contact is read, and each value in it compared: a digest as it is, an address or
//! a telephone number by its digest ([`contact`]). What is found names clicks. Then whatever belongs to those clicks loses what
//! tells the person: address and its hash, user agent, the platform's cookies and click ids, hashes of contacts; messages lose
//! their user data, and those that have not left are called off. Facts and their sums stay.
//!
//! A user whose address it is (`people`) loses name and address, notifications and devices; messages to them lose their words, and
//! what fired for them alone its variables. A suppressed address stays suppressed, by its hash. Their id stays wherever it stands:
//! whoever keeps the accounts knows whose it is.
//!
//! The log is no place of it: it is read once and dropped by its own retention.

pub mod contact;
mod people;
mod places;
mod take_out;

pub use contact::{Contact, NotAContact};

use std::collections::BTreeMap;
use tokio_postgres::Client;

/// Why it ended early; it may be run again at any time.
#[derive(Debug, thiserror::Error)]
pub enum ErasureError {
    /// The store failed.
    #[error("the store: {}", crate::runtime::session::describe(.0))]
    Store(#[from] tokio_postgres::Error),
}

/// What was found, and taken out unless it was a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows by table.
    pub rows: BTreeMap<&'static str, u64>,
    /// Clicks that are the person's.
    pub clicks: usize,
    /// Messages that had not left and were called off.
    pub called_off: u64,
    /// Messages that are being sent at this moment: they are looked at again by the next run.
    pub being_sent: u64,
}

impl Report {
    /// Rows of all tables.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.rows.values().sum()
    }
}

/// Takes a contact out, in one workspace or in all. `act` false: says what would be done, and changes nothing. Reads every row
/// that may hold a contact, without locks; writes row by row. Safe at full load, safe to run again.
///
/// # Errors
/// The store's.
pub async fn erase(
    client: &mut Client,
    contact: &Contact,
    workspace: Option<i32>,
    act: bool,
) -> Result<Report, ErasureError> {
    // Whole tables are read.
    client.batch_execute("SET statement_timeout = 0").await?;
    let found = places::find(client, contact, workspace).await?;
    Ok(take_out::take_out(client, contact, workspace, found, act).await?)
}
