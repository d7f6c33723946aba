//! The proving ground of Millrace.
//!
//! - [`model`]: what records must become, decided one after another, without product code.
//! - [`partition`]: one partition's actor without a log.
//! - [`postgres`]: a real PostgreSQL for tests, one migrated database a test, servers to stop and kill.
//! - [`kafka`]: a real Apache Kafka for tests: a shared broker, brokers to kill, a cluster of three.
//! - [`recording_host`]: what a consumer talks to when the log alone is tested.
//! - [`process`]: the product as a process: environment, failpoints, logs, signals, deadlines.
//! - [`proxy`]: a TCP proxy that cuts, stalls, delays and eats the reply to a COMMIT.
//! - [`meta_stand_in`]: a stand-in for Meta's Conversions API that behaves as Meta does and counts for itself.
//! - [`fuzzing`]: one function a decoder, for the fuzzer and for the corpus. [`claims`]: identities without a store.
//! - [`receivers`]: HTTP receivers that write down what they are sent.
//! - [`generator`]: records for the log, each with what is right for it. [`recount`]: the store's facts against that list.
//! - [`parties`]: one destination of each kind with its receiver. [`door_client`]: who sends to the doors and remembers what was
//!   acknowledged. [`log_reader`]: what a log holds.
//! - [`faults`]: what fault runs share. [`quay`]: a harbour whose shards stream frames and whose people are told, with its oracle.
//! - [`shard_session`]: what a shard's sidecar sends over an evening.
//! - [`memory_log`]: a log for doors without one. [`hostile`]: requests that no honest sender makes, and what became of them.
//! - [`deployment`]: all of it together: a database, a log, the product's processes over them.
//! - [`echo`]: a stream that emits and one that receives, mounted on the product's process.

pub mod certificates;
pub mod claims;
pub mod deployment;
pub mod door_client;
pub mod echo;
pub mod faults;
pub mod fuzzing;
pub mod generator;
pub mod hostile;
pub mod kafka;
pub mod log_reader;
pub mod memory_log;
pub mod meta_stand_in;
pub mod model;
pub mod outbox;
pub mod parties;
pub mod partition;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod quay;
pub mod receivers;
pub mod recording_host;
pub mod recount;
pub mod shard_session;
