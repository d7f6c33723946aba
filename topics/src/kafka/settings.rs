//! What an operator sets of Kafka, and how it becomes a configuration of librdkafka.

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use std::collections::BTreeMap;
use std::fmt;

/// Which consumer group protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupProtocol {
    /// KIP-848 where the brokers have it, classic else.
    #[default]
    Auto,
    /// KIP-848 (`group.protocol=consumer`), assignor `range`.
    Consumer,
    /// The classic protocol, assignor `range`.
    Classic,
}

/// What is wrong with the settings, before anything was sent.
#[derive(Debug, thiserror::Error)]
pub enum KafkaSetupError {
    /// A property that Millrace sets itself: another value would break a promise.
    #[error("property `{0}` of Kafka is set by Millrace and cannot be changed")]
    Reserved(String),
    /// `env:NAME` without such a variable.
    #[error(
        "property `{property}` of Kafka names the environment variable `{variable}`, which is not set"
    )]
    MissingVariable {
        /// The property.
        property: String,
        /// The variable.
        variable: String,
    },
    /// librdkafka refuses the configuration. Never holds a value, which may be secret.
    #[error("Kafka's client refuses its configuration: {0}")]
    Refused(String),
    /// The machine gives no thread.
    #[error("no thread for Kafka's client: {0}")]
    Thread(#[from] std::io::Error),
}

impl From<rdkafka::error::KafkaError> for KafkaSetupError {
    fn from(error: rdkafka::error::KafkaError) -> KafkaSetupError {
        use rdkafka::error::KafkaError;
        match error {
            // The value stays out: it may be a password.
            KafkaError::ClientConfig(_, description, key, _) => {
                KafkaSetupError::Refused(format!("{key}: {description}"))
            }
            other => KafkaSetupError::Refused(other.to_string()),
        }
    }
}

/// Settings of all clients of Kafka.
#[derive(Clone)]
pub struct KafkaSettings {
    /// `bootstrap.servers`.
    pub brokers: String,
    /// Further properties of librdkafka; a value `env:NAME` is read from the environment.
    pub properties: BTreeMap<String, String>,
    /// The consumer group protocol.
    pub protocol: GroupProtocol,
    /// Producer: how long a record waits for company, in milliseconds.
    pub linger_ms: u64,
    /// Producer: a record not acknowledged by then fails, in milliseconds.
    pub ack_timeout_ms: u64,
    /// Producer: key and payload together at most, in bytes.
    pub max_record_bytes: usize,
    /// Producer: bytes that wait or are under way at most; above it, `QueueFull`.
    pub queue_bytes: usize,
    /// `client.id`.
    pub client_id: String,
    /// Classic protocol: the session, in milliseconds (under KIP-848 it is the broker's).
    pub session_timeout_ms: u64,
    /// Consumer: how long the first claim of assigned partitions may take, in milliseconds.
    pub claim_wait_ms: u64,
    /// Consumer: bytes fetched ahead per partition and topic at most.
    pub prefetch_bytes: usize,
}

impl Default for KafkaSettings {
    fn default() -> KafkaSettings {
        KafkaSettings {
            brokers: "127.0.0.1:9092".to_owned(),
            properties: BTreeMap::new(),
            protocol: GroupProtocol::Auto,
            linger_ms: 5,
            ack_timeout_ms: 10_000,
            max_record_bytes: 900_000,
            queue_bytes: 256 << 20,
            client_id: "millrace".to_owned(),
            session_timeout_ms: 6_000,
            claim_wait_ms: 5_000,
            prefetch_bytes: 4 << 20,
        }
    }
}

impl fmt::Debug for KafkaSettings {
    /// Names properties, never their values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSettings")
            .field("brokers", &self.brokers)
            .field("properties", &self.properties.keys())
            .field("protocol", &self.protocol)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// Properties whose values carry a promise of the product.
const RESERVED: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "group.protocol",
    "group.remote.assignor",
    "isolation.level",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "request.required.acks",
    "transactional.id",
];

impl KafkaSettings {
    /// What all clients share: brokers, the passed-through properties, quick reconnects (a broker that is back is used within
    /// about a second).
    ///
    /// # Errors
    /// [`KafkaSetupError::Reserved`], [`KafkaSetupError::MissingVariable`].
    pub(super) fn base(&self) -> Result<ClientConfig, KafkaSetupError> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", &self.client_id)
            .set("socket.nagle.disable", "true")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "1000")
            .set_log_level(if self.properties.contains_key("debug") {
                RDKafkaLogLevel::Debug
            } else {
                RDKafkaLogLevel::Warning
            });
        for (property, value) in &self.properties {
            if RESERVED.contains(&property.as_str()) {
                return Err(KafkaSetupError::Reserved(property.clone()));
            }
            let value = match value.strip_prefix("env:") {
                None => value.clone(),
                Some(variable) => {
                    std::env::var(variable).map_err(|_| KafkaSetupError::MissingVariable {
                        property: property.clone(),
                        variable: variable.to_owned(),
                    })?
                }
            };
            config.set(property, value);
        }
        Ok(config)
    }

    /// Largest request of the producer, in bytes: room for the largest record and what Kafka wraps around it.
    pub(super) fn request_bytes(&self) -> usize {
        self.max_record_bytes.saturating_add(4_096).max(1_000_000)
    }

    /// `max.message.bytes` for topics of Millrace: a full request of the producer always fits, since Kafka refuses a batch of
    /// records as a whole.
    pub(super) fn topic_message_bytes(&self) -> usize {
        self.request_bytes().saturating_add(64 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(property: &str, value: &str) -> KafkaSettings {
        KafkaSettings {
            properties: BTreeMap::from([(property.to_owned(), value.to_owned())]),
            ..KafkaSettings::default()
        }
    }

    #[test]
    fn properties_pass_through_and_promises_do_not() {
        let config = with("security.protocol", "ssl").base().unwrap();
        assert_eq!(config.get("security.protocol"), Some("ssl"));
        assert!(matches!(
            with("enable.auto.commit", "true").base(),
            Err(KafkaSetupError::Reserved(p)) if p == "enable.auto.commit"
        ));
    }

    #[test]
    fn values_come_from_the_environment_and_are_never_shown() {
        let config = with("sasl.password", "env:PATH").base().unwrap();
        assert_eq!(
            config.get("sasl.password"),
            std::env::var("PATH").ok().as_deref()
        );
        assert!(matches!(
            with("sasl.password", "env:MILLRACE_NO_SUCH_VARIABLE").base(),
            Err(KafkaSetupError::MissingVariable { .. })
        ));
        assert!(!format!("{:?}", with("sasl.password", "hunter2")).contains("hunter2"));
    }

    #[test]
    fn a_refused_value_is_not_repeated() {
        let config = with("security.protocol", "hunter2").base().unwrap();
        let refused: Result<rdkafka::consumer::BaseConsumer, _> = config.create();
        let text = KafkaSetupError::from(refused.err().unwrap()).to_string();
        assert!(text.contains("security.protocol"), "{text}");
    }
}
