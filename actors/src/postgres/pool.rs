//! Connections to PostgreSQL: a pool for whoever asks now and then, single ones for actors. Every session has bounded
//! statements and transactions, so that a hung owner cannot hold its rows.

use super::tls::{self, Mode, TlsError};
use crate::settings;
use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long an open transaction may wait for its client before the server ends it.
pub const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(10);
/// How long sent data may stay unacknowledged by the server's machine before the connection counts as dead.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server that is connected may take to let us in.
const GREETING: Duration = Duration::from_secs(5);

/// Why no connection can be had.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// No address.
    #[error(
        "no database is configured; set DATABASE_URL (postgres://user@host/name) or `database.url`, \
         or use `millrace up`, which starts one"
    )]
    NoUrl,
    /// The address cannot be read. The text is not repeated: it may hold a password.
    #[error("`database.url` cannot be read: {0}")]
    Url(String),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server is away or refuses.
    #[error("the database at {at}: {source}")]
    Connect {
        /// Host, port and database.
        at: String,
        /// What tokio-postgres says.
        source: tokio_postgres::Error,
    },
    /// The server takes connections and says nothing.
    #[error("the database at {at} takes connections and does not answer ({seconds} s)")]
    Silent {
        /// Host, port and database.
        at: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The pool has none to give.
    #[error("no database connection: {0}")]
    Pool(String),
}

/// Where the database is and how to speak to it. Cheap to clone; holds no connection.
#[derive(Clone)]
pub struct Database {
    config: tokio_postgres::Config,
    mode: Mode,
    tls: MakeRustlsConnect,
    pool_size: usize,
    role: String,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Database({})", self.address())
    }
}

impl Database {
    /// Reads the settings; `role` (`doors`, `attribution/3` …) is seen in `pg_stat_activity` as
    /// `millrace/<role>/<host>:<pid>`.
    ///
    /// # Errors
    /// There is no URL, it cannot be read, or the authorities cannot.
    pub fn new(settings: &settings::Database, role: &str) -> Result<Database, DatabaseError> {
        let url = settings.url.as_deref().ok_or(DatabaseError::NoUrl)?;
        let (rest, word, ca_in_url) = take_tls(url);
        let mode = word.map_or(Ok(Mode::default()), |w| Mode::parse(&w))?;
        let ca_file = settings.ca_file.clone().or(ca_in_url);
        let tls = tls::connector(mode, ca_file.as_deref())?;
        let mut config: tokio_postgres::Config = rest
            .parse()
            .map_err(|e: tokio_postgres::Error| DatabaseError::Url(chain(&e)))?;
        let options = format!(
            "{} -c idle_in_transaction_session_timeout={} -c statement_timeout={} -c timezone=UTC -c jit=off",
            config.get_options().unwrap_or_default(),
            IDLE_IN_TRANSACTION.as_millis(),
            settings.statement_timeout_ms,
        );
        config
            .options(options.trim())
            .application_name(application_name(role))
            .ssl_mode(mode.wire())
            .connect_timeout(Duration::from_millis(settings.connect_timeout_ms))
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3)
            .tcp_user_timeout(TCP_USER_TIMEOUT);
        Ok(Database {
            config,
            mode,
            tls,
            pool_size: settings.pool.max(1),
            role: role.to_owned(),
        })
    }

    /// The same database under another role's name.
    #[must_use]
    pub fn for_role(&self, role: &str) -> Database {
        let mut other = self.clone();
        other.config.application_name(application_name(role));
        role.clone_into(&mut other.role);
        other
    }

    /// The same database with another bound on statements; zero lifts it.
    #[must_use]
    pub fn with_statement_timeout(&self, limit: Duration) -> Database {
        let mut other = self.clone();
        let options = format!(
            "{} -c statement_timeout={}",
            self.config.get_options().unwrap_or_default(),
            limit.as_millis()
        );
        other.config.options(options.trim());
        other
    }

    /// The driver's configuration (for parts that open their own connections, as the Postgres log's appender does).
    #[must_use]
    pub fn config(&self) -> &tokio_postgres::Config {
        &self.config
    }

    /// The connector that goes with [`Database::config`].
    #[must_use]
    pub fn tls(&self) -> MakeRustlsConnect {
        self.tls.clone()
    }

    /// How the connection is protected.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Host, port and database, without user or password: for people.
    #[must_use]
    pub fn address(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let name = self
            .config
            .get_dbname()
            .or(self.config.get_user())
            .unwrap_or_default();
        format!("{host}:{port}/{name}")
    }

    /// A pool of `database.pool` connections, opened when first needed.
    ///
    /// # Errors
    /// deadpool refuses its configuration.
    pub fn pool(&self) -> Result<super::Pool, DatabaseError> {
        self.pool_of(self.pool_size)
    }

    /// A pool of so many connections.
    ///
    /// # Errors
    /// deadpool refuses its configuration.
    pub fn pool_of(&self, size: usize) -> Result<super::Pool, DatabaseError> {
        // `Fast` asks the driver alone whether the connection lives: no round trip a checkout, prepared statements stay.
        let manager = Manager::from_config(
            self.config.clone(),
            self.tls.clone(),
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let wait = Some(Duration::from_secs(5));
        super::Pool::builder(manager)
            .max_size(size)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .wait_timeout(wait)
            .create_timeout(wait)
            .build()
            .map_err(|e| DatabaseError::Pool(e.to_string()))
    }

    /// One connection of its own, driven by a task of the current runtime. The task ends with the connection; its result says
    /// why.
    ///
    /// # Errors
    /// The server is away or refuses.
    pub async fn single(
        &self,
    ) -> Result<
        (
            tokio_postgres::Client,
            JoinHandle<Result<(), tokio_postgres::Error>>,
        ),
        DatabaseError,
    > {
        // The driver's own timeout ends where TCP is connected; who accepts and then says nothing would be waited for for ever.
        let limit = self
            .config
            .get_connect_timeout()
            .copied()
            .unwrap_or(GREETING)
            + GREETING;
        let connected = tokio::time::timeout(limit, self.config.connect(self.tls.clone()))
            .await
            .map_err(|_| DatabaseError::Silent {
                at: self.address(),
                seconds: limit.as_secs(),
            })?;
        let (client, connection) = connected.map_err(|source| DatabaseError::Connect {
            at: self.address(),
            source,
        })?;
        Ok((client, tokio::spawn(connection)))
    }
}

