//! Real PostgreSQL for tests: one server a test binary, one migrated database a test, and servers of one's own for tests that
//! stop or kill them.
//!
//! Every server is a child of the test process: it listens on a free loopback port, lives in a temporary directory, dies with
//! the process (PR_SET_PDEATHSIG) and is removed at its exit. What a killed run left behind is removed by the next one.

mod server;

pub use server::{DedicatedServer, SmallDisk, StopMode, binaries};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

/// Name of the database that holds all migrations and nothing else.
const TEMPLATE: &str = "millrace_template";

/// The server that all tests of this binary share: fsync off, 200 connections.
fn shared() -> &'static DedicatedServer {
    static SERVER: OnceLock<DedicatedServer> = OnceLock::new();
    SERVER.get_or_init(DedicatedServer::start)
}

/// The shared server with its template made.
async fn ready() -> &'static DedicatedServer {
    static READY: OnceCell<&'static DedicatedServer> = OnceCell::const_new();
    READY
        .get_or_init(|| async {
            let server = tokio::task::spawn_blocking(shared)
                .await
                .expect("the server starts");
            make_database(server, TEMPLATE, None).await;
            migrate(&server.url(TEMPLATE)).await;
            server
        })
        .await
}

async fn make_database(server: &DedicatedServer, name: &str, template: Option<&str>) {
    let admin = connect(&server.url("postgres")).await;
    let from = template.map_or(String::new(), |t| format!(" TEMPLATE {t}"));
    admin
        .batch_execute(&format!("CREATE DATABASE {name}{from}"))
        .await
        .expect("a new database");
}

/// Applies all migrations, as the product does, and makes the daily partitions around today.
///
/// # Panics
/// Nothing answers at `url`, or a migration fails.
pub async fn migrate(url: &str) {
    let settings = millrace::settings::Database {
        url: Some(url.to_owned()),
        ..Default::default()
    };
    let database = millrace::postgres::pool::Database::new(&settings, "tests").expect("a URL");
    millrace::postgres::migrate::migrate(&database)
        .await
        .expect("the migrations apply");
}

/// A connection, driven by a task of the current runtime.
///
/// # Panics
/// Nothing answers at `url`.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .unwrap_or_else(|e| panic!("{url}: {e}"));
    tokio::spawn(connection);
    client
}

/// A pool of at most `size` connections to `url`; none is opened yet.
///
/// # Panics
/// `url` is none.
#[must_use]
pub fn pool(url: &str, size: usize) -> Pool {
    let manager = Manager::from_config(
        url.parse().expect("a URL"),
        NoTls,
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
    Pool::builder(manager)
        .max_size(size)
        .build()
        .expect("a pool")
}

/// A database of one test, with all migrations applied; dropped with this value.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    url: String,
    admin_url: String,
    pool: Pool,
}

impl TestDatabase {
    /// Makes one on the shared server, which starts with the first.
    ///
    /// # Panics
    /// No PostgreSQL can be found or started.
    pub async fn create() -> TestDatabase {
        TestDatabase::on(ready().await, Some(TEMPLATE)).await
    }

    /// Makes one on a server of the caller's own. It is not dropped before the server is.
    ///
    /// # Panics
    /// The server does not answer.
    pub async fn create_on(server: &DedicatedServer) -> TestDatabase {
        let database = TestDatabase::on(server, None).await;
        migrate(&database.url).await;
        database
    }

    async fn on(server: &DedicatedServer, template: Option<&str>) -> TestDatabase {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        make_database(server, &name, template).await;
        let url = server.url(&name);
        TestDatabase {
            pool: pool(&url, 8),
            admin_url: server.url("postgres"),
            name,
            url,
        }
    }

    /// `postgres://…` for whoever connects by himself.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name on the server.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A pool of eight connections. Its connections belong to the runtime that opened them: a test with several runtimes
    /// takes a pool for each ([`pool`]).
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A connection of its own.
    ///
    /// # Panics
    /// The server is away.
    pub async fn client(&self) -> Client {
        connect(&self.url).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // Beside the test, on a thread of its own: nobody waits for it, and the server goes at the end anyway.
        let (url, name) = (self.admin_url.clone(), self.name.clone());
        std::thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            else {
                return;
            };
            runtime.block_on(async {
                let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await else {
                    return;
                };
                let driver = tokio::spawn(connection);
                let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                let _ = client.batch_execute(&sql).await;
                drop(client);
                let _ = driver.await;
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn databases_are_migrated_and_apart() {
        let (a, b) = tokio::join!(TestDatabase::create(), TestDatabase::create());
        let (a, b) = (a.client().await, b.client().await);
        a.batch_execute("INSERT INTO paused_groups (group_name, reason) VALUES ('g', 'test')")
            .await
            .unwrap();
        let count = "SELECT count(*) FROM paused_groups";
        assert_eq!(a.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 1);
        assert_eq!(b.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 0);
    }

    #[tokio::test]
    async fn a_server_stops_and_starts_again_with_its_data() {
        let mut server = tokio::task::spawn_blocking(DedicatedServer::start_durable)
            .await
            .unwrap();
        let database = TestDatabase::create_on(&server).await;
        for kill in [true, false] {
            let client = database.client().await;
            client
                .batch_execute("INSERT INTO position_changes (group_name, partition, topic_no, new_offset, reason) VALUES ('g', 0, 0, 0, 'test')")
                .await
                .unwrap();
            server = tokio::task::spawn_blocking(move || {
                let mut server = server;
                if kill {
                    server.kill();
                } else {
                    server.stop(StopMode::Fast);
                }
                assert!(!server.is_running());
                server.start_again();
                server
            })
            .await
            .unwrap();
        }
        let client = database.client().await;
        let rows = client
            .query_one("SELECT count(*) FROM position_changes", &[])
            .await
            .unwrap();
        assert_eq!(rows.get::<_, i64>(0), 2);
    }
}
