//! What librdkafka says, into `tracing`.

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// Context of clients without further callbacks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        note(&error, reason);
    }
}

impl rdkafka::consumer::ConsumerContext for Quiet {}

/// One log line of librdkafka.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    // Properties of one kind of client are handed to all kinds; each warns of those of the others.
    if facility == "CONFWARN" {
        tracing::debug!(facility, message, "kafka client");
        return;
    }
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => tracing::warn!(facility, message, "kafka client"),
        RDKafkaLogLevel::Warning => tracing::info!(facility, message, "kafka client"),
        _ => tracing::debug!(facility, message, "kafka client"),
    }
}

/// An error that is nobody's in particular. Ends of partitions arrive here too, which is no news.
pub(super) fn note(error: &KafkaError, reason: &str) {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::PartitionEOF | RDKafkaErrorCode::AutoOffsetReset) => {}
        _ => tracing::warn!(%error, reason, "kafka client"),
    }
}
