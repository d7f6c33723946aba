//! The configuration that doors hold: one immutable object, swapped whole, at most 1 s old while PostgreSQL answers; when it
//! is away, what is held serves on for ten minutes, then doors answer 503 (DESIGN § Security, spec: routing § 1).
//!
//! API keys are not in it (see [`super::keys`]).

use super::compile::{self, CampaignRow, NetworkRow, OfferRow, Snapshot, Workspace};
use super::feed::admission::{FeedToken, Shard};
use crate::postgres::Pool;
use crate::postgres::types::Tz;
use arc_swap::ArcSwapOption;
use hashbrown::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_postgres::IsolationLevel;

/// How often the epoch is looked at.
const POLL: Duration = Duration::from_millis(300);

/// How long one look may take; with [`POLL`] it keeps a slow answer within the second where possible.
const POLL_TIMEOUT: Duration = Duration::from_millis(650);

/// How long reading everything may take.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Why configuration could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// No connection.
    #[error("no connection to PostgreSQL: {0}")]
    Pool(#[from] deadpool_postgres::PoolError),
    /// A query failed.
    #[error("PostgreSQL: {0}")]
    Store(#[from] tokio_postgres::Error),
    /// It did not answer in time.
    #[error("PostgreSQL did not answer in time")]
    Timeout,
}

/// Holds the newest snapshot.
#[derive(Debug)]
pub struct SnapshotHandle {
    held: ArcSwapOption<Snapshot>,
    /// When the held one was put there, as `verified` counts. Locked by whoever compares a snapshot with it and puts it in its place.
    put: Mutex<u64>,
    /// When the held one was last known to be the newest, in milliseconds since `origin`, plus 1; 0: never.
    verified: AtomicU64,
    origin: Instant,
    hold: Duration,
}

impl SnapshotHandle {
    /// A handle that holds nothing yet: doors answer 503. `hold`: how long configuration serves after it was last known to
    /// be the newest.
    #[must_use]
    pub fn empty(hold: Duration) -> Arc<SnapshotHandle> {
        Arc::new(SnapshotHandle {
            held: ArcSwapOption::empty(),
            put: Mutex::new(0),
            verified: AtomicU64::new(0),
            origin: Instant::now(),
            hold,
        })
    }

    /// The configuration to serve by; None where none is held that may still be used.
    #[must_use]
    pub fn current(&self) -> Option<arc_swap::Guard<Option<Arc<Snapshot>>>> {
        if self.age()? > self.hold {
            return None;
        }
        let held = self.held.load();
        held.is_some().then_some(held)
    }

    /// How long ago the held configuration was known to be the newest; None where none is held.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let verified = self.verified.load(Ordering::Acquire).checked_sub(1)?;
        Some(
            self.origin
                .elapsed()
                .saturating_sub(Duration::from_millis(verified)),
        )
    }

    /// Takes a snapshot as the newest one as of `at`, before its reading began. Of two that were read at the same time the older one
    /// may come last: it is dropped. An epoch that is smaller and whose reading began when the held one was there already is taken:
    /// the database was restored.
    pub fn put(&self, snapshot: Snapshot, at: Instant) {
        let mut put = self.put.lock().unwrap_or_else(PoisonError::into_inner);
        let later = self.moment(at) > *put;
        let newer = |held: &Arc<Snapshot>| snapshot.epoch >= held.epoch;
        if later || self.held.load().as_ref().is_none_or(newer) {
            self.held.store(Some(Arc::new(snapshot)));
            self.verify(at);
            *put = self.moment(Instant::now());
        }
    }

    /// The held one was the newest as of `at`; of two who say so, the later one counts.
    fn verify(&self, at: Instant) {
        self.verified.fetch_max(self.moment(at), Ordering::AcqRel);
    }

    /// As `verified` counts.
    fn moment(&self, at: Instant) -> u64 {
        let millis = at.saturating_duration_since(self.origin).as_millis();
        u64::try_from(millis)
            .unwrap_or(u64::MAX - 1)
            .saturating_add(1)
    }

    /// Looks at the epoch, and reads everything anew if it moved. True: it was read anew.
    ///
    /// # Errors
    /// PostgreSQL is away or slow; what is held stays.
    pub async fn refresh(&self, pool: &Pool) -> Result<bool, SnapshotError> {
        let at = Instant::now();
        let mut client = match tokio::time::timeout(POLL_TIMEOUT, pool.get()).await {
            Ok(client) => client?,
            Err(_) => return Err(SnapshotError::Timeout),
        };
        let look = async {
            let statement = client
                .prepare_cached("SELECT epoch FROM configuration_epoch")
                .await?;
            client.query_one(&statement, &[]).await
        };
        let epoch: Result<i64, SnapshotError> = match tokio::time::timeout(POLL_TIMEOUT, look).await
        {
            Ok(row) => row.map(|r| r.get(0)).map_err(SnapshotError::from),
            Err(_) => Err(SnapshotError::Timeout),
        };
        let held = self.held.load().as_ref().map(|s| s.epoch);
        let loaded = match epoch {
            Ok(epoch) if Some(epoch) == held => {
                self.verify(at);
                return Ok(false);
            }
            Ok(_) => match tokio::time::timeout(LOAD_TIMEOUT, load(&mut client)).await {
                Ok(loaded) => loaded.map_err(SnapshotError::from),
                Err(_) => Err(SnapshotError::Timeout),
            },
            Err(error) => Err(error),
        };
        match loaded {
            Ok(snapshot) => {
                tracing::debug!(epoch = snapshot.epoch, "configuration read");
                self.put(snapshot, at);
                Ok(true)
            }
            Err(error) => {
                // A connection that did not answer is not given back: its next user would wait as well.
                drop(deadpool_postgres::Object::take(client));
                Err(error)
            }
        }
    }

    /// Keeps the handle fresh until the last reference to it is gone. Needs a tokio runtime.
    pub fn keep_fresh(self: &Arc<Self>, pool: Pool) -> tokio::task::JoinHandle<()> {
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(POLL);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut away = false;
            loop {
                tick.tick().await;
                let Some(handle) = weak.upgrade() else { return };
                let result = handle.refresh(&pool).await;
                if let Some(age) = handle.age() {
                    metrics::gauge!("door_configuration_age_seconds").set(age.as_secs_f64());
                }
                match result {
                    Ok(_) if away => {
                        away = false;
                        tracing::info!("configuration is fresh again");
                    }
                    Ok(_) => {}
                    Err(error) if !away => {
                        away = true;
                        tracing::warn!(%error, "configuration cannot be read; the doors use what they hold");
                    }
                    Err(_) => {}
                }
            }
        })
    }
}

