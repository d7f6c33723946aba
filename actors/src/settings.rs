//! Every key of `config/millrace.toml`, with its default. The file is optional, each key can be set by the environment as
//! `MILLRACE_SECTION__KEY`, `DATABASE_URL` sets `database.url`. Unknown keys are refused by name.

mod load;

pub use load::{DEFAULT_FILE, SettingsError, load, load_from};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// All settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// PostgreSQL.
    pub database: Database,
    /// The log.
    pub log: Log,
    /// Doors and admin API.
    pub http: Http,
    /// Partition actors.
    pub runtime: Runtime,
    /// Attribution.
    pub attribution: Attribution,
    /// Games, as data.
    pub modules: Modules,
    /// Thresholds.
    pub thresholds: Thresholds,
    /// The gates of recipients.
    pub recipients: Recipients,
    /// How long facts are kept.
    pub retention: Retention,
    /// Delivery.
    pub delivery: Delivery,
    /// What this process tells about itself.
    pub telemetry: Telemetry,
}

/// PostgreSQL.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// `postgres://…`, `sslmode` up to `verify-full`. Unset: `millrace up` starts a server of its own.
    pub url: Option<String>,
    /// PEM file of certificate authorities for `verify-ca` and `verify-full`; unset: the system's.
    pub ca_file: Option<PathBuf>,
    /// Connections of this process at most, those of actors apart.
    pub pool: usize,
    /// Where `millrace up` keeps its data.
    pub data_dir: PathBuf,
    /// How long one statement may take, in milliseconds (0: no bound).
    pub statement_timeout_ms: u64,
    /// How long connecting may take, in milliseconds.
    pub connect_timeout_ms: u64,
}

impl Default for Database {
    fn default() -> Database {
        Database {
            url: None,
            ca_file: None,
            pool: 8,
            data_dir: PathBuf::from("data"),
            statement_timeout_ms: 30_000,
            connect_timeout_ms: 5_000,
        }
    }
}

/// Which log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Tables of PostgreSQL: one machine.
    #[default]
    Postgres,
    /// Apache Kafka.
    Kafka,
}

/// Which consumer group protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupProtocol {
    /// KIP-848 where the brokers have it, classic else.
    #[default]
    Auto,
    /// KIP-848.
    Consumer,
    /// The classic protocol, `range`.
    Classic,
}

/// The log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `postgres` or `kafka`.
    pub backend: Backend,
    /// Prefix of topic names in Kafka.
    pub prefix: String,
    /// Partitions of topics made by `millrace up` and `topics create`.
    pub partitions: i32,
    /// Replication factor of topics made in Kafka.
    pub replication: i32,
    /// Kafka's `bootstrap.servers`.
    pub brokers: Option<String>,
    /// The consumer group protocol.
    pub group_protocol: GroupProtocol,
    /// Further properties of librdkafka (`security.protocol`, `sasl.*`, `ssl.*` …), passed through. Values may name an
    /// environment variable: `env:NAME`.
    pub properties: BTreeMap<String, String>,
    /// Largest record, in bytes.
    pub max_record_bytes: usize,
    /// How long a door waits for the log's acknowledgement, in milliseconds.
    pub ack_timeout_ms: u64,
    /// Linger of the producer, in milliseconds.
    pub linger_ms: u64,
    /// Postgres log: how long consumed segments are kept, in seconds.
    pub retention_s: u64,
}

impl Default for Log {
    fn default() -> Log {
        Log {
            backend: Backend::Postgres,
            prefix: String::new(),
            partitions: 8,
            replication: 1,
            brokers: None,
            group_protocol: GroupProtocol::Auto,
            properties: BTreeMap::new(),
            max_record_bytes: 900_000,
            ack_timeout_ms: 10_000,
            linger_ms: 5,
            retention_s: 86_400,
        }
    }
}

/// Doors and admin API.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Where the doors listen.
    pub doors: SocketAddr,
    /// Where the admin API listens; the same address as `doors` puts both on one listener.
    pub admin: SocketAddr,
    /// The doors' URL as the world sees it, for redirects and callback URLs.
    pub public_url: Option<String>,
    /// Largest body of a door but the batch doors, in bytes.
    pub max_body: usize,
    /// Largest body of a batch door, in bytes.
    pub max_batch_body: usize,
    /// Proxies whose `X-Forwarded-For` is believed, as CIDR.
    pub trusted_proxies: Vec<String>,
    /// The doors answer 503 when the disk that holds the log has less than this many bytes free (0: never).
    pub disk_low_watermark: u64,
    /// How long the doors go on with the configuration that they hold while PostgreSQL is away, in seconds; then 503.
    pub configuration_hold_s: u64,
    /// How long a shard's feed may be silent, in seconds; it is asked for a sign of life after a third of it.
    pub feed_idle_s: u64,
    /// Worker threads.
    pub workers: usize,
}

impl Default for Http {
    fn default() -> Http {
        Http {
            doors: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin: SocketAddr::from(([127, 0, 0, 1], 8080)),
            public_url: None,
            max_body: 64 << 10,
            max_batch_body: 8 << 20,
            trusted_proxies: Vec::new(),
            disk_low_watermark: 256 << 20,
            configuration_hold_s: 600,
            feed_idle_s: 60,
            workers: 2,
        }
    }
}

