//! Where the demo plays: everything of `millrace up` in this process, on a database that is empty at the start.
//!
//! Without DATABASE_URL a PostgreSQL of the demo's own lives under `<database.data_dir>/demo`, and its database is made anew in
//! every run. With DATABASE_URL a database `millrace_demo` is made anew beside the named one, which is not touched.

use crate::api::{key_store, workspaces};
use crate::cli::log::Log;
use crate::cli::process::seeding;
use crate::cli::up::Up;
use crate::directory::seeds;
use crate::postgres::pool::Database;
use crate::postgres::server::Server;
use crate::runtime::clock::{Clock as _, SystemClock};
use crate::runtime::telemetry::Metrics;
use crate::settings::{Backend, Modules, Settings};
use anyhow::{Context, bail};
use std::net::{SocketAddr, TcpListener};

/// The demo's database on a server that is not its own.
const DATABASE: &str = "millrace_demo";

/// A running demo, before any traffic.
pub struct Stage {
    up: Up,
    server: Option<Server>,
    database: Database,
    /// The URL of its database.
    pub database_url: String,
    /// The doors' URL.
    pub doors: String,
    /// The admin API's URL.
    pub admin: String,
    /// An API key of the demo's workspace; shown, since the demo is one.
    pub key: String,
}

impl Stage {
    /// Starts everything, and makes a workspace and a key. `tell` is told what a person should know.
    ///
    /// # Errors
    /// No PostgreSQL, no permission to make a database, or what `up` fails of.
    pub async fn set(mut settings: Settings, tell: impl Fn(&str)) -> anyhow::Result<Stage> {
        settings.log.backend = Backend::Postgres;
        settings.log.prefix = String::new();
        // The game whose recorded session is played.
        settings.modules = Modules {
            enabled: vec![super::shard::MODULE.to_owned()],
            dir: None,
        };
        // The demo speaks for its visitors from this machine, and from there alone.
        settings.http.trusted_proxies = vec!["127.0.0.1/32".to_owned(), "::1/128".to_owned()];
        let one_listener = settings.http.admin == settings.http.doors;
        settings.http.doors = free(settings.http.doors, &tell)?;
        settings.http.admin = if one_listener {
            settings.http.doors
        } else {
            free(settings.http.admin, &tell)?
        };
        // A mail offers its unsubscription there.
        let public = format!("http://{}", settings.http.doors);
        settings.http.public_url.get_or_insert(public);
        let server = match settings.database.url {
            Some(_) => None,
            None => {
                settings.database.data_dir = settings.database.data_dir.join("demo");
                let server = Server::start(&settings.database.data_dir).await?;
                tell(&format!(
                    "PostgreSQL {} on {}",
                    server.version(),
                    server.data().display()
                ));
                settings.database.url = Some(server.url().to_owned());
                Some(server)
            }
        };
        match Stage::open(settings, server.is_some()).await {
            Ok(stage) => Ok(Stage { server, ..stage }),
            Err(error) => {
                if let Some(server) = server {
                    server.stop().await;
                }
                Err(error)
            }
        }
    }

    async fn open(mut settings: Settings, own: bool) -> anyhow::Result<Stage> {
        let url = settings.database.url.clone().unwrap_or_default();
        settings.database.url = Some(if own {
            // Its own server: the database that other commands find, made anew.
            settings.database.url = Some(with_database(&url, "postgres")?);
            anew(&settings, "millrace").await?;
            url
        } else {
            let beside = with_database(&url, DATABASE)?;
            if beside == url {
                bail!(
                    "DATABASE_URL names `{DATABASE}` itself, which the demo makes anew; name another one"
                );
            }
            anew(&settings, DATABASE).await?;
            beside
        });
        let database = Database::new(&settings.database, "demo")?;
        let up = Up::start(settings, Metrics::install()?).await?;
        match Stage::furnish(&up, &database).await {
            Ok((doors, admin, key)) => Ok(Stage {
                database_url: up.settings().database.url.clone().unwrap_or_default(),
                up,
                server: None,
                database,
                doors,
                admin,
                key,
            }),
            Err(error) => {
                up.stop().await;
                Err(error)
            }
        }
    }

