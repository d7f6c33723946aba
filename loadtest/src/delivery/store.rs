//! A durable PostgreSQL with an outbox in it: filled by the product's own COPYs, held until the clock runs, watched until
//! nothing is due.

use crate::stack::{POSTGRES_SETTINGS, database_on};
use anyhow::{Context, ensure};
use millrace::delivery::outbox::{self, Message, id_of};
use millrace::postgres::pool::Database;
use millrace::runtime::clock::{Clock, SystemClock};
use millrace::runtime::connector::connector;
use millrace::runtime::session::{Connect, Session};
use millrace::settings;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::{DedicatedServer, TestDatabase};
use millrace_topics::pglog;
use std::time::{Duration, Instant};

/// Messages of one transaction of the filler.
const FILL: u32 = 5_000;
/// Without progress for so long, a round is given up.
const STUCK: Duration = Duration::from_secs(120);

/// A server of this measurement's own.
pub struct Store {
    server: DedicatedServer,
}

impl Store {
    /// Starts it, durable.
    ///
    /// # Errors
    /// There is none to start.
    pub async fn start() -> anyhow::Result<Store> {
        let server =
            tokio::task::spawn_blocking(|| DedicatedServer::start_durable_with(&POSTGRES_SETTINGS));
        Ok(Store {
            server: server.await?,
        })
    }

    /// The postmaster.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid().unwrap_or(0)
    }

    /// A migrated database with an empty outbox and one workspace.
    ///
    /// # Errors
    /// The store's.
    pub async fn fresh(&self) -> anyhow::Result<Outbox> {
        // With topics: `run` does not start without.
        let (database, topics) = database_on(&self.server, 1).await?;
        let session = session(database.url()).await?;
        for topic in &topics {
            pglog::create_topic(session.client(), topic).await?;
        }
        let workspace = millrace_tests::outbox::workspace(session.client(), "bench").await?;
        // What earlier rounds left to be written is not this one's.
        session.batch("CHECKPOINT").await?;
        Ok(Outbox {
            database,
            session,
            workspace,
        })
    }
}

/// Connections as the product's actors have them.
///
/// # Errors
/// The URL is none.
pub fn connect(url: &str, role: &str) -> anyhow::Result<Connect> {
    let settings = settings::Database {
        url: Some(url.to_owned()),
        ..settings::Database::default()
    };
    let database = Database::new(&settings, role)?;
    Ok(connector(&database, Duration::from_secs(2)))
}

async fn session(url: &str) -> anyhow::Result<Session> {
    let client = connect(url, "loadtest")?().await;
    Ok(Session::new(client.map_err(anyhow::Error::msg)?))
}

/// An outbox.
pub struct Outbox {
    database: TestDatabase,
    /// For filling and watching.
    pub session: Session,
    /// Whose it is.
    pub workspace: i32,
}

impl Outbox {
    /// The database.
    #[must_use]
    pub fn url(&self) -> &str {
        self.database.url()
    }

    /// Destinations of a channel, by number.
    ///
    /// # Errors
    /// The store's.
    pub async fn destinations(&self, channel: &str, n: usize) -> anyhow::Result<Vec<i32>> {
        let mut numbers = Vec::new();
        for i in 0..n {
            let name = format!("{channel}_{i}");
            let client = self.session.client();
            numbers.push(
                millrace_tests::outbox::destination(client, self.workspace, channel, &name).await?,
            );
        }
        Ok(numbers)
    }

    /// Puts messages `range` into the outbox, due at once, as the transaction of a batch would: message `n` is for destination
    /// `n` modulo their number.
    ///
    /// # Errors
    /// There is no destination, or the store's.
    pub async fn fill(
        &self,
        channel: &'static str,
        destinations: &[i32],
        range: std::ops::Range<u32>,
        payload: impl Fn(u32) -> String,
    ) -> anyhow::Result<()> {
        self.fill_due(channel, destinations, range, payload, |_| None)
            .await
    }

