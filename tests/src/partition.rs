//! One partition's actor without a log: batches in, the store's word out. For tests of the heart on real PostgreSQL.

use millrace::attribution::actor::Attribution;
use millrace::postgres::pool::Database;
use millrace::runtime::clock::SharedClock;
use millrace::runtime::connector::connector;
use millrace::runtime::core::{Core, Exit};
use millrace::settings;
use millrace_topics::catalogue;
use millrace_topics::contract::{Batch, ClaimError, TopicRef};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Enters `clicks` and `postbacks` into the catalogue.
///
/// # Panics
/// The store refuses.
pub async fn topics(client: &tokio_postgres::Client, partitions: i32) -> Vec<TopicRef> {
    let mut all = Vec::new();
    for name in catalogue::ATTRIBUTION.topics {
        all.push(
            catalogue::register(client, name, "", partitions)
                .await
                .expect("the topic is entered"),
        );
    }
    all
}

/// A partition's actor, and the offsets that its log would give.
pub struct Partition {
    /// The heart.
    pub core: Core<Attribution>,
    /// Its topics.
    pub topics: Vec<TopicRef>,
    partition: i32,
    next: Vec<i64>,
}

impl Partition {
    /// Claims partition `partition`.
    ///
    /// # Errors
    /// As [`Core::launch`].
    pub async fn launch(
        url: &str,
        topics: &[TopicRef],
        partition: i32,
        clock: SharedClock,
        attribution: settings::Attribution,
    ) -> Result<Partition, ClaimError> {
        let database = Database::new(
            &settings::Database {
                url: Some(url.to_owned()),
                ..settings::Database::default()
            },
            "test",
        )
        .map_err(|e| ClaimError::Later(e.to_string()))?;
        let core = Core::launch(
            Attribution::new(attribution),
            connector(&database, Duration::from_secs(2)),
            clock,
            topics.into(),
            partition,
            "test",
            Arc::new(AtomicBool::new(false)),
        )
        .await?;
        let next = topics
            .iter()
            .map(|t| {
                core.positions()
                    .iter()
                    .find(|p| p.topic_no == t.no)
                    .map_or(0, |p| p.next_offset)
            })
            .collect();
        Ok(Partition {
            core,
            topics: topics.to_vec(),
            partition,
            next,
        })
    }

    /// A batch of records: (topic's place in the group, key, payload), at the next offsets.
    pub fn batch(&mut self, records: &[(usize, String, Vec<u8>)]) -> Batch {
        let mut batch = Batch::new(self.partition);
        for (topic, key, payload) in records {
            let (Some(t), Some(next)) = (self.topics.get(*topic), self.next.get_mut(*topic)) else {
                continue;
            };
            batch.push(t.no, *next, key.as_bytes(), payload);
            *next += 1;
        }
        batch.order_by_topic(&self.topics);
        batch
    }

    /// Sends records through and waits for their commit.
    ///
    /// # Errors
    /// Why the actor ended.
    pub async fn send(&mut self, records: &[(usize, String, Vec<u8>)]) -> Result<(), Exit> {
        let batch = self.batch(records);
        self.core.process(&batch).await
    }

    /// Says that all topics were read to their ends.
    ///
    /// # Errors
    /// Why the actor ended.
    pub async fn at_end(&mut self) -> Result<(), Exit> {
        let mut batch = Batch::new(self.partition);
        batch.ends = self.topics.iter().map(|t| t.no).collect();
        self.core.process(&batch).await
    }
}