/// Reads everything in one read-only transaction, so that epoch and tables belong together.
async fn load(client: &mut deadpool_postgres::Object) -> Result<Snapshot, tokio_postgres::Error> {
    let tx = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await?;
    let epoch: i64 = tx
        .query_one("SELECT epoch FROM configuration_epoch", &[])
        .await?
        .get(0);
    let mut out = Snapshot {
        epoch,
        ..Snapshot::default()
    };
    for row in tx
        .query(
            "SELECT workspace_id, slug, store_ip FROM workspaces WHERE status = 'active'",
            &[],
        )
        .await?
    {
        let workspace = Workspace {
            slug: row.get(1),
            store_ip: row.get(2),
        };
        out.workspaces.insert(row.get(0), workspace);
    }
    for row in tx
        .query(
            "SELECT network_id, workspace_id, secret_digest, status_words::text, comma_decimals, currency_signs, reversals
             FROM networks WHERE status = 'active'",
            &[],
        )
        .await?
    {
        let workspace: i32 = row.get(1);
        if !out.workspaces.contains_key(&workspace) {
            continue;
        }
        let network = Arc::new(compile::network(NetworkRow {
            id: row.get(0),
            workspace,
            status_words: row.get(3),
            comma_decimals: row.get(4),
            currency_signs: row.get(5),
            reversals: row.get(6),
        }));
        if let Ok(digest) = <[u8; 32]>::try_from(row.get::<_, &[u8]>(2)) {
            out.networks_by_digest.insert(digest, Arc::clone(&network));
        }
        out.networks.insert(network.id.as_str().into(), network);
    }
    let mut offers: HashMap<String, OfferRow> = HashMap::new();
    for row in tx
        .query(
            "SELECT offer_id, workspace_id, url_template, network_id, payout, currency FROM offers WHERE status = 'active'",
            &[],
        )
        .await?
    {
        let offer = OfferRow {
            workspace: row.get(1),
            url_template: row.get(2),
            network: row.get(3),
            payout: row.get(4),
            currency: row.get(5),
        };
        offers.insert(row.get(0), offer);
    }
    for row in tx
        .query(
            "SELECT campaign_id, workspace_id, name, ref, routing::text, status = 'active' FROM campaigns",
            &[],
        )
        .await?
    {
        let workspace: i32 = row.get(1);
        let Some(store_ip) = out.workspaces.get(&workspace).map(|w| w.store_ip) else {
            continue;
        };
        let row = CampaignRow {
            id: row.get(0),
            workspace,
            name: row.get(2),
            reference: row.get(3),
            routing: row.get(4),
            active: row.get(5),
        };
        let campaign = compile::campaign(row, store_ip, &offers).unwrap_or_else(|(campaign, error)| {
            tracing::warn!(campaign = %campaign.id, %error, "routing cannot be read; the campaign answers as unknown");
            campaign
        });
        out.campaigns.insert(campaign.id.clone(), Arc::new(campaign));
    }
    shards(&tx, &mut out).await?;
    tx.commit().await?;
    Ok(out)
}

