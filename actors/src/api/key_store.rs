//! Keys in the store: made, listed, rotated, revoked, each within the caller's transaction. The REST routes and
//! `millrace key create|list|revoke` call the same functions.

use super::faults::{ChangeError, Faults};
use super::keys::{ApiKey, is_key_id};
use super::scopes::{self, FULL, Grant, ScopeSet};
use crate::postgres::types::Tz;
use ipnet::IpNet;
use millrace_schemas::time::Micros;
use std::collections::BTreeSet;
use tokio_postgres::{GenericClient, Row, Transaction};

/// Live keys of one workspace at most.
pub const LIVE_KEYS: i64 = 100;
/// How long a rotated secret may live on, in seconds.
pub const MAX_OVERLAP_S: i64 = 604_800;
/// How long it does if nothing is said, in seconds.
pub const DEFAULT_OVERLAP_S: i64 = 3_600;

/// A key to make.
#[derive(Clone, Debug, Default)]
pub struct NewKey {
    /// The workspace's number; none for a key of the deployment, which may hold `ops:*` and nothing else.
    pub workspace: Option<i32>,
    /// What it is for, 1–100 characters.
    pub name: String,
    /// Scopes by name, or the word `full`.
    pub scopes: Vec<String>,
    /// When it ends by itself.
    pub expires_at: Option<Micros>,
    /// Networks it may be used from; none: from everywhere.
    pub cidrs: Vec<String>,
    /// Who makes it: a key's id, or `cli`.
    pub created_by: String,
}

/// A key as it may be shown.
#[derive(Clone, Debug)]
pub struct KeyRow {
    /// `rk_…`.
    pub key_id: String,
    /// The workspace's number.
    pub workspace: Option<i32>,
    /// Its name.
    pub name: String,
    /// Its scopes as given.
    pub scopes: Vec<String>,
    /// Networks it may be used from.
    pub cidrs: Vec<String>,
    /// When it ends by itself.
    pub expires_at: Option<Micros>,
    /// When it was revoked.
    pub revoked_at: Option<Micros>,
    /// When it was used last, to the minute.
    pub last_used_at: Option<Micros>,
    /// Until when the secret before the last rotation is good.
    pub previous_until: Option<Micros>,
    /// Who made it.
    pub created_by: String,
    /// When it was made.
    pub created_at: Micros,
    /// When it was changed last.
    pub updated_at: Micros,
    /// Its version.
    pub version: i64,
}

/// The columns of [`KeyRow`].
pub(crate) const COLUMNS: &str = "key_id, workspace_id, name, scopes, cidrs, expires_at, revoked_at, last_used_at, \
     CASE WHEN previous_until > now() THEN previous_until END AS previous_until, created_by, created_at, updated_at, version";

impl KeyRow {
    /// From a row of [`COLUMNS`].
    ///
    /// # Errors
    /// The row is another.
    pub(crate) fn read(row: &Row) -> Result<KeyRow, tokio_postgres::Error> {
        let time = |name: &str| -> Result<Option<Micros>, tokio_postgres::Error> {
            Ok(row.try_get::<_, Option<Tz>>(name)?.map(|t| t.0))
        };
        Ok(KeyRow {
            key_id: row.try_get("key_id")?,
            workspace: row.try_get("workspace_id")?,
            name: row.try_get("name")?,
            scopes: row.try_get("scopes")?,
            cidrs: row.try_get("cidrs")?,
            expires_at: time("expires_at")?,
            revoked_at: time("revoked_at")?,
            last_used_at: time("last_used_at")?,
            previous_until: time("previous_until")?,
            created_by: row.try_get("created_by")?,
            created_at: row.try_get::<_, Tz>("created_at")?.0,
            updated_at: row.try_get::<_, Tz>("updated_at")?.0,
            version: row.try_get("version")?,
        })
    }
}

