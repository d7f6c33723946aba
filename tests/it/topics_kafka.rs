//! The suite over Apache Kafka. What only it promises is tested in `kafka_*.rs`.

use crate::topics_suite::Log;
use millrace_tests::kafka::{self, Kafka};
use millrace_tests::recording_host::RecordingHost;
use millrace_topics::contract::{Consumer, Producer, Subscription, TopicRef};
use millrace_topics::kafka::{KafkaConsumer, KafkaProducer, KafkaSettings};
use std::sync::Arc;

crate::topics_suite!(KafkaLog);

/// A broker as a log: the one that all tests share, or one of its own.
pub enum KafkaLog {
    /// Shared.
    Shared(&'static Kafka),
    /// Its own, to be restarted.
    Own(Option<Kafka>),
}

impl KafkaLog {
    fn broker(&self) -> &Kafka {
        match self {
            KafkaLog::Shared(kafka) => kafka,
            KafkaLog::Own(kafka) => kafka.as_ref().expect("it is not being restarted"),
        }
    }

    fn settings(&self) -> KafkaSettings {
        self.broker().settings()
    }
}

impl Log for KafkaLog {
    async fn start(own: bool) -> Option<KafkaLog> {
        if !own {
            return kafka::shared().await.map(KafkaLog::Shared);
        }
        if kafka::is_absent() {
            eprintln!("skipped: Apache Kafka is absent (MILLRACE_TEST_KAFKA=absent)");
            return None;
        }
        let kafka = tokio::task::spawn_blocking(Kafka::start).await;
        Some(KafkaLog::Own(Some(kafka.expect("a broker"))))
    }

    async fn topics(&self, names: &[&str], partitions: i32) -> Vec<TopicRef> {
        self.broker().topics(names, partitions).await
    }

    fn producer(&self, topics: &[TopicRef], max_record_bytes: usize) -> Arc<dyn Producer> {
        let settings = KafkaSettings {
            max_record_bytes,
            ..self.settings()
        };
        Arc::new(KafkaProducer::start(&settings, topics).expect("a producer"))
    }

    fn consumer(&self, subscription: Subscription, host: Arc<RecordingHost>) -> Arc<dyn Consumer> {
        let consumer = KafkaConsumer::start(&self.settings(), subscription, host);
        Arc::new(consumer.expect("a consumer"))
    }

    async fn restart(&mut self) {
        let KafkaLog::Own(own) = self else {
            panic!("the shared broker is not restarted");
        };
        let kafka = own.take().expect("a broker");
        *own = tokio::task::spawn_blocking(move || {
            kafka.kill(0);
            kafka.start_again(0);
            Some(kafka)
        })
        .await
        .expect("it starts again");
    }
}
