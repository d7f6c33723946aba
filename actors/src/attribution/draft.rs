//! Overlay and effects of one attempt at a batch. Dropped whole when the attempt fails.

use super::identity::Keys;
use super::slice::{Click, Waiting};
use hashbrown::HashMap;
use millrace_schemas::ids::{ClickKey, RecordId};
use millrace_schemas::journey::Role;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::postback::Status;
use millrace_schemas::time::Micros;
use rust_decimal::Decimal;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// A click that is charged.
#[derive(Debug, Clone, PartialEq)]
pub struct ClickFact {
    /// Its key.
    pub key: ClickKey,
    /// The click id's text, if foreign.
    pub click_id: Option<String>,
    /// The record it was born of.
    pub id: RecordId,
    /// When it was accepted.
    pub accepted_at: Micros,
    /// When it happened, if said.
    pub occurred_at: Option<Micros>,
    /// The page of the funnel.
    pub stage: u16,
    /// The campaign.
    pub campaign: Arc<str>,
    /// The offer of the journey.
    pub offer: Option<String>,
}

/// A postback with its journey found: it books if its claims stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Booking {
    /// The record; the conversion's id too.
    pub id: RecordId,
    /// It waited.
    pub woken: bool,
    /// The click.
    pub key: ClickKey,
    /// The click id's text, if foreign.
    pub click_id: Option<String>,
    /// Its identity.
    pub keys: Keys,
    /// When it was accepted.
    pub accepted_at: Micros,
    /// When it happened, if said.
    pub occurred_at: Option<Micros>,
    /// The campaign of the credited visit.
    pub campaign: Arc<str>,
    /// The credited visit.
    pub visit_id: Uuid,
    /// The credited offer.
    pub offer: String,
    /// In what part.
    pub role: Role,
    /// The network.
    pub network: String,
    /// The provider's conversion id.
    pub external_id: Option<String>,
    /// The transaction.
    pub txid: Option<String>,
    /// The event as sent.
    pub event: Option<String>,
    /// The provider's event type.
    pub provider_event: Option<String>,
    /// The offer id as returned.
    pub returned_offer: Option<String>,
    /// The payout booked.
    pub payout: Decimal,
    /// Whether the postback itself named one.
    pub payout_given: bool,
    /// Its currency.
    pub currency: String,
    /// The status it brings.
    pub status: Status,
    /// Whether the network may take back what it approved.
    pub reversals: bool,
    /// Supplied hashes.
    pub email_hash: Option<String>,
    /// Supplied hashes.
    pub phone_hash: Option<String>,
    /// Supplied hashes.
    pub lead_hash: Option<String>,
    /// Facts that no column holds.
    pub flags: Vec<&'static str>,
    /// The query, for the log; None if the log has it since it was parked.
    pub query: Option<String>,
}

/// A postback that waited too long: a dead letter, unless its identity is booked by now.
#[derive(Debug, Clone)]
pub struct Expiring {
    /// What waited.
    pub waiting: Waiting,
    /// Its click.
    pub key: ClickKey,
    /// The one identity that needs no journey.
    pub external: Option<Uuid>,
}

/// A provider click whose sidecar offer was served.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderClick {
    /// The record.
    pub id: RecordId,
    /// It waited.
    pub woken: bool,
    /// The click.
    pub key: ClickKey,
    /// The network.
    pub network: String,
    /// The monetization offer.
    pub offer: String,
    /// When it was accepted.
    pub accepted_at: Micros,
    /// The provider's transaction.
    pub txid: Option<String>,
}

/// A row of the postback log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRow {
    /// The workspace.
    pub workspace: i32,
    /// The record.
    pub id: RecordId,
    /// When it was accepted.
    pub accepted_at: Micros,
    /// The click, where it named one.
    pub key: Option<Uuid>,
    /// The conversion it booked, or found.
    pub conversion: Option<Uuid>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why.
    pub reason: &'static str,
    /// The network.
    pub network: String,
    /// The query as sent; None on the second row of one that waited.
    pub query: Option<String>,
}

/// A visit or click that can never be booked.
#[derive(Debug, Clone, PartialEq)]
pub struct Reject {
    /// The workspace.
    pub workspace: i32,
    /// The record.
    pub id: RecordId,
    /// When it was accepted.
    pub accepted_at: Micros,
    /// What it is.
    pub kind: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Its click id.
    pub click_id: String,
    /// Its original bytes.
    pub payload: Vec<u8>,
}