/// An error with its causes in one line; tokio-postgres tells the cause in its source alone.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

fn application_name(role: &str) -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    // PostgreSQL keeps 63 bytes; the process id must not be what is cut.
    let short: String = host.chars().take(24).collect();
    let role: String = role.chars().take(20).collect();
    format!("millrace/{role}/{short}:{}", std::process::id())
}

/// Takes `sslmode` and `sslrootcert` out of a connection string of either form.
fn take_tls(text: &str) -> (String, Option<String>, Option<PathBuf>) {
    let mut mode = None;
    let mut ca = None;
    let mut keep = |name: &str, value: String| match name {
        "sslmode" => {
            mode = Some(value);
            false
        }
        "sslrootcert" => {
            // libpq's `system` is what an absent file means here.
            ca = (value != "system").then(|| PathBuf::from(value));
            false
        }
        _ => true,
    };
    let rest = if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        match text.split_once('?') {
            None => text.to_owned(),
            Some((head, query)) => {
                let kept: Vec<&str> = query
                    .split('&')
                    .filter(|pair| {
                        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                        let value = percent_encoding::percent_decode_str(value);
                        keep(name, value.decode_utf8_lossy().into_owned())
                    })
                    .collect();
                match kept.is_empty() {
                    true => head.to_owned(),
                    false => format!("{head}?{}", kept.join("&")),
                }
            }
        }
    } else {
        words(text)
            .into_iter()
            .filter(|(name, value, _)| keep(name, value.clone()))
            .map(|(_, _, raw)| raw)
            .collect::<Vec<_>>()
            .join(" ")
    };
    (rest, mode, ca)
}

/// `name = 'value'` pairs of libpq's key-value form: name, value without quotes, and the text as it stood.
fn words(text: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let mut value = String::new();
        let mut end = after.len();
        let mut quoted = false;
        let mut escaped = false;
        for (at, c) in after.char_indices() {
            match c {
                _ if escaped => {
                    value.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                '\'' => quoted = !quoted,
                c if c.is_whitespace() && !quoted => {
                    end = at;
                    break;
                }
                c => value.push(c),
            }
        }
        let (raw, remaining) = after.split_at(end);
        let name = name.trim();
        found.push((name.to_owned(), value, format!("{name}={raw}")));
        rest = remaining.trim_start();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_words_leave_the_connection_string() {
        let (rest, mode, ca) = take_tls(
            "postgres://u:p@h:1/d?sslmode=verify-full&application_name=x&sslrootcert=%2Fetc%2Fca.pem",
        );
        assert_eq!(rest, "postgres://u:p@h:1/d?application_name=x");
        assert_eq!(mode.as_deref(), Some("verify-full"));
        assert_eq!(ca, Some(PathBuf::from("/etc/ca.pem")));
        let (rest, mode, ca) =
            take_tls("host=h password = 'a b\\'c' sslmode = 'verify-ca' dbname=d");
        assert_eq!(rest, "host=h password='a b\\'c' dbname=d");
        assert_eq!(mode.as_deref(), Some("verify-ca"));
        assert_eq!(ca, None);
    }

    #[test]
    fn sessions_are_bounded_and_named() {
        let settings = settings::Database {
            url: Some("postgres://u:secret@h/d?sslmode=disable&options=-c%20work_mem%3D8MB".into()),
            ..settings::Database::default()
        };
        let database = Database::new(&settings, "doors").unwrap();
        let options = database.config().get_options().unwrap();
        assert!(options.contains("work_mem=8MB"), "{options}");
        assert!(options.contains("idle_in_transaction_session_timeout=10000"));
        assert!(options.contains("statement_timeout=30000"));
        let name = database.config().get_application_name().unwrap();
        assert!(
            name.starts_with("millrace/doors/") && name.len() <= 63,
            "{name}"
        );
        assert_eq!(format!("{database:?}"), "Database(h:5432/d)");
        let lifted = database.with_statement_timeout(Duration::ZERO);
        assert!(
            lifted
                .config()
                .get_options()
                .unwrap()
                .ends_with("statement_timeout=0")
        );
    }

    #[test]
    fn what_is_wrong_is_named_without_the_password() {
        let with = |url: &str| {
            let settings = settings::Database {
                url: Some(url.into()),
                ..settings::Database::default()
            };
            Database::new(&settings, "x").unwrap_err().to_string()
        };
        let text = with("postgres://u:secret@h/d?sslmode=verify_full");
        assert!(text.contains("verify_full") && text.contains("verify-full"));
        let text = with("postgres://u:secret@h:port/d");
        assert!(!text.contains("secret"), "{text}");
        let text = with("postgres://h/d?sslmode=verify-full&sslrootcert=/nowhere/ca.pem");
        assert!(text.contains("/nowhere/ca.pem"), "{text}");
    }
}
