//! The suite over the Postgres log, and what only it promises.

use crate::topics_suite::Log;
use millrace_tests::postgres::{DedicatedServer, StopMode, TestDatabase};
use millrace_tests::recording_host::RecordingHost;
use millrace_topics::catalogue;
use millrace_topics::contract::{Consumer, Producer, Subscription, TopicRef};
use millrace_topics::pglog::{
    self, Connector, ConsumerOptions, PgLogConsumer, PgLogProducer, ProducerOptions,
};
use std::sync::Arc;

mod alone;
mod away;

crate::topics_suite!(PostgresLog);

/// A database as a log.
pub struct PostgresLog {
    database: TestDatabase,
    server: Option<DedicatedServer>,
}

impl PostgresLog {
    fn connector(&self) -> Connector {
        Connector::plain(self.database.url()).expect("a URL")
    }
}

impl Log for PostgresLog {
    async fn start(own: bool) -> Option<PostgresLog> {
        if !own {
            return Some(PostgresLog {
                database: TestDatabase::create().await,
                server: None,
            });
        }
        let server = tokio::task::spawn_blocking(DedicatedServer::start_durable)
            .await
            .expect("a server");
        Some(PostgresLog {
            database: TestDatabase::create_on(&server).await,
            server: Some(server),
        })
    }

    async fn topics(&self, names: &[&str], partitions: i32) -> Vec<TopicRef> {
        let client = self.database.client().await;
        let mut topics = Vec::new();
        for name in names {
            let topic = catalogue::register(&client, name, "", partitions)
                .await
                .expect("registered");
            pglog::create_topic(&client, &topic).await.expect("made");
            topics.push(topic);
        }
        topics
    }

    fn producer(&self, topics: &[TopicRef], max_record_bytes: usize) -> Arc<dyn Producer> {
        let options = ProducerOptions {
            max_record_bytes,
            ..ProducerOptions::default()
        };
        Arc::new(PgLogProducer::start(self.connector(), topics, options).expect("a producer"))
    }

    fn consumer(&self, subscription: Subscription, host: Arc<RecordingHost>) -> Arc<dyn Consumer> {
        let options = ConsumerOptions::default();
        let consumer = PgLogConsumer::start(self.connector(), subscription, host, options);
        Arc::new(consumer.expect("a consumer"))
    }

    async fn restart(&mut self) {
        let mut server = self.server.take().expect("a server of its own");
        self.server = tokio::task::spawn_blocking(move || {
            server.stop(StopMode::Immediate);
            server.start_again();
            Some(server)
        })
        .await
        .expect("it starts again");
    }
}
