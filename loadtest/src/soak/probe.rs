//! From the door to the ledger: requests of the load that are followed until another connection can see their rows.
//!
//! One connection looks every few milliseconds for the rows of all that are under way. What it sees is committed, and as late
//! as its look; a latency is from the moment the request was due to be sent to the end of the look that found its row.

use super::load::{Kind, Probe};
use super::record::Latency;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(3);
/// Not seen for so long: lost.
const LOST: Duration = Duration::from_secs(120);

/// The watch over rows; ended when dropped.
pub(super) struct Probes {
    task: JoinHandle<anyhow::Result<()>>,
    lost: Arc<AtomicU64>,
    open: Arc<AtomicU64>,
}

impl Probes {
    pub async fn start(
        url: &str,
        mut asked: mpsc::UnboundedReceiver<Probe>,
        ledger: Latency,
    ) -> anyhow::Result<Probes> {
        let client = millrace_tests::postgres::connect(url).await;
        let visits = client
            .prepare("SELECT click_key FROM visits WHERE click_key = ANY($1) AND accepted_at > now() - interval '1 day'")
            .await?;
        let conversions = client
            .prepare("SELECT click_key FROM conversions WHERE click_key = ANY($1) AND accepted_at > now() - interval '1 day'")
            .await?;
        let (lost, open) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (gone, under_way) = (Arc::clone(&lost), Arc::clone(&open));
        let task = tokio::spawn(async move {
            let mut waiting: HashMap<(bool, Uuid), Instant> = HashMap::new();
            let mut every = tokio::time::interval(EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                while let Ok(probe) = asked.try_recv() {
                    waiting.insert((probe.kind == Kind::Visit, probe.click), probe.due);
                }
                for (visit, sql) in [(true, &visits), (false, &conversions)] {
                    let keys: Vec<Uuid> = waiting
                        .keys()
                        .filter(|(v, _)| *v == visit)
                        .map(|(_, key)| *key)
                        .collect();
                    if keys.is_empty() {
                        continue;
                    }
                    let rows = client.query(sql, &[&keys]).await?;
                    let seen = Instant::now();
                    for row in rows {
                        if let Some(due) = waiting.remove(&(visit, row.get(0))) {
                            let micros = seen.saturating_duration_since(due).as_micros();
                            ledger.record(i64::try_from(micros).unwrap_or(i64::MAX));
                        }
                    }
                }
                waiting.retain(|_, due| {
                    let late = due.elapsed() > LOST;
                    gone.fetch_add(u64::from(late), Ordering::Relaxed);
                    !late
                });
                under_way.store(waiting.len() as u64, Ordering::Relaxed);
            }
        });
        Ok(Probes { task, lost, open })
    }

    /// Requests that were accepted and never seen in the ledger.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Requests whose rows are still looked for.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether it has lost its connection.
    pub fn ended(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.task.abort();
    }
}
