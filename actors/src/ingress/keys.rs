//! API keys at the batch doors: asked of the store, remembered for at most a second; with PostgreSQL away, a key that was
//! good within the time that configuration may be held stays good.

use crate::api::keys::{AuthError, authenticate};
use crate::postgres::Pool;
use hashbrown::HashMap;
use millrace_topics::contract::BoxFuture;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a resolved key is remembered (spec: access § Who acts).
const FRESH: Duration = Duration::from_secs(1);

/// How long the store may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);

/// The scope that opens the batch doors.
pub const INGEST_SCOPE: &str = "ingest:write";

/// How many are remembered.
const MAX_HELD: usize = 4_096;

/// Whom a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHolder {
    /// The key's id, for the log.
    pub key_id: String,
    /// The workspace it is pinned to.
    pub workspace: Option<i32>,
    /// Whether it carries `ingest:write`.
    pub may_ingest: bool,
}

/// Why a key does not open the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Unknown, malformed, expired or revoked: all the same.
    Unauthenticated,
    /// The key may not be used from this address.
    AddressRefused,
    /// Its workspace is archived.
    WorkspaceArchived,
    /// The store is away: it cannot be told.
    Unavailable,
}

/// Resolves a bearer.
pub trait KeyCheck: Send + Sync {
    /// Whom it stands for. `client`: the caller's address, for keys bound to networks.
    fn check<'a>(
        &'a self,
        bearer: &'a str,
        client: Option<IpAddr>,
    ) -> BoxFuture<'a, Result<KeyHolder, KeyError>>;
}

/// A [`KeyCheck`] that remembers.
pub struct HeldKeys {
    inner: Arc<dyn KeyCheck>,
    hold: Duration,
    held: Mutex<HashMap<[u8; 32], Held>>,
}

struct Held {
    at: Instant,
    answer: Result<Arc<KeyHolder>, KeyError>,
}

impl HeldKeys {
    /// Remembers what `inner` says; `hold`: how long a good key stays good with the store away.
    pub fn new(inner: Arc<dyn KeyCheck>, hold: Duration) -> HeldKeys {
        HeldKeys {
            inner,
            hold,
            held: Mutex::new(HashMap::new()),
        }
    }

    /// Whom a bearer stands for.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub async fn resolve(
        &self,
        bearer: &str,
        client: Option<IpAddr>,
    ) -> Result<Arc<KeyHolder>, KeyError> {
        let mut hash = Sha256::new_with_prefix(format!("{client:?}|"));
        hash.update(bearer.as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let remembered = {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.get(&digest)
                .map(|h| (h.at.elapsed(), h.answer.clone()))
        };
        if let Some((age, answer)) = &remembered
            && *age <= FRESH
        {
            return answer.clone();
        }
        let at = Instant::now();
        let answer = match self.inner.check(bearer, client).await {
            Ok(holder) => Ok(Arc::new(holder)),
            Err(KeyError::Unavailable) => {
                return match remembered {
                    Some((age, Ok(holder))) if age <= self.hold => Ok(holder),
                    _ => Err(KeyError::Unavailable),
                };
            }
            Err(error) => Err(error),
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= MAX_HELD {
            held.retain(|_, h| h.answer.is_ok() && h.at.elapsed() <= self.hold);
            if held.len() >= MAX_HELD {
                held.clear();
            }
        }
        held.insert(
            digest,
            Held {
                at,
                answer: answer.clone(),
            },
        );
        answer
    }
}

/// Keys of the store.
pub struct StoredKeys {
    /// Where they are.
    pub pool: Pool,
}

impl KeyCheck for StoredKeys {
    fn check<'a>(
        &'a self,
        bearer: &'a str,
        client: Option<IpAddr>,
    ) -> BoxFuture<'a, Result<KeyHolder, KeyError>> {
        Box::pin(async move {
            match tokio::time::timeout(ASK_TIMEOUT, authenticate(&self.pool, bearer, client)).await
            {
                Ok(Ok(actor)) => Ok(KeyHolder {
                    key_id: actor.key_id.clone(),
                    workspace: actor.workspace.as_ref().map(|w| w.id),
                    may_ingest: actor.scopes.holds(INGEST_SCOPE),
                }),
                Ok(Err(AuthError::Unauthenticated)) => Err(KeyError::Unauthenticated),
                Ok(Err(AuthError::AddressRefused)) => Err(KeyError::AddressRefused),
                Ok(Err(AuthError::WorkspaceArchived)) => Err(KeyError::WorkspaceArchived),
                Ok(Err(AuthError::Unavailable(error))) => {
                    tracing::warn!(%error, "an API key could not be looked up");
                    Err(KeyError::Unavailable)
                }
                Err(_) => {
                    tracing::warn!("an API key could not be looked up in time");
                    Err(KeyError::Unavailable)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Scripted {
        asked: AtomicUsize,
        answers: Mutex<Vec<Result<KeyHolder, KeyError>>>,
    }

    impl KeyCheck for Scripted {
        fn check<'a>(
            &'a self,
            _: &'a str,
            _: Option<IpAddr>,
        ) -> BoxFuture<'a, Result<KeyHolder, KeyError>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let answer = self.answers.lock().expect("lock").remove(0);
            Box::pin(async move { answer })
        }
    }

    #[actix_web::test]
    async fn a_key_is_remembered_for_a_second_and_held_while_the_store_is_away() {
        let holder = KeyHolder {
            key_id: "rk_1".into(),
            workspace: Some(1),
            may_ingest: true,
        };
        let scripted = Arc::new(Scripted {
            asked: AtomicUsize::new(0),
            answers: Mutex::new(vec![
                Ok(holder.clone()),
                Err(KeyError::Unavailable),
                Err(KeyError::Unauthenticated),
            ]),
        });
        let keys = HeldKeys::new(scripted.clone(), Duration::from_secs(600));
        let age = || {
            for held in keys.held.lock().expect("lock").values_mut() {
                held.at = Instant::now() - Duration::from_secs(2);
            }
        };
        let ask = || keys.resolve("x", None);
        for _ in 0..3 {
            assert_eq!(ask().await.expect("good").key_id, "rk_1");
        }
        assert_eq!(scripted.asked.load(Ordering::SeqCst), 1);
        age();
        assert_eq!(
            ask().await.expect("held").key_id,
            "rk_1",
            "the store is away"
        );
        assert_eq!(
            ask().await.map(|_| ()),
            Err(KeyError::Unauthenticated),
            "revoked"
        );
        assert_eq!(
            ask().await.map(|_| ()),
            Err(KeyError::Unauthenticated),
            "remembered"
        );
        assert_eq!(scripted.asked.load(Ordering::SeqCst), 3);
    }
}