    async fn furnish(up: &Up, database: &Database) -> anyhow::Result<(String, String, String)> {
        let doors = up.process().doors_url().context("no doors are open")?;
        let admin = up.process().admin_url().context("no admin API is open")?;
        let (mut client, _driver) = database.single().await?;
        let tx = client.transaction().await?;
        let workspace =
            workspaces::create(&tx, super::setup::WORKSPACE, "The demo", false, "cli").await?;
        // As the admin API does: the module's rules come with the workspace, all of them disabled.
        let modules = seeding::modules(up.settings())?;
        let now = SystemClock.wall();
        seeds::seed(&tx, &modules, Some(workspace.workspace_id), now).await?;
        let wanted = key_store::NewKey {
            workspace: Some(workspace.workspace_id),
            name: "demo".to_owned(),
            scopes: vec!["full".to_owned(), "ingest:write".to_owned()],
            created_by: "cli".to_owned(),
            ..key_store::NewKey::default()
        };
        let (_, key) = key_store::create(&tx, &wanted, None).await?;
        tx.commit().await?;
        Ok((doors, admin, key.reveal()))
    }

    /// A connection of its own to the demo's database.
    ///
    /// # Errors
    /// The database is away.
    pub async fn client(&self) -> anyhow::Result<tokio_postgres::Client> {
        Ok(self.database.single().await?.0)
    }

    /// The log that the demo's records go through.
    pub(in crate::cli) fn log(&self) -> Log {
        Log::Postgres(self.database.for_role("log"))
    }

    /// Resolves when something died that the demo cannot go on without, with the reason.
    pub async fn failed(&self) -> String {
        match &self.server {
            None => self.up.failed().await,
            Some(server) => tokio::select! {
                why = self.up.failed() => why,
                why = server.ended() => format!("PostgreSQL has ended: {why}"),
            },
        }
    }

    /// Stops everything in order, PostgreSQL last.
    pub async fn stop(self) {
        self.up.stop().await;
        if let Some(server) = self.server {
            server.stop().await;
        }
    }
}

/// Drops and makes a database; settings name another one of the same server.
async fn anew(settings: &Settings, name: &str) -> anyhow::Result<()> {
    let database = Database::new(&settings.database, "demo")?;
    let (client, _driver) = database.single().await?;
    // Without FORCE: another demo that runs on it is left alone.
    client
        .batch_execute(&format!("DROP DATABASE IF EXISTS {name}"))
        .await
        .with_context(|| {
            format!(
                "database `{name}` on {} cannot be dropped; does another demo use it?",
                database.address()
            )
        })?;
    client
        .batch_execute(&format!("CREATE DATABASE {name}"))
        .await
        .with_context(|| format!("database `{name}` cannot be made on {}", database.address()))
}

/// The same server, another database.
fn with_database(url: &str, name: &str) -> anyhow::Result<String> {
    let mut url = reqwest::Url::parse(url)
        .context("the demo needs DATABASE_URL in the form postgres://user@host/database")?;
    url.set_path(&format!("/{name}"));
    Ok(url.to_string())
}

/// The address, or one with a free port if it is taken.
fn free(wanted: SocketAddr, tell: &impl Fn(&str)) -> anyhow::Result<SocketAddr> {
    if TcpListener::bind(wanted).is_ok() {
        return Ok(wanted);
    }
    let listener = TcpListener::bind(SocketAddr::new(wanted.ip(), 0))
        .with_context(|| format!("nothing can listen on {}", wanted.ip()))?;
    let found = listener.local_addr().context("a free port")?;
    tell(&format!(
        "port {} is taken, the demo uses {}",
        wanted.port(),
        found.port()
    ));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_the_same_server() {
        for (url, expected) in [
            (
                "postgres://me@db:5433/app?sslmode=require",
                "postgres://me@db:5433/millrace_demo?sslmode=require",
            ),
            (
                "postgres://millrace@%2Ftmp%2Frun:5432/millrace",
                "postgres://millrace@%2Ftmp%2Frun:5432/millrace_demo",
            ),
        ] {
            assert_eq!(with_database(url, DATABASE).expect("a URL"), expected);
        }
        assert!(with_database("host=db dbname=app", DATABASE).is_err());
    }

    #[test]
    fn a_taken_port_is_replaced_and_named() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let told = std::cell::RefCell::new(String::new());
        let address = taken.local_addr().expect("an address");
        let other = free(address, &|text: &str| told.borrow_mut().push_str(text)).expect("another");
        assert_ne!(other, address);
        assert!(told.borrow().contains(&other.port().to_string()));
    }
}
