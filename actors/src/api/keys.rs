//! API keys: their form, and who a bearer is. What may not: routes (operations), SQL that changes keys (`key_store`).
//!
//! A key is `rk_<id>.<secret>`: 12 lower-case Crockford base-32 characters and 32 random bytes in base64url. Only the
//! secret's SHA-256 is stored (access § API keys).

use super::scopes::ScopeSet;
use crate::postgres::Pool;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// What stands before an API key's id.
const PREFIX: &str = "rk_";
const ID_CHARS: usize = 12;
const SECRET_CHARS: usize = 43;
/// How long a resolved key is believed.
const HELD: Duration = Duration::from_secs(1);
/// Keys held at most; more than that many live at once are read anew.
const HELD_KEYS: usize = 10_000;

/// A key as its holder has it. Debug and Display never show the secret.
pub struct ApiKey {
    id: String,
    secret: String,
}

impl ApiKey {
    /// A new random key.
    ///
    /// # Errors
    /// The operating system's random source failed.
    pub fn generate() -> Result<ApiKey, getrandom::Error> {
        ApiKey::generate_as(PREFIX)
    }

    /// A new random key of another kind of holder, which `prefix` names.
    ///
    /// # Errors
    /// The operating system's random source failed.
    pub fn generate_as(prefix: &str) -> Result<ApiKey, getrandom::Error> {
        let mut random = [0u8; ID_CHARS];
        getrandom::fill(&mut random)?;
        let id: String = random
            .iter()
            .filter_map(|b| ALPHABET.get(usize::from(b & 31)))
            .map(|b| char::from(*b))
            .collect();
        Ok(ApiKey {
            id: format!("{prefix}{id}"),
            secret: new_secret()?,
        })
    }

    /// Another secret for a key that is there.
    ///
    /// # Errors
    /// The operating system's random source failed.
    pub fn with_new_secret(id: &str) -> Result<ApiKey, getrandom::Error> {
        Ok(ApiKey {
            id: id.to_owned(),
            secret: new_secret()?,
        })
    }

    /// Reads `rk_<id>.<secret>`; `None` for every other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<ApiKey> {
        ApiKey::parse_as(PREFIX, text)
    }

    /// The same with another prefix than `rk_`.
    #[must_use]
    pub fn parse_as(prefix: &str, text: &str) -> Option<ApiKey> {
        let (id, secret) = text.split_once('.')?;
        let well_formed = is_id_of(prefix, id)
            && secret.len() == SECRET_CHARS
            && URL_SAFE_NO_PAD.decode(secret).is_ok_and(|s| s.len() == 32);
        well_formed.then(|| ApiKey {
            id: id.to_owned(),
            secret: secret.to_owned(),
        })
    }

    /// The id, which is no secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What is stored of the secret.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.secret.as_bytes()).into()
    }

    /// The whole key, to be shown once.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.***", self.id)
    }
}

fn new_secret() -> Result<String, getrandom::Error> {
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret)?;
    Ok(URL_SAFE_NO_PAD.encode(secret))
}

/// Whether the text has the form of a key's id.
#[must_use]
pub fn is_key_id(text: &str) -> bool {
    is_id_of(PREFIX, text)
}

/// Whether the text has the form of an id with that prefix.
#[must_use]
pub fn is_id_of(prefix: &str, text: &str) -> bool {
    text.strip_prefix(prefix)
        .is_some_and(|id| id.len() == ID_CHARS && id.bytes().all(|b| ALPHABET.contains(&b)))
}

/// A workspace as an actor is pinned to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedWorkspace {
    /// Its number, which every query filters by.
    pub id: i32,
    /// Its public id.
    pub slug: String,
}

/// Who a key is.
#[derive(Clone, Debug)]
pub struct KeyActor {
    /// `rk_…`; also the actor's name in `created_by` and in idempotency keys.
    pub key_id: String,
    /// The key's name.
    pub name: String,
    /// Its workspace; none for a key of the deployment.
    pub workspace: Option<PinnedWorkspace>,
    /// Its scopes, expanded.
    pub scopes: ScopeSet,
}

/// Why a bearer is nobody.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// Unknown, malformed, expired or revoked: never said which.
    #[error("the credential is not valid")]
    Unauthenticated,
    /// The key may not be used from this address.
    #[error("the key may not be used from this address")]
    AddressRefused,
    /// Its workspace is archived.
    #[error("the workspace is archived")]
    WorkspaceArchived,
    /// The store does not answer.
    #[error("the store: {0}")]
    Unavailable(String),
}

impl From<tokio_postgres::Error> for AuthError {
    fn from(e: tokio_postgres::Error) -> AuthError {
        AuthError::Unavailable(e.to_string())
    }
}

/// A key as stored, for as long as it is believed.
struct Held {
    digests: Vec<Vec<u8>>,
    cidrs: Option<Vec<IpNet>>,
    archived: bool,
    actor: Arc<KeyActor>,
}

impl Held {
    fn admit(&self, key: &ApiKey, peer: Option<IpAddr>) -> Result<Arc<KeyActor>, AuthError> {
        let digest = key.digest();
        let mut known = subtle::Choice::from(0);
        for stored in &self.digests {
            known |= stored.as_slice().ct_eq(&digest);
        }
        if !bool::from(known) {
            return Err(AuthError::Unauthenticated);
        }
        if let Some(cidrs) = &self.cidrs {
            let peer = peer.map(|p| p.to_canonical());
            if !peer.is_some_and(|p| cidrs.iter().any(|c| c.contains(&p))) {
                return Err(AuthError::AddressRefused);
            }
        }
        if self.archived {
            return Err(AuthError::WorkspaceArchived);
        }
        Ok(self.actor.clone())
    }
}

