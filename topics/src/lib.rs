//! The log of Millrace: one contract, two backends.
//!
//! What lives here: names and partition counts of topics, the partitioner, producers that acknowledge, consumers that hand
//! over batches, the relay of emits. What may not: what a record means (schemas) and what is decided of it (actors).
//!
//! - [`contract`]: what both backends promise; read it first.
//! - [`catalogue`]: topics and groups by name, their numbers, generations and partition counts in the store.
//! - [`partitioner`]: `murmur2_random`, the same on both backends.
//! - [`kafka`]: Apache Kafka by rdkafka. [`pglog`]: a log of PostgreSQL tables, for one machine.
//! - [`relay`]: sends on what a batch's transaction wrote into `emits`.

pub mod catalogue;
pub mod contract;
pub mod kafka;
pub mod partitioner;
pub mod pglog;
pub mod relay;
