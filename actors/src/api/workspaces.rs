//! Workspaces in the store, within the caller's transaction: the REST routes and `millrace workspace create|list` call the
//! same functions.

use super::faults::{ChangeError, Faults};
use crate::postgres::types::Tz;
use millrace_schemas::ids::is_workspace_slug;
use millrace_schemas::time::Micros;
use tokio_postgres::error::SqlState;
use tokio_postgres::{GenericClient, Row, Transaction};

/// A workspace.
#[derive(Clone, Debug)]
pub struct WorkspaceRow {
    /// Its number.
    pub workspace_id: i32,
    /// Its id outside: never changed, never reused.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// `active` or `archived`.
    pub status: String,
    /// Whether visits keep the client's address beside its hash.
    pub store_ip: bool,
    /// Its version.
    pub version: i64,
    /// When it was made.
    pub created_at: Micros,
    /// When it was changed last.
    pub updated_at: Micros,
    /// Who changed it last.
    pub updated_by: String,
}

/// The columns of [`WorkspaceRow`].
pub(crate) const COLUMNS: &str =
    "workspace_id, slug, name, status, store_ip, version, created_at, updated_at, updated_by";

impl WorkspaceRow {
    /// From a row of [`COLUMNS`].
    ///
    /// # Errors
    /// The row is another.
    pub(crate) fn read(row: &Row) -> Result<WorkspaceRow, tokio_postgres::Error> {
        Ok(WorkspaceRow {
            workspace_id: row.try_get("workspace_id")?,
            slug: row.try_get("slug")?,
            name: row.try_get("name")?,
            status: row.try_get("status")?,
            store_ip: row.try_get("store_ip")?,
            version: row.try_get("version")?,
            created_at: row.try_get::<_, Tz>("created_at")?.0,
            updated_at: row.try_get::<_, Tz>("updated_at")?.0,
            updated_by: row.try_get("updated_by")?,
        })
    }
}

/// Whether the text may be the name of anything: 1–100 characters, not all blank, no control characters.
pub(crate) fn is_name(text: &str) -> bool {
    !text.trim().is_empty() && text.chars().count() <= 100 && !text.chars().any(char::is_control)
}

/// Says of a name that is none what it should be.
pub(crate) fn check_name(at: &str, name: &str, faults: &mut Faults) {
    if !is_name(name) {
        faults.add(
            at,
            "invalid_name",
            "a name has 1 to 100 characters, no control characters",
        );
    }
}

/// Makes a workspace. An empty name becomes the slug.
///
/// # Errors
/// Every fault of the input, `slug_taken`, or the store's failure.
pub async fn create(
    tx: &Transaction<'_>,
    slug: &str,
    name: &str,
    store_ip: bool,
    by: &str,
) -> Result<WorkspaceRow, ChangeError> {
    let mut faults = Faults::new();
    if !is_workspace_slug(slug) {
        faults.add(
            "/id",
            "invalid_slug",
            "2 to 40 of a-z, 0-9 and `-`, beginning with a letter",
        );
    }
    let name = if name.is_empty() { slug } else { name };
    check_name("/name", name, &mut faults);
    faults.done()?;
    let row = tx
        .query_one(
            &format!(
                "INSERT INTO workspaces (slug, name, store_ip, updated_by) VALUES ($1, $2, $3, $4) RETURNING {COLUMNS}"
            ),
            &[&slug, &name, &store_ip, &by],
        )
        .await
        .map_err(|e| {
            if e.code() == Some(&SqlState::UNIQUE_VIOLATION) {
                ChangeError::Conflict {
                    code: "slug_taken",
                    message: format!("there is, or was, a workspace `{slug}`"),
                }
            } else {
                ChangeError::Store(e)
            }
        })?;
    Ok(WorkspaceRow::read(&row)?)
}

/// All workspaces, oldest first, at most 1 000; for the terminal.
///
/// # Errors
/// The store failed.
pub async fn list(client: &impl GenericClient) -> Result<Vec<WorkspaceRow>, tokio_postgres::Error> {
    client
        .query(
            &format!("SELECT {COLUMNS} FROM workspaces ORDER BY workspace_id LIMIT 1000"),
            &[],
        )
        .await?
        .iter()
        .map(WorkspaceRow::read)
        .collect()
}

/// A workspace by its slug, whatever its status.
///
/// # Errors
/// [`ChangeError::NotFound`], or the store's failure.
pub async fn by_slug(client: &impl GenericClient, slug: &str) -> Result<WorkspaceRow, ChangeError> {
    let row = client
        .query_opt(
            &format!("SELECT {COLUMNS} FROM workspaces WHERE slug = $1"),
            &[&slug],
        )
        .await?
        .ok_or(ChangeError::NotFound)?;
    Ok(WorkspaceRow::read(&row)?)
}
