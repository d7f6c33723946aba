//! Looks at positions and owners every few milliseconds.

use crate::contender::Contender;
use anyhow::ensure;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(2);

/// A commit that moved a partition's positions: its time, in µs since 1970, by PostgreSQL's clock (this machine's).
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub at: i64,
}

#[derive(Default)]
struct Book {
    commits: BTreeMap<i32, Vec<Seen>>,
    owners: BTreeMap<i32, (String, i64)>,
    last_claim: i64,
}

/// A connection that does nothing else.
pub(super) struct Watcher {
    book: Arc<Mutex<Book>>,
    task: JoinHandle<anyhow::Result<()>>,
}

/// This machine's clock, in µs since 1970.
pub(super) fn now_micros() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

/// Positions with the times of their last commits, and who owns the partition.
const SQL: &str =
    "SELECT o.partition, o.owner, o.epoch, (extract(epoch FROM o.claimed_at) * 1e6)::int8,
            (extract(epoch FROM max(pg_xact_commit_timestamp(p.xmin)) FILTER (WHERE p.consumed > 0)) * 1e6)::int8
     FROM ownership o LEFT JOIN positions p USING (group_name, partition)
     WHERE o.group_name = $1 AND o.owner <> '' GROUP BY 1, 2, 3, 4";

impl Watcher {
    pub async fn start(url: &str) -> anyhow::Result<Watcher> {
        let client = millrace_tests::postgres::connect(url).await;
        let sql = client.prepare(SQL).await?;
        let book = Arc::new(Mutex::new(Book::default()));
        let kept = Arc::clone(&book);
        let task = tokio::spawn(async move {
            let group = Contender::Product.group();
            let mut every = tokio::time::interval(EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                let rows = client.query(&sql, &[&group]).await?;
                let mut book = open(&kept);
                for row in &rows {
                    let partition: i32 = row.get(0);
                    book.owners.insert(partition, (row.get(1), row.get(2)));
                    book.last_claim = book
                        .last_claim
                        .max(row.get::<_, Option<i64>>(3).unwrap_or(0));
                    let Some(at) = row.get::<_, Option<i64>>(4) else {
                        continue;
                    };
                    let commits = book.commits.entry(partition).or_default();
                    if commits.last().is_none_or(|last| last.at < at) {
                        commits.push(Seen { at });
                    }
                }
            }
        });
        Ok(Watcher { book, task })
    }

    /// Who owns what.
    pub fn owners(&self) -> BTreeMap<i32, (String, i64)> {
        open(&self.book).owners.clone()
    }

    /// When a partition was last claimed.
    pub fn last_claim(&self) -> i64 {
        open(&self.book).last_claim
    }

    /// Whether every partition has committed after that.
    pub fn all_moved_after(&self, at: i64, partitions: i32) -> bool {
        let book = open(&self.book);
        let moved = book
            .commits
            .values()
            .filter(|c| c.last().is_some_and(|last| last.at > at));
        moved.count() == usize::try_from(partitions).unwrap_or(0)
    }

    /// Every commit that was seen.
    pub fn commits(&self) -> BTreeMap<i32, Vec<Seen>> {
        open(&self.book).commits.clone()
    }

    /// Fails if it has stopped looking.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.task.is_finished(), "the watcher lost its connection");
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn open(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}
