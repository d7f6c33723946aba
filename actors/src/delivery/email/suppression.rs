//! Addresses that get no mail. All SQL on `suppressions` that changes it; it is looked at by gate 5 (`recipients::load`), by the
//! preview of a rule's reach, and before each send (`delivery::recheck`).
//!
//! An address is known by the SHA-256 of its folded form, and folded by the database in one expression, the one of
//! `users.email_folded`: two of them would differ for some letter some day.

use super::address::mask;
use crate::runtime::session::Session;
use millrace_schemas::ids;
use tokio_postgres::{Error, GenericClient};
use uuid::Uuid;

/// SQL: the hash of an address in parameter `$2`.
const HASH: &str = "sha256(convert_to(lower(btrim($2::text) COLLATE \"und-x-icu\"), 'UTF8'))";

/// An address whose server said that there is no such mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadAddress {
    /// The workspace.
    pub workspace: i32,
    /// The hash of the address that the message went to, whatever its user has by now.
    pub hash: Vec<u8>,
    /// What may be shown of it.
    pub masked: String,
    /// The message.
    pub message: Uuid,
    /// What was said, redacted.
    pub said: String,
}

/// A suppression's id, of one that is unique already and says nothing of the address: it stands in paths, and so in logs.
#[must_use]
pub fn id_of(unique: Uuid) -> String {
    format!("sp_{}", ids::encode(unique))
}

/// Suppresses an address, in the transaction that ends its message. True: it was not suppressed before. An operator's entry stays.
///
/// # Errors
/// The store's.
pub async fn bury(session: &Session, dead: &DeadAddress) -> Result<bool, Error> {
    let n = session
        .execute(
            "INSERT INTO suppressions (suppression_id, workspace_id, address_hash, address_masked, reason, detail, outbox_id)
             VALUES ($1, $2, $3, $4, 'hard_bounce', $5, $6) ON CONFLICT DO NOTHING",
            &[
                &id_of(dead.message),
                &dead.workspace,
                &dead.hash,
                &dead.masked,
                &dead.said,
                &dead.message,
            ],
        )
        .await?;
    Ok(n == 1)
}

/// Suppresses an address by hand, under this id; answers the id that it has: one that is suppressed already stays as it is.
///
/// # Errors
/// The store's.
pub async fn add(
    client: &impl GenericClient,
    workspace: i32,
    (id, address): (&str, &str),
    detail: Option<&str>,
    by: &str,
) -> Result<String, Error> {
    client
        .execute(
            &format!(
                "INSERT INTO suppressions (suppression_id, workspace_id, address_hash, address_masked, reason, detail, created_by)
                 VALUES ($3, $1, {HASH}, $4, 'manual', $5, $6) ON CONFLICT DO NOTHING"
            ),
            &[&workspace, &address, &id, &mask(address), &detail, &by],
        )
        .await?;
    let sql = format!(
        "SELECT suppression_id FROM suppressions WHERE workspace_id = $1 AND address_hash = {HASH}"
    );
    client
        .query_one(&sql, &[&workspace, &address])
        .await?
        .try_get(0)
}

/// Lifts a suppression by its id. True: there was one.
///
/// # Errors
/// The store's.
pub async fn lift(client: &impl GenericClient, workspace: i32, id: &str) -> Result<bool, Error> {
    let n = client
        .execute(
            "DELETE FROM suppressions WHERE workspace_id = $1 AND suppression_id = $2",
            &[&workspace, &id],
        )
        .await?;
    Ok(n == 1)
}

/// Lifts the suppression of an address, however it is written. True: there was one.
///
/// # Errors
/// The store's.
pub async fn lift_address(
    client: &impl GenericClient,
    workspace: i32,
    address: &str,
) -> Result<bool, Error> {
    let sql = format!("DELETE FROM suppressions WHERE workspace_id = $1 AND address_hash = {HASH}");
    Ok(client.execute(&sql, &[&workspace, &address]).await? == 1)
}
