//! PostgreSQL as a library: pool, TLS, session settings, migrations, a supervised server, binary COPY, times.
//! What may not: SQL of any one part.

pub mod copy;
pub mod migrate;
pub mod pool;
pub mod server;
pub mod tls;
pub mod types;

/// A pool of connections.
pub type Pool = deadpool_postgres::Pool;

/// The advisory lock under which daily partitions are made.
pub const DAYS_LOCK: i64 = 0x6d69_6c6c_6461_7973;
