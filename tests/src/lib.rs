//! The proving ground of Millrace.
//!
//! - [`postgres`]: a real PostgreSQL for tests, one migrated database a test, servers to stop and kill.

pub mod postgres;
