//! What a newer build wrote, of every topic that there is: the partition stops with that reason, and it is never a dead letter.

use millrace::attribution::actor::Attribution;
use millrace::directory::actor::Directory;
use millrace::engagement::actor::Engagement;
use millrace::modules::{Modules, shipped};
use millrace::postgres::pool::Database;
use millrace::recipients::actor::Recipients;
use millrace::recipients::facts::Configured;
use millrace::runtime::clock::ManualClock;
use millrace::runtime::connector::connector;
use millrace::runtime::core::{Core, Exit, NEWER};
use millrace::runtime::vertical::Vertical;
use millrace::settings;
use millrace::thresholds::actor::Thresholds;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::TestDatabase;
use millrace_topics::catalogue::{
    self, ATTRIBUTION, DIRECTORY, ENGAGEMENT, GROUPS, NOTICES, RECIPIENTS, THRESHOLDS, TRIGGERS,
};
use millrace_topics::contract::{Batch, TopicRef};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio_postgres::Client;

const NOW: Micros = Micros(1_790_000_060_000_000);

/// A record of a topic as this build writes it: one of the examples of its schema.
fn example(topic: &str) -> Value {
    let file = match topic {
        catalogue::CLICKS => "click_record/good-click.json",
        catalogue::POSTBACKS => "postback_record/good-plain.json",
        catalogue::FRAMES => "frame/good-house.json",
        TRIGGERS => "firing/good-owned.json",
        NOTICES => "notice/good-two-channels.json",
        catalogue::DIRECTORY_TOPIC => "directory_record/good-user.json",
        other => panic!("no example of topic `{other}`: which schema is its?"),
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/examples");
    serde_json::from_slice(&std::fs::read(folder.join(file)).expect(file)).expect(file)
}

struct Ground {
    database: TestDatabase,
    client: Client,
    topics: Vec<TopicRef>,
    /// Dead letters that are as they should be.
    dead: i64,
    proved: BTreeSet<String>,
}

impl Ground {
    async fn new() -> Ground {
        let database = TestDatabase::create().await;
        let client = database.client().await;
        client
            .batch_execute("INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme')")
            .await
            .unwrap();
        let mut topics = Vec::new();
        for name in catalogue::topic_names() {
            topics.push(catalogue::register(&client, name, "", 1).await.unwrap());
        }
        Ground {
            database,
            client,
            topics,
            dead: 0,
            proved: BTreeSet::new(),
        }
    }

    fn topic(&self, name: &str) -> TopicRef {
        catalogue::find(&self.topics, name).unwrap()
    }

    async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// The first record of a topic, as an actor of its group meets it that has just begun.
    async fn meets<V: Vertical>(
        &self,
        actor: V,
        topic: &TopicRef,
        record: &Value,
    ) -> Result<(), Exit> {
        let own = settings::Database {
            url: Some(self.database.url().to_owned()),
            ..settings::Database::default()
        };
        let of_group: Vec<TopicRef> = V::GROUP.topics.iter().map(|n| self.topic(n)).collect();
        let mut core = Core::launch(
            actor,
            connector(
                &Database::new(&own, "test").unwrap(),
                Duration::from_secs(2),
            ),
            ManualClock::at(NOW),
            of_group.into(),
            0,
            "test",
            Arc::new(AtomicBool::new(false)),
        )
        .await
        .unwrap();
        let mut batch = Batch::new(0);
        batch.push(topic.no, 0, b"1:u", record.to_string().as_bytes());
        core.process(&batch).await
    }

    async fn proves<V: Vertical>(&mut self, make: impl Fn() -> V) {
        for name in V::GROUP.topics {
            let topic = self.topic(name);
            // The next version, and one that no sixteen bits hold; as this build would write the rest, and in another shape.
            for version in [json!(WIRE_VERSION + 1), json!(70_000)] {
                let mut alike = example(name);
                assert_eq!(alike["v"], json!(WIRE_VERSION), "{name}");
                alike["v"] = version.clone();
                for record in [
                    alike,
                    json!({"v": version, "kind": [1], "at": {"seconds": 1}}),
                ] {
                    let exit = self.meets(make(), &topic, &record).await;
                    let Err(Exit::Stopped(why)) = exit else {
                        panic!("{name}: {record}: {exit:?}");
                    };
                    let said = why.starts_with(NEWER) && why.contains(&version.to_string());
                    assert!(said && why.contains(name), "{name}: {why}");
                    let stored = "SELECT count(*) FROM ownership WHERE stopped_reason LIKE '%upgrade this process first%'";
                    assert_eq!(self.count(stored).await, 1, "{name}");
                    assert_eq!(
                        self.count("SELECT count(*) FROM dead_letters").await,
                        self.dead,
                        "{name}"
                    );
                    let moved = format!(
                        "SELECT count(*) FROM positions WHERE topic_no = {} AND next_offset > 0",
                        topic.no
                    );
                    assert_eq!(
                        self.count(&moved).await,
                        0,
                        "{name}: it is no longer there to be read"
                    );
                    self.client
                        .batch_execute(
                            "UPDATE ownership SET stopped_reason = NULL, stopped_at = NULL",
                        )
                        .await
                        .unwrap();
                }
            }
            // What is no record of any version is a dead letter: the same way ends so for it.
            self.meets(make(), &topic, &json!(7)).await.unwrap();
            self.dead += 1;
            assert_eq!(
                self.count("SELECT count(*) FROM dead_letters").await,
                self.dead,
                "{name}"
            );
            self.proved.insert((*name).to_owned());
        }
    }
}

#[tokio::test]
async fn a_record_of_a_newer_build_stops_its_partition_in_every_topic() {
    let mut ground = Ground::new().await;
    let modules: Arc<Modules> = Arc::new(shipped::load(&["uo".to_owned()], None).unwrap());
    let (triggers, notices) = (ground.topic(TRIGGERS).no, ground.topic(NOTICES).no);
    for group in GROUPS {
        if group.name == ATTRIBUTION.name {
            let own = settings::Attribution::default();
            ground.proves(|| Attribution::new(own.clone())).await;
        } else if group.name == THRESHOLDS.name {
            let own = settings::Thresholds { slice_keys: 100 };
            ground
                .proves(|| Thresholds::new(Arc::clone(&modules).into(), own.clone(), triggers))
                .await;
        } else if group.name == ENGAGEMENT.name {
            ground
                .proves(|| Engagement::new(Arc::clone(&modules).into(), notices))
                .await;
        } else if group.name == RECIPIENTS.name {
            ground.proves(|| Recipients::new(Configured::ALL)).await;
        } else if group.name == DIRECTORY.name {
            ground.proves(|| Directory).await;
        }
    }
    let all: BTreeSet<String> = catalogue::topic_names()
        .into_iter()
        .map(str::to_owned)
        .collect();
    assert_eq!(ground.proved, all, "a topic's group is not run here");
}