/// Reads shards and the live tokens of their feeds.
async fn shards(
    tx: &deadpool_postgres::Transaction<'_>,
    out: &mut Snapshot,
) -> Result<(), tokio_postgres::Error> {
    for row in tx
        .query(
            "SELECT workspace_id, shard_id, module, protocol, status = 'active' FROM shards",
            &[],
        )
        .await?
    {
        let (workspace, id): (i32, &str) = (row.get(0), row.get(1));
        let shard = Shard {
            workspace,
            id: id.into(),
            module: row.get::<_, &str>(2).into(),
            protocol: u32::try_from(row.get::<_, i32>(3)).unwrap_or(0),
            active: row.get(4),
        };
        out.shards.insert((workspace, id.into()), shard);
    }
    for row in tx
        .query(
            "SELECT token_id, workspace_id, shard_id, secret_digest, previous_digest, previous_until
             FROM shard_tokens WHERE revoked_at IS NULL",
            &[],
        )
        .await?
    {
        let Ok(digest) = <[u8; 32]>::try_from(row.get::<_, &[u8]>(3)) else {
            continue;
        };
        let previous = row
            .get::<_, Option<&[u8]>>(4)
            .and_then(|d| <[u8; 32]>::try_from(d).ok());
        let until = row.get::<_, Option<Tz>>(5).map(|t| t.0);
        let token = FeedToken {
            shard: (row.get(1), row.get::<_, &str>(2).into()),
            digest,
            previous: previous.zip(until),
        };
        out.feed_tokens.insert(row.get::<_, &str>(0).into(), token);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_serves_until_it_is_too_old() {
        let handle = SnapshotHandle::empty(Duration::from_secs(600));
        assert!(handle.current().is_none());
        handle.put(Snapshot::default(), Instant::now());
        assert!(handle.current().is_some());
        let past = SnapshotHandle {
            held: ArcSwapOption::from_pointee(Snapshot::default()),
            put: Mutex::new(0),
            verified: AtomicU64::new(1),
            origin: Instant::now() - Duration::from_secs(601),
            hold: Duration::from_secs(600),
        };
        assert!(past.current().is_none());
        past.verify(Instant::now());
        assert!(past.current().is_some());
    }

    #[test]
    fn of_two_refreshers_the_slower_one_takes_nothing_back() {
        let handle = SnapshotHandle::empty(Duration::from_secs(600));
        let of = |epoch| Snapshot {
            epoch,
            ..Snapshot::default()
        };
        let held = || handle.held.load().as_ref().map(|s| s.epoch);
        let first = Instant::now();
        let second = first + Duration::from_millis(200);
        handle.put(of(6), second);
        // It began before the other one and saw what was before the change.
        handle.put(of(5), first);
        assert_eq!(held(), Some(6));
        assert_eq!(
            handle.verified.load(Ordering::Acquire),
            handle.moment(second)
        );
        // So did this one, though it began after the other: that was not there yet.
        let between = Instant::now().min(second);
        handle.put(of(5), between);
        assert_eq!(held(), Some(6));
        // It began before and saw more.
        handle.put(of(7), first);
        assert_eq!(held(), Some(7));
        assert_eq!(
            handle.verified.load(Ordering::Acquire),
            handle.moment(second)
        );
        // A backup was restored: the epoch is smaller, and it is what there is.
        handle.put(of(3), second + Duration::from_millis(300));
        assert_eq!(held(), Some(3));
    }
}