/// What is wrong with a key to be made, all of it. Networks come back in their canonical form.
fn check(new: &NewKey, now: Micros) -> Result<Vec<String>, ChangeError> {
    let mut faults = Faults::new();
    let name = new.name.trim();
    if name.is_empty() || new.name.chars().count() > 100 || new.name.chars().any(char::is_control) {
        faults.add(
            "/name",
            "invalid_name",
            "a name has 1 to 100 characters, no control characters",
        );
    }
    if new.scopes.is_empty() {
        faults.add("/scopes", "required", "a key needs at least one scope");
    }
    let mut seen = BTreeSet::new();
    for (i, scope) in new.scopes.iter().enumerate() {
        let path = format!("/scopes/{i}");
        if !seen.insert(scope.as_str()) {
            faults.add(path, "repeated", "it stands twice");
            continue;
        }
        let grant = if scope == FULL {
            Some(Grant::Ordinary)
        } else {
            scopes::find(scope).map(|s| s.grant)
        };
        match (grant, new.workspace) {
            (None, _) => faults.add(path, "unknown_scope", unknown_scope(scope)),
            (Some(Grant::UserOnly), _) => {
                faults.add(
                    path,
                    "scope_of_users",
                    format!("`{scope}` is a user's; a key has no user"),
                );
            }
            (Some(Grant::Deployment), Some(_)) => {
                faults.add(
                    path,
                    "scope_of_deployment",
                    format!("`{scope}` needs a key without a workspace"),
                );
            }
            (Some(Grant::Ordinary | Grant::ByName), None) => {
                faults.add(
                    path,
                    "scope_of_workspace",
                    format!("`{scope}` needs a key of a workspace"),
                );
            }
            _ => {}
        }
    }
    let mut cidrs = Vec::with_capacity(new.cidrs.len());
    if new.cidrs.len() > 50 {
        faults.add("/cidrs", "too_many", "at most 50 networks");
    }
    for (i, text) in new.cidrs.iter().enumerate() {
        match text.parse::<IpNet>() {
            Ok(net) => cidrs.push(net.trunc().to_string()),
            Err(_) => faults.add(
                format!("/cidrs/{i}"),
                "invalid_network",
                "want an address and a prefix length, as 203.0.113.0/24",
            ),
        }
    }
    if new.expires_at.is_some_and(|t| t <= now) {
        faults.add(
            "/expires_at",
            "in_the_past",
            "a key cannot end before it begins",
        );
    }
    faults.done()?;
    Ok(cidrs)
}

/// Makes a key. `giver` is what the actor that makes it holds at this moment (nobody gives what they do not hold); none
/// at the terminal. The secret is in the answer and nowhere else.
///
/// # Errors
/// Every fault of the input, `too_many_keys`, an unknown workspace, or the store's failure.
pub async fn create(
    tx: &Transaction<'_>,
    new: &NewKey,
    giver: Option<&ScopeSet>,
) -> Result<(KeyRow, ApiKey), ChangeError> {
    let now: Tz = tx.query_one("SELECT now()", &[]).await?.try_get(0)?;
    let cidrs = check(new, now.0)?;
    if let Some(giver) = giver {
        let lacking = giver.lacking(&ScopeSet::expand(&new.scopes));
        if !lacking.is_empty() {
            return Err(ChangeError::NotHeld(lacking));
        }
    }
    // The lock makes two creations count one after the other.
    if let Some(workspace) = new.workspace {
        tx.query_opt(
            "SELECT 1 FROM workspaces WHERE workspace_id = $1 FOR NO KEY UPDATE",
            &[&workspace],
        )
        .await?
        .ok_or(ChangeError::NotFound)?;
    } else {
        tx.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('api_keys of the deployment', 0))",
            &[],
        )
        .await?;
    }
    let live: i64 = tx
        .query_one(
            "SELECT count(*) FROM api_keys WHERE workspace_id IS NOT DISTINCT FROM $1
             AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())",
            &[&new.workspace],
        )
        .await?
        .try_get(0)?;
    if live >= LIVE_KEYS {
        return Err(ChangeError::Conflict {
            code: "too_many_keys",
            message: format!("there are {LIVE_KEYS} live keys already; revoke one first"),
        });
    }
    let key = ApiKey::generate()?;
    let row = tx
        .query_one(
            &format!(
                "INSERT INTO api_keys (key_id, workspace_id, name, secret_digest, scopes, cidrs, expires_at, created_by, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) RETURNING {COLUMNS}"
            ),
            &[
                &key.id(),
                &new.workspace,
                &new.name.trim(),
                &key.digest().as_slice(),
                &new.scopes,
                &cidrs,
                &new.expires_at.map(Tz),
                &new.created_by,
            ],
        )
        .await?;
    Ok((KeyRow::read(&row)?, key))
}

/// Keys of a workspace (`None`: of the deployment), newest first, at most 1 000; for the terminal.
///
/// # Errors
/// The store failed.
pub async fn list(
    client: &impl GenericClient,
    workspace: Option<i32>,
) -> Result<Vec<KeyRow>, tokio_postgres::Error> {
    client
        .query(
            &format!(
                "SELECT {COLUMNS} FROM api_keys WHERE workspace_id IS NOT DISTINCT FROM $1
                 ORDER BY created_at DESC, key_id DESC LIMIT 1000"
            ),
            &[&workspace],
        )
        .await?
        .iter()
        .map(KeyRow::read)
        .collect()
}