/// Who the bearer is, asked of the store. `peer` is the client's address, for keys that are bound to networks.
///
/// # Errors
/// [`AuthError`].
pub async fn authenticate(
    pool: &Pool,
    bearer: &str,
    peer: Option<IpAddr>,
) -> Result<Arc<KeyActor>, AuthError> {
    let key = ApiKey::parse(bearer).ok_or(AuthError::Unauthenticated)?;
    let (held, unused) = load(pool, key.id()).await?;
    let actor = held.admit(&key, peer)?;
    if unused {
        touch(pool, key.id()).await?;
    }
    Ok(actor)
}

/// The key's row, and whether its use should be written down (at most once a minute).
async fn load(pool: &Pool, id: &str) -> Result<(Held, bool), AuthError> {
    let client = pool
        .get()
        .await
        .map_err(|e| AuthError::Unavailable(e.to_string()))?;
    let statement = client
        .prepare_cached(
            "SELECT k.name, k.secret_digest, CASE WHEN k.previous_until > now() THEN k.previous_digest END AS previous,
                    k.scopes, k.cidrs, w.workspace_id, w.slug, coalesce(w.status = 'archived', false) AS archived,
                    k.last_used_at IS NULL OR k.last_used_at < now() - interval '1 minute' AS unused
             FROM api_keys k LEFT JOIN workspaces w USING (workspace_id)
             WHERE k.key_id = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())",
        )
        .await?;
    let row = client
        .query_opt(&statement, &[&id])
        .await?
        .ok_or(AuthError::Unauthenticated)?;
    let mut digests: Vec<Vec<u8>> = vec![row.try_get("secret_digest")?];
    digests.extend(row.try_get::<_, Option<Vec<u8>>>("previous")?);
    let cidrs: Vec<String> = row.try_get("cidrs")?;
    // A network that cannot be read admits nobody, rather than everybody.
    let cidrs = (!cidrs.is_empty()).then(|| cidrs.iter().filter_map(|c| c.parse().ok()).collect());
    let workspace: Option<i32> = row.try_get("workspace_id")?;
    let slug: Option<String> = row.try_get("slug")?;
    let scopes: Vec<String> = row.try_get("scopes")?;
    let held = Held {
        digests,
        cidrs,
        archived: row.try_get("archived")?,
        actor: Arc::new(KeyActor {
            key_id: id.to_owned(),
            name: row.try_get("name")?,
            workspace: workspace
                .zip(slug)
                .map(|(id, slug)| PinnedWorkspace { id, slug }),
            scopes: ScopeSet::expand(&scopes),
        }),
    };
    Ok((held, row.try_get("unused")?))
}

async fn touch(pool: &Pool, id: &str) -> Result<(), AuthError> {
    let client = pool
        .get()
        .await
        .map_err(|e| AuthError::Unavailable(e.to_string()))?;
    client
        .execute(
            "UPDATE api_keys SET last_used_at = now()
             WHERE key_id = $1 AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')",
            &[&id],
        )
        .await?;
    Ok(())
}

/// Resolved keys of this process, each believed for at most a second, so that a revocation acts everywhere within it.
#[derive(Default)]
pub struct KeyCache {
    held: Mutex<HashMap<String, (Instant, Arc<Held>)>>,
}

impl KeyCache {
    /// An empty one.
    #[must_use]
    pub fn new() -> KeyCache {
        KeyCache::default()
    }

    /// [`authenticate`], from memory where the key was read within the last second.
    ///
    /// # Errors
    /// [`AuthError`].
    pub async fn authenticate(
        &self,
        pool: &Pool,
        bearer: &str,
        peer: Option<IpAddr>,
    ) -> Result<Arc<KeyActor>, AuthError> {
        let key = ApiKey::parse(bearer).ok_or(AuthError::Unauthenticated)?;
        if let Some(held) = self.fresh(key.id()) {
            return held.admit(&key, peer);
        }
        // Taken before the read: what changes while it is under way is seen within the second.
        let asked = Instant::now();
        let (held, unused) = load(pool, key.id()).await?;
        let held = Arc::new(held);
        let actor = held.admit(&key, peer)?;
        {
            let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= HELD_KEYS {
                all.clear();
            }
            all.insert(key.id().to_owned(), (asked, held));
        }
        if unused {
            touch(pool, key.id()).await?;
        }
        Ok(actor)
    }

    fn fresh(&self, id: &str) -> Option<Arc<Held>> {
        let all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id)
            .filter(|(asked, _)| asked.elapsed() < HELD)
            .map(|(_, held)| held.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text() {
        let key = ApiKey::generate().expect("random bytes");
        let text = key.reveal();
        let back = ApiKey::parse(&text).expect("well formed");
        assert_eq!(back.id(), key.id());
        assert_eq!(back.digest(), key.digest());
        assert!(!format!("{key:?}").contains(text.split_once('.').expect("two parts").1));
    }

    #[test]
    fn other_texts_are_no_keys() {
        let good = ApiKey::generate().expect("random bytes").reveal();
        for bad in [
            "",
            "rk_",
            "rk_0123456789ab",
            "rk_0123456789ab.",
            "rk_0123456789ab.short",
            &good.to_uppercase(),
            &good.replacen("rk_", "sk_", 1),
            &format!("{good}A"),
            &format!(" {good}"),
        ] {
            assert!(ApiKey::parse(bad).is_none(), "{bad}");
        }
    }
}
