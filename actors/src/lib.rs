//! The map of the house; read it first.
//!
//! Millrace turns streams of ad clicks, affiliate postbacks and game-server events into booked facts and delivered messages.
//! A record enters at a door ([`ingress`]), is acknowledged by the log (`millrace_topics`), and is decided by the partition
//! actor ([`runtime`]) of a stream with state ([`attribution`], later others), which writes facts, counts outcomes and moves
//! its position in one transaction of PostgreSQL.
//!
//! - [`settings`]: every key of `config/millrace.toml`.
//! - [`postgres`]: the pool, TLS, sessions, migrations, a supervised server, binary COPY.
//! - [`runtime`]: clocks, the partition-actor shell, failpoints, outcomes. Rules about commits, restarts and positions live
//!   here and nowhere else.
//! - [`attribution`]: visits, clicks, postbacks, conversions: `decide` is pure, `actor` is the shell, `store` its SQL.
//! - [`thresholds`]: frames of game shards: trackers, rosters, firings.
//! - [`delivery`]: the outbox, and one folder a channel: the only way out.
//! - [`templates`]: what a notice looks like: HTML, text, an inbox item.
//! - [`unsubscribe`]: the links that mails end with.
//! - [`engagement`] and [`recipients`]: the gates between what fired and who is told.
//! - [`erasure`]: a person's contact taken out of everything that is stored.
//! - [`directory`]: users, links, preferences; audiences, segments, rules.
//! - [`ingress`]: one file a door.
//! - [`modules`]: what a game brings, as data: manifests, compiled and checked.
//! - [`api`]: the admin API, mounted from one registry of operations.
//! - [`sealing`]: secrets at rest.
//! - [`verify`]: the oracle of an operator: a store recounted by plain SQL, read-only, each difference named.
//! - [`cli`]: what `millrace` can be told at a terminal.
//!
//! Where new things go: a door into `ingress/<door>.rs` and a wire type into schemas; a stream with state into a folder with
//! decide / actor / store and a line in the topic catalogue; a channel into a folder under `delivery`.

pub mod api;
pub mod attribution;
pub mod cli;
pub mod delivery;
pub mod directory;
pub mod engagement;
pub mod erasure;
pub mod ingress;
pub mod modules;
pub mod postgres;
pub mod recipients;
pub mod runtime;
pub mod sealing;
pub mod settings;
pub mod templates;
pub mod thresholds;
pub mod unsubscribe;
pub mod verify;
