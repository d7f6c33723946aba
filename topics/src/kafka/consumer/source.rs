//! One topic of one partition, as the consumer reads it.
//!
//! Each has a queue of its own in librdkafka, split from the group's: so an end or a fault names its topic, a partition whose
//! actor is busy is left unread (what librdkafka has fetched ahead stays; a pause there would throw it away and fetch it
//! again), and topics can be read in the order of their times.

use rdkafka::consumer::ConsumerContext;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use std::time::Duration;

/// One record as it lies in librdkafka's memory.
pub(super) struct Incoming<'a> {
    pub offset: i64,
    /// The log's timestamp in milliseconds.
    pub time: i64,
    pub key: &'a [u8],
    pub payload: &'a [u8],
}

/// What one look into a source brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// Nothing now.
    Empty,
    /// A record, which was handed to the callback.
    Record,
    /// Everything that the log holds has been read.
    End,
    /// The log cannot go on here.
    Fault(String),
}

/// Where records of one topic and partition come from. Never blocks.
pub(super) trait Source {
    fn poll(&self, take: &mut dyn FnMut(Incoming<'_>)) -> Polled;
}

impl<C: ConsumerContext> Source for PartitionQueue<C> {
    fn poll(&self, take: &mut dyn FnMut(Incoming<'_>)) -> Polled {
        match PartitionQueue::poll(self, Duration::ZERO) {
            None => Polled::Empty,
            Some(Ok(message)) => {
                take(Incoming {
                    offset: message.offset(),
                    time: message.timestamp().to_millis().unwrap_or(0),
                    key: message.key().unwrap_or_default(),
                    payload: message.payload().unwrap_or_default(),
                });
                Polled::Record
            }
            Some(Err(KafkaError::PartitionEOF(_))) => Polled::End,
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::AutoOffsetReset) => {
                    Polled::Fault("the stored position is out of the log's range".to_owned())
                }
                // librdkafka would skip what it cannot read; nothing is skipped here.
                Some(
                    RDKafkaErrorCode::BadMessage
                    | RDKafkaErrorCode::BadCompression
                    | RDKafkaErrorCode::InvalidMessage,
                ) => Polled::Fault(format!("the log is damaged: {error}")),
                // A leader on the move, a broker away: librdkafka goes on by itself.
                _ => {
                    tracing::warn!(%error, "kafka consumer: fetching");
                    Polled::Empty
                }
            },
        }
    }
}
