//! What fault runs share, in the test binary and in the runner: a log that notices a dead member soon, plans of records, seeded
//! moments, who owns what, a way to the database that loses replies.

use crate::deployment::{Deployment, PATIENCE};
use crate::generator::{Plan, Rng};
use crate::process::{Launch, Process, eventually};
use crate::proxy::{Protocol, Proxy};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_postgres::Client;

/// How long a member of a group may be silent, in these runs: a member that was killed holds its partitions that long.
pub const SESSION: Duration = Duration::from_millis(1_500);

/// Lines of a broker's properties for sessions of that length, under either protocol.
#[must_use]
pub fn sessions(session: Duration) -> String {
    format!(
        "\ngroup.consumer.min.session.timeout.ms={0}\ngroup.consumer.session.timeout.ms={0}\n\
         group.consumer.min.heartbeat.interval.ms=300\ngroup.consumer.heartbeat.interval.ms=400\n\
         group.min.session.timeout.ms={0}\n",
        session.as_millis()
    )
}

/// Microseconds since 1970.
#[must_use]
pub fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A plan of so many records that were accepted within the last ten minutes.
#[must_use]
pub fn plan(seed: u64, records: usize, partitions: i32) -> Plan {
    Plan {
        seed,
        records,
        partitions,
        start: now() - 600_000_000,
        step: 2_000,
        poison: true,
        poison_every: 400,
    }
}

/// A moment within a run: so many records further on, of what is left for this many lives.
pub fn next_moment(rng: &mut Rng, at: i64, of: usize, lives: i64) -> i64 {
    let left = (of as i64 - at).max(0) / lives.max(1);
    let on = rng.below(left.max(1).cast_unsigned() * 2).cast_signed();
    (at + on).min(of as i64 - 1).max(at)
}

/// Waits until a process killed itself at a failpoint.
///
/// # Errors
/// It did not in time, or ended otherwise.
pub async fn killed_itself(process: &mut Process) -> anyhow::Result<()> {
    process.wait(PATIENCE).await?;
    anyhow::ensure!(
        process.killed_by() == Some(libc::SIGKILL),
        "{} ended otherwise:\n{}",
        process.name(),
        process.last_words(30)
    );
    Ok(())
}

/// Owner and epoch of each partition of a group.
pub type Owners = BTreeMap<i32, (String, i64)>;

/// Who owns what of group `attribution` now.
///
/// # Errors
/// The store's.
pub async fn owners(deployment: &Deployment) -> anyhow::Result<Owners> {
    owners_of(deployment, "attribution").await
}

async fn owners_of(deployment: &Deployment, group: &str) -> anyhow::Result<Owners> {
    let sql = "SELECT partition, owner, epoch FROM ownership WHERE group_name = $1";
    let rows = deployment.store().await.query(sql, &[&group]).await?;
    Ok(rows
        .iter()
        .map(|r| (r.get(0), (r.get(1), r.get(2))))
        .collect())
}

/// Waits until so many processes own partitions of group `attribution`.
///
/// # Errors
/// They do not in time.
pub async fn shared_by(deployment: &Deployment, many: usize) -> anyhow::Result<Owners> {
    group_shared_by(deployment, "attribution", many).await
}

/// Waits until so many processes own partitions of a group.
///
/// # Errors
/// They do not in time.
pub async fn group_shared_by(
    deployment: &Deployment,
    group: &str,
    many: usize,
) -> anyhow::Result<Owners> {
    let what = format!("{many} owners of group {group}");
    eventually(&what, PATIENCE, async || {
        let owners = owners_of(deployment, group).await?;
        let mut names: Vec<&String> = owners.values().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        Ok((names.len() == many).then_some(owners))
    })
    .await
}

/// Waits until no partition has an owner that it had before.
///
/// # Errors
/// Some still has after a minute.
pub async fn handed_over(deployment: &Deployment, before: &Owners) -> anyhow::Result<()> {
    eventually("other owners of all partitions", PATIENCE, async || {
        let now = owners(deployment).await?;
        let moved = |(partition, (owner, _)): (&i32, &(String, i64))| {
            now.get(partition).is_some_and(|(name, _)| name != owner)
        };
        Ok(before.iter().all(moved).then_some(()))
    })
    .await
}

/// A proxy before the deployment's database, and `launch` led through it. Only the transactions of batches lose their replies:
/// they alone move positions.
///
/// # Errors
/// No port is free.
pub fn through(deployment: &Deployment, launch: Launch) -> anyhow::Result<(Proxy, Launch)> {
    let address = deployment.database_address();
    let proxy = Proxy::start(address.parse()?, Protocol::Postgres)?;
    let url = deployment
        .database
        .url()
        .replace(address, &proxy.address().to_string());
    proxy.eat_only_after("UPDATE positions");
    Ok((proxy, launch.env("DATABASE_URL", url)))
}

/// Lets an owner that stands still at a failpoint go on once its successor has done `done` (a query for a bool), and waits until it
/// has had its say. Its successor, still at work.
///
/// # Errors
/// One of them did not do its part in time.
pub async fn outlive(
    deployment: &Deployment,
    zombie: &mut Process,
    successor: &Launch,
    done: &str,
) -> anyhow::Result<Process> {
    eventually("standing still", PATIENCE, async || {
        Ok(zombie.is_stopped().then_some(()))
    })
    .await?;
    let store = deployment.store().await;
    let before = owners(deployment).await?;
    let session = last_session(&store).await?;
    let second = successor.spawn()?;
    eventually("the successor's work", PATIENCE, async || {
        let row = store.query_one(done, &[]).await?;
        Ok(row.get::<_, bool>(0).then_some(()))
    })
    .await?;
    let after = owners(deployment).await?;
    anyhow::ensure!(before != after, "nobody else has claimed");
    let resumed = store.query_one("SELECT clock_timestamp()", &[]).await?;
    let resumed: SystemTime = resumed.get(0);
    zombie.resume();
    // It has had its say when its session has ended, or has done something since and nothing is open in it.
    eventually("the last word of who stood still", PATIENCE, async || {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE pid = $1 AND (state <> 'idle' OR state_change < $2)";
        let row = store.query_one(sql, &[&session, &resumed]).await?;
        Ok((row.get::<_, i64>(0) == 0).then_some(()))
    })
    .await?;
    Ok(second)
}

/// The session of the actor that stands still: of its group's, the last that said something, the looks at pauses and at partitions
/// taken by hand apart.
async fn last_session(store: &Client) -> anyhow::Result<i32> {
    let sql = "SELECT pid FROM pg_stat_activity
               WHERE datname = current_database() AND application_name LIKE 'millrace/attribution/%'
                 AND query NOT LIKE '%paused_groups%' AND query NOT LIKE '%owner = %'
               ORDER BY state_change DESC LIMIT 1";
    Ok(store.query_one(sql, &[]).await?.get(0))
}