/// A booked conversion, as settling sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Owner {
    /// The conversion.
    pub conversion: Uuid,
    /// Its partition in time.
    pub accepted_at: Micros,
    /// Its status; None if the fact was dropped by retention: then it is a duplicate and nothing else.
    pub status: Option<Status>,
    /// Its payout.
    pub payout: Decimal,
    /// The provider's conversion id it has.
    pub external_id: Option<String>,
}

/// What the claims brought: read inside the transaction.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    /// Keys that were free and are ours now, with the conversion each was inserted for.
    pub taken: HashMap<Uuid, Uuid>,
    /// Keys of others, to an index of `owners`.
    pub held: HashMap<Uuid, usize>,
    /// The conversions that hold them, rows locked.
    pub owners: Vec<Owner>,
    /// Places of provider clicks that were free.
    pub provider: Vec<RecordId>,
}

/// A change of a conversion that the store had before this batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// As it was found.
    pub owner: Owner,
    /// New status, if it moves.
    pub status: Status,
    /// New payout.
    pub payout: Decimal,
    /// The provider's id that attaches to it.
    pub external_id: Option<String>,
}

/// A row of the history.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryRow {
    /// The workspace.
    pub workspace: i32,
    /// The conversion.
    pub conversion: Uuid,
    /// The receipt that moved it.
    pub id: RecordId,
    /// From.
    pub old: (Status, Decimal),
    /// To.
    pub new: (Status, Decimal),
}

/// A conversion that was booked, or whose status moved: what deliveries are set off by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// The workspace.
    pub workspace: i32,
    /// The conversion.
    pub conversion: Uuid,
    /// Its partition in time.
    pub accepted_at: Micros,
    /// The receipt that did it.
    pub cause: RecordId,
    /// When that happened: as the receipt says, else when it was accepted.
    pub at: Micros,
    /// The status before; None: it was booked.
    pub before: Option<Status>,
    /// The status now.
    pub status: Status,
    /// The payout now.
    pub payout: Decimal,
    /// The time inside the conversion's click id, in milliseconds, where it is known and the id a minted one.
    pub minted_millis: Option<i64>,
}

impl Firing {
    /// Whether it became approved: it can do so once.
    #[must_use]
    pub fn first_approved(&self) -> bool {
        self.status == Status::Approved && self.before != Some(Status::Approved)
    }
}

/// Where a key that we inserted must point in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFix {
    /// To another conversion (and its partition in time).
    Repoint(Uuid, Uuid, Micros),
    /// Nowhere: nobody booked under it.
    Delete(Uuid),
}

/// One thing to settle, in the order of deciding.
#[derive(Debug, Clone)]
pub enum Pending {
    /// A booking.
    Book(Box<Booking>),
    /// An expiry.
    Expire(Box<Expiring>),
    /// A provider click.
    Provider(Box<ProviderClick>),
}

/// Overlay and effects.
#[derive(Debug, Default)]
pub struct Draft {
    /// Clicks as this batch leaves them.
    pub overlay: HashMap<ClickKey, Click>,
    /// Visits: places of their items in the batch, with the journey's offer.
    pub visits: Vec<(usize, Option<Arc<millrace_schemas::journey::Journey>>)>,
    /// Clicks.
    pub clicks: Vec<ClickFact>,
    /// What waits from now on.
    pub parked: Vec<(ClickKey, Waiting)>,
    /// What waits no longer.
    pub unparked: Vec<(ClickKey, RecordId)>,
    /// What must be settled.
    pub pending: Vec<Pending>,
    /// Claims, once read.
    pub claims: Claims,
    /// Conversions that stand.
    pub booked: Vec<Booking>,
    /// Changes of older conversions.
    pub changes: BTreeMap<Uuid, Change>,
    /// History.
    pub history: Vec<HistoryRow>,
    /// What sets off deliveries.
    pub firings: Vec<Firing>,
    /// Keys to mend.
    pub fixes: Vec<KeyFix>,
    /// The postback log.
    pub log: Vec<LogRow>,
    /// Rejected visits and clicks.
    pub rejects: Vec<Reject>,
    /// Provider clicks that stand.
    pub provider: Vec<ProviderClick>,
}