/// Which keys an act may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// Any key: the terminal.
    Anywhere,
    /// Keys of one workspace.
    Workspace(i32),
    /// Keys of the deployment.
    Deployment,
}

impl Within {
    fn clause(self) -> &'static str {
        match self {
            Within::Anywhere => "($2::integer IS NULL)",
            Within::Workspace(_) => "workspace_id = $2",
            Within::Deployment => "(workspace_id IS NULL AND $2::integer IS NULL)",
        }
    }

    fn number(self) -> Option<i32> {
        match self {
            Within::Workspace(id) => Some(id),
            Within::Anywhere | Within::Deployment => None,
        }
    }
}

/// Revokes a key; a revoked one stays as it is. Always works, whatever its version.
///
/// # Errors
/// [`ChangeError::NotFound`], or the store's failure.
pub async fn revoke(
    tx: &Transaction<'_>,
    within: Within,
    key_id: &str,
    by: &str,
) -> Result<KeyRow, ChangeError> {
    if !is_key_id(key_id) {
        return Err(ChangeError::NotFound);
    }
    tx.execute(
        &format!(
            "UPDATE api_keys SET revoked_at = now(), previous_digest = NULL, previous_until = NULL, updated_at = now(),
                    updated_by = $3, version = version + 1
             WHERE key_id = $1 AND {} AND revoked_at IS NULL",
            within.clause()
        ),
        &[&key_id, &within.number(), &by],
    )
    .await?;
    get(tx, within, key_id).await
}

/// Gives a live key a new secret; the old one lives `overlap_s` more (0: it dies at once). One before that dies now.
///
/// # Errors
/// A fault of the overlap, [`ChangeError::NotFound`], `key_revoked`, or the store's failure.
pub async fn rotate(
    tx: &Transaction<'_>,
    within: Within,
    key_id: &str,
    overlap_s: i64,
    by: &str,
) -> Result<(KeyRow, ApiKey), ChangeError> {
    let mut faults = Faults::new();
    if !(0..=MAX_OVERLAP_S).contains(&overlap_s) {
        faults.add(
            "/overlap_s",
            "out_of_range",
            format!("0 to {MAX_OVERLAP_S} seconds"),
        );
    }
    faults.done()?;
    let before = get(tx, within, key_id).await?;
    let key = ApiKey::with_new_secret(&before.key_id)?;
    let row = tx
        .query_opt(
            &format!(
                "UPDATE api_keys SET secret_digest = $4,
                        previous_digest = CASE WHEN $5::float8 > 0 THEN secret_digest END,
                        previous_until = CASE WHEN $5::float8 > 0 THEN now() + make_interval(secs => $5) END,
                        updated_at = now(), updated_by = $3, version = version + 1
                 WHERE key_id = $1 AND {} AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
                 RETURNING {COLUMNS}",
                within.clause()
            ),
            &[
                &key_id,
                &within.number(),
                &by,
                &key.digest().as_slice(),
                &f64::from(i32::try_from(overlap_s).unwrap_or(0)),
            ],
        )
        .await?
        .ok_or_else(|| ChangeError::Conflict {
            code: "key_revoked",
            message: "the key is revoked or has expired".to_owned(),
        })?;
    Ok((KeyRow::read(&row)?, key))
}

/// A key by its id.
///
/// # Errors
/// [`ChangeError::NotFound`], or the store's failure.
pub async fn get(
    client: &impl GenericClient,
    within: Within,
    key_id: &str,
) -> Result<KeyRow, ChangeError> {
    let row = client
        .query_opt(
            &format!(
                "SELECT {COLUMNS} FROM api_keys WHERE key_id = $1 AND {}",
                within.clause()
            ),
            &[&key_id, &within.number()],
        )
        .await?
        .ok_or(ChangeError::NotFound)?;
    Ok(KeyRow::read(&row)?)
}

/// Says it again only if it looks like one: whatever else was sent may be anything.
fn unknown_scope(text: &str) -> String {
    let like_one = text.len() <= 40
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || matches!(b, b':' | b'_'));
    if like_one {
        format!("there is no scope `{text}`")
    } else {
        "there is no such scope".to_owned()
    }
}
