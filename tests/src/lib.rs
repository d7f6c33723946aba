//! The proving ground of Millrace.
//!
//! - [`postgres`]: a real PostgreSQL for tests, one migrated database a test, servers to stop and kill.
//! - [`recording_host`]: what a consumer talks to when the log alone is tested.

pub mod postgres;
pub mod recording_host;
