//! The log on Apache Kafka, by librdkafka.
//!
//! - [`settings`]: what an operator sets; properties of librdkafka pass through.
//! - [`producer`]: idempotent, `acks=all`, acknowledges each record.
//! - [`consumer`]: one thread a group; partitions start at the positions that the host answers, never at committed offsets.
//! - [`admin`]: topics, partition counts, watermarks.

pub mod admin;
mod client;
pub mod consumer;
pub mod producer;
pub mod settings;
mod topic_ids;

pub use admin::KafkaAdmin;
pub use consumer::KafkaConsumer;
pub use producer::KafkaProducer;
pub use settings::{GroupProtocol, KafkaSettings, KafkaSetupError};