    /// The same, with message `n` due at `due(n)`; at once where that says nothing.
    ///
    /// # Errors
    /// As [`Outbox::fill`].
    pub async fn fill_due(
        &self,
        channel: &'static str,
        destinations: &[i32],
        range: std::ops::Range<u32>,
        payload: impl Fn(u32) -> String,
        due: impl Fn(u32) -> Option<Micros>,
    ) -> anyhow::Result<()> {
        ensure!(!destinations.is_empty(), "no destination to fill");
        for from in range.clone().step_by(FILL as usize) {
            let wall = SystemClock.wall();
            let to = range.end.min(from + FILL);
            let to_whom = (0..)
                .map(|i| i % destinations.len())
                .skip(from as usize % destinations.len());
            let messages: Vec<Message> = (from..to)
                .zip(to_whom)
                .filter_map(|(n, i)| Some((n, *destinations.get(i)?)))
                .map(|(n, destination)| {
                    let cause = RecordId {
                        topic_no: 1,
                        partition: 0,
                        offset: i64::from(n),
                    };
                    Message {
                        id: id_of(wall, cause, channel, destination, "bench"),
                        workspace: self.workspace,
                        channel,
                        destination,
                        subject_key: None,
                        scope_key: None,
                        dedupe_key: None,
                        payload: payload(n),
                        cause,
                        due_at: due(n).unwrap_or(wall),
                        refused: None,
                    }
                })
                .collect();
            self.session.batch("BEGIN").await?;
            outbox::write(&self.session, &messages, wall).await?;
            self.session.batch("COMMIT").await?;
        }
        Ok(())
    }

    /// Holds everything, as `up --after-restore` does.
    ///
    /// # Errors
    /// The store's.
    pub async fn hold(&self) -> anyhow::Result<()> {
        self.session
            .batch("INSERT INTO paused_channels (channel, reason, paused_by) VALUES ('*', 'filling', 'loadtest')")
            .await?;
        Ok(())
    }

    /// Lets everything go.
    ///
    /// # Errors
    /// The store's.
    pub async fn release(&self) -> anyhow::Result<()> {
        self.session.batch("DELETE FROM paused_channels").await?;
        Ok(())
    }

    /// Waits until somebody else is connected: the contender is up.
    ///
    /// # Errors
    /// Nobody comes, or `check` fails.
    pub async fn visited(
        &self,
        mut check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            check()?;
            let others = self
                .session
                .query(
                    "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
                    &[],
                )
                .await?;
            if others.first().is_some_and(|r| r.get::<_, i64>(0) > 0) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "nobody connects");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until nothing of these destinations is due or under lease.
    ///
    /// # Errors
    /// It takes too long, or `check` fails.
    pub async fn drained(
        &self,
        destinations: &[i32],
        mut check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + STUCK;
        loop {
            let left = self
                .session
                .query(
                    "SELECT count(*) FROM unnest($1::int4[]) AS n(no)
                     WHERE EXISTS (SELECT FROM outbox_due d WHERE d.destination_no = n.no)",
                    &[&destinations],
                )
                .await?;
            if left.first().is_some_and(|r| r.get::<_, i64>(0) == 0) {
                return Ok(());
            }
            check()?;
            ensure!(
                Instant::now() < until,
                "the outbox is not done after {STUCK:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Everything must have been delivered once and written down once.
    ///
    /// # Errors
    /// It was not.
    pub async fn verify(&self, destinations: &[i32], messages: u32) -> anyhow::Result<()> {
        let rows = self
            .session
            .query(
                "SELECT (SELECT count(*) FROM outbox WHERE destination_no = ANY($1) AND status = 'sent' AND attempts = 1),
                        (SELECT count(*) FROM send_log WHERE destination_no = ANY($1) AND result = 'delivered'),
                        (SELECT count(*) FROM outbox_due WHERE destination_no = ANY($1))",
                &[&destinations],
            )
            .await?;
        let row = rows.first().context("one row")?;
        let seen: [i64; 3] = std::array::from_fn(|i| row.get(i));
        let wanted = [i64::from(messages), i64::from(messages), 0];
        ensure!(
            seen == wanted,
            "sent, logged, left: {seen:?}, wanted {wanted:?}"
        );
        Ok(())
    }
}

/// The present, in seconds since 1970.
#[must_use]
pub fn now_secs() -> i64 {
    SystemClock.wall().0.div_euclid(1_000_000)
}