/// Partition actors.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// Records of one transaction at most.
    pub batch_records: usize,
    /// Bytes of one transaction at most.
    pub batch_bytes: usize,
    /// Arbiters (threads) over which partition actors are spread.
    pub arbiters: usize,
    /// How long a claim waits for the former owner's rows, in milliseconds.
    pub lock_timeout_ms: u64,
    /// How often an idle actor looks at due parked records, in milliseconds.
    pub tick_ms: u64,
    /// How long shutdown may take, in milliseconds.
    pub shutdown_ms: u64,
}

impl Default for Runtime {
    fn default() -> Runtime {
        Runtime {
            batch_records: 5_000,
            batch_bytes: 4 << 20,
            arbiters: 2,
            lock_timeout_ms: 2_000,
            tick_ms: 1_000,
            shutdown_ms: 10_000,
        }
    }
}

/// Attribution.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Attribution {
    /// How long a postback or click waits for its visit, in seconds of stream time.
    pub park_for_s: u64,
    /// Clicks that one partition's slice holds in memory at most.
    pub slice_clicks: usize,
}

impl Default for Attribution {
    fn default() -> Attribution {
        Attribution {
            park_for_s: 86_400,
            slice_clicks: 100_000,
        }
    }
}

/// Modules: what a game brings, as data.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Modules {
    /// Which are enabled, by id.
    pub enabled: Vec<String>,
    /// The folder of their manifests; unset: those within this program.
    pub dir: Option<PathBuf>,
}

/// Thresholds: trackers over the frames of game shards.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// What trackers remember that one partition's slice holds in memory at most; the rest is read when it is needed.
    pub slice_keys: usize,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            slice_keys: 100_000,
        }
    }
}

/// The gates of recipients.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipients {
    /// Cooldowns that one partition's slice holds in memory at most; the rest is read when it is needed.
    pub slice_keys: usize,
}

impl Default for Recipients {
    fn default() -> Recipients {
        Recipients {
            // Each half of a slice fills a table of 2^17 places, of which 7 in 8 may be taken: some more would double its memory.
            slice_keys: 225_000,
        }
    }
}

/// How long facts are kept, in whole days since their acceptance; 0: for ever. Whole days are dropped; what makes a second
/// conversion the same as the first outlives them. Outbox and send log: see [`Delivery`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Visits and clicks. A postback for a visit that is gone waits in vain.
    pub visits_days: u16,
    /// Conversions with their history.
    pub conversions_days: u16,
    /// The log of postbacks, and of visits and clicks that could never be booked.
    pub postbacks_days: u16,
    /// Dead letters that were replayed or discarded, since then; open ones stay.
    pub dead_letters_days: u16,
    /// Notifications in an inbox, since they were read; unread ones stay.
    pub read_inbox_days: u16,
    /// What trackers remember of a key, since its value changed last. Seen again, it is seen for the first time.
    pub tracker_states_days: u16,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention {
            visits_days: 0,
            conversions_days: 0,
            postbacks_days: 0,
            dead_letters_days: 0,
            read_inbox_days: 90,
            tracker_states_days: 0,
        }
    }
}

/// Delivery: what leaves the building. Each channel's own keys are described with the channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Delivery {
    /// How often an idle channel looks for what is due, in milliseconds.
    pub poll_ms: u64,
    /// How long messages are kept once they have ended, in days (0: for ever).
    pub outbox_retention_days: u16,
    /// How long the log of attempts is kept, in days (0: for ever).
    pub send_log_retention_days: u16,
    /// Networks (CIDR) or addresses that may be sent to although they are not public.
    pub allowed_networks: Vec<String>,
    /// The channel `meta`.
    pub meta: crate::delivery::meta::settings::Meta,
    /// The channel `email`.
    pub email: crate::delivery::email::settings::Email,
    /// The channel `inapp`.
    pub inapp: crate::delivery::inapp::settings::Inapp,
    /// The channel `push`.
    pub push: crate::delivery::push::settings::Push,
    /// The channel `webhook`.
    pub webhook: crate::delivery::webhook::settings::Webhook,
    /// The channel `stub`.
    pub stub: crate::delivery::stub::settings::Stub,
}

impl Default for Delivery {
    fn default() -> Delivery {
        Delivery {
            poll_ms: 100,
            outbox_retention_days: 30,
            send_log_retention_days: 90,
            allowed_networks: Vec::new(),
            meta: Default::default(),
            email: Default::default(),
            inapp: Default::default(),
            push: Default::default(),
            webhook: Default::default(),
            stub: Default::default(),
        }
    }
}

/// Form of the lines on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What this process tells about itself on stderr.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// `text` or `json`.
    pub format: LineFormat,
    /// Directives of tracing's EnvFilter; `RUST_LOG` overrides it.
    pub filter: String,
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry {
            format: LineFormat::Text,
            filter: "info".to_owned(),
        }
    }
}
