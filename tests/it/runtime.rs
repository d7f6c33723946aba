//! The partition-actor shell, run with the smallest stream with state there can be: it adds numbers up by name.

mod emits;
mod host;

use millrace::postgres::pool::Database;
use millrace::runtime::clock::ManualClock;
use millrace::runtime::connector::connector;
use millrace::runtime::core::{Core, Exit};
use millrace::runtime::session::{Connect, Failure, Session};
use millrace::runtime::vertical::{
    DecodeError, Decoded, Effects, Emit, Frontier, Item, Raw, Start, Vertical,
};
use millrace::settings;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::time::{Micros, Now};
use millrace_tests::postgres::TestDatabase;
use millrace_tests::process::eventually;
use millrace_tests::proxy::{Protocol, Proxy};
use millrace_topics::catalogue::{self, GroupSpec};
use millrace_topics::contract::{Batch, TopicRef};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio_postgres::Client;

/// How long what must come may take.
const SOON: Duration = Duration::from_secs(20);

/// Adds up `name=number` records into table `sums`; keeps the sums of the names it saw. `emit=…` also says so to a topic,
/// `mumble=…` in a form that no topic takes, and `panic=…` panics.
#[derive(Default)]
struct Sums {
    held: BTreeMap<String, i64>,
    resets: Arc<AtomicUsize>,
}

impl Vertical for Sums {
    const GROUP: GroupSpec = GroupSpec {
        name: "sums",
        topics: &["numbers"],
    };
    type Record = (String, i64);
    type Due = ();
    type Draft = BTreeMap<String, i64>;

    fn reset(&mut self, _: &Start) {
        self.held.clear();
        self.resets.fetch_add(1, Ordering::SeqCst);
    }

    fn decode(&self, _: &TopicRef, payload: &[u8]) -> Result<Decoded<(String, i64)>, DecodeError> {
        let bad = || DecodeError::Undecodable("no name=number".to_owned());
        let text = std::str::from_utf8(payload).map_err(|_| bad())?;
        let (name, number) = text.split_once('=').ok_or_else(bad)?;
        let record = (name.to_owned(), number.parse().map_err(|_| bad())?);
        Ok(Decoded {
            accepted_at: Micros(1),
            workspace: 0,
            replay: None,
            record,
        })
    }

    async fn load(
        &mut self,
        session: &Session,
        items: &[Item<(String, i64)>],
        _: &[()],
    ) -> Result<(), Failure> {
        let names: Vec<&str> = items
            .iter()
            .map(|i| i.record.0.as_str())
            .filter(|n| !self.held.contains_key(*n))
            .collect();
        for row in session
            .query("SELECT name, sum FROM sums WHERE name = ANY($1)", &[&names])
            .await?
        {
            self.held.insert(row.get(0), row.get(1));
        }
        Ok(())
    }

    fn decide(
        &self,
        draft: &mut Self::Draft,
        effects: &mut Effects,
        item: &Item<(String, i64)>,
        raw: &Raw<'_>,
        _: Now,
    ) {
        let (name, number) = &item.record;
        let sum = draft
            .entry(name.clone())
            .or_insert_with(|| self.held.get(name).copied().unwrap_or(0));
        *sum += number;
        assert!(name != "panic", "asked to");
        effects.tally.add(item.id, Outcome::Applied, "", 1);
        let said = String::from_utf8_lossy(raw.payload(item.index));
        let payload = match name.as_str() {
            "emit" => format!(r#"{{"said":"{said}"}}"#),
            "mumble" => said.into_owned(),
            _ => return,
        };
        effects.emits.push(Emit {
            topic_no: item.id.topic_no,
            key: b"k".to_vec(),
            payload: payload.into_bytes(),
        });
    }

    fn set_aside(&self, draft: &mut Self::Draft, _: &Item<(String, i64)>) {
        let held = || self.held.get("aside").copied().unwrap_or(0);
        *draft.entry("aside".to_owned()).or_insert_with(held) += 1;
    }

    fn decide_due(&self, _: &mut Self::Draft, _: &mut Effects, (): &(), _: Now) {}

    async fn claim(&self, _: &Session, _: &mut Self::Draft) -> Result<(), Failure> {
        Ok(())
    }

    fn settle(&self, _: &mut Self::Draft, _: &mut Effects, _: Now) {}

    async fn write(
        &self,
        session: &Session,
        draft: &Self::Draft,
        _: &[Item<(String, i64)>],
        _: Now,
    ) -> Result<(), Failure> {
        for (name, sum) in draft {
            session
                .execute(
                    "INSERT INTO sums VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET sum = excluded.sum",
                    &[name, sum],
                )
                .await?;
        }
        Ok(())
    }

    fn merge(&mut self, draft: Self::Draft) {
        self.held.extend(draft);
    }

    fn may_be_due(&self, _: Micros) -> bool {
        false
    }

    async fn due(&mut self, _: &Session, _: Micros, _: &Frontier) -> Result<Vec<()>, Failure> {
        Ok(Vec::new())
    }

    fn fact_tables(&self) -> &'static [&'static str] {
        &[]
    }
}

struct World {
    database: TestDatabase,
    client: Client,
    topics: Vec<TopicRef>,
    next: i64,
}

impl World {
    async fn new() -> World {
        let database = TestDatabase::create().await;
        let client = database.client().await;
        client
            .batch_execute(
                "CREATE TABLE sums (name text PRIMARY KEY, sum bigint NOT NULL CHECK (sum < 1000))",
            )
            .await
            .unwrap();
        let topics = vec![
            catalogue::register(&client, "numbers", "", 2)
                .await
                .unwrap(),
        ];
        World {
            database,
            client,
            topics,
            next: 0,
        }
    }

    fn connect(&self, url: &str) -> Connect {
        let settings = settings::Database {
            url: Some(url.to_owned()),
            ..settings::Database::default()
        };
        connector(
            &Database::new(&settings, "test").unwrap(),
            Duration::from_millis(500),
        )
    }

    async fn core(&self, url: &str, resets: &Arc<AtomicUsize>) -> Core<Sums> {
        Core::launch(
            Sums {
                resets: Arc::clone(resets),
                ..Sums::default()
            },
            self.connect(url),
            ManualClock::at(Micros(1)),
            self.topics.clone().into(),
            0,
            "test",
            Arc::new(AtomicBool::new(false)),
        )
        .await
        .unwrap()
    }

    fn batch(&mut self, records: &[&str]) -> Batch {
        let mut batch = Batch::new(0);
        for record in records {
            batch.push(self.topics[0].no, self.next, b"k", record.as_bytes());
            self.next += 1;
        }
        batch
    }

    async fn sum(&self, name: &str) -> i64 {
        let row = self
            .client
            .query_opt("SELECT sum FROM sums WHERE name = $1", &[&name])
            .await
            .unwrap();
        row.map_or(0, |r| r.get(0))
    }

    async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    fn proxy(&self) -> (Proxy, String) {
        let url = self.database.url();
        let (_, rest) = url.split_once('@').unwrap();
        let (address, _) = rest.split_once('/').unwrap();
        let proxy = Proxy::start(address.parse().unwrap(), Protocol::Postgres).unwrap();
        let through = url.replace(address, &proxy.address().to_string());
        (proxy, through)
    }
}

#[tokio::test]
async fn a_panic_in_decide_sets_one_record_aside() {
    let mut w = World::new().await;
    let mut core = w.core(w.database.url(), &Arc::default()).await;
    let batch = w.batch(&["a=1", "panic=7", "a=2", "panic=1", "b=5"]);
    core.process(&batch).await.unwrap();
    assert_eq!(
        (w.sum("a").await, w.sum("b").await, w.sum("panic").await),
        (3, 5, 0)
    );
    assert_eq!(w.sum("aside").await, 2, "told with its death");
    assert_eq!(
        w.count("SELECT count(*) FROM dead_letters WHERE reason = 'panicked'")
            .await,
        2
    );
    assert_eq!(w.count("SELECT sum(n)::int8 FROM outcomes").await, 5);
    assert_eq!(w.count("SELECT next_offset FROM positions").await, 5);
}

#[tokio::test]
async fn data_that_the_store_refuses_is_isolated() {
    let mut w = World::new().await;
    let mut core = w.core(w.database.url(), &Arc::default()).await;
    let batch = w.batch(&["a=1", "b=2", "b=5000", "a=3", "c=4", "b=1"]);
    core.process(&batch).await.unwrap();
    assert_eq!(
        (w.sum("a").await, w.sum("b").await, w.sum("c").await),
        (4, 3, 4)
    );
    assert_eq!(
        w.count(
            "SELECT count(*) FROM dead_letters WHERE reason = 'data_refused' AND \"offset\" = 2"
        )
        .await,
        1
    );
}

#[tokio::test]
async fn a_topic_of_poison_stops_the_partition_rather_than_be_poured_away() {
    let mut w = World::new().await;
    let mut core = w.core(w.database.url(), &Arc::default()).await;
    let records: Vec<&str> = std::iter::once("a=1")
        .chain(std::iter::repeat_n("nonsense", 200))
        .collect();
    let batch = w.batch(&records);
    assert!(matches!(core.process(&batch).await, Err(Exit::Stopped(_))));
    assert_eq!(w.count("SELECT count(*) FROM dead_letters").await, 50);
    assert_eq!(w.count("SELECT next_offset FROM positions").await, 51);
    assert_eq!(
        w.count("SELECT count(*) FROM ownership WHERE stopped_reason IS NOT NULL")
            .await,
        1
    );
    assert_eq!(w.sum("a").await, 1);
}

#[tokio::test]
async fn a_lost_reply_to_a_commit_neither_loses_nor_doubles() {
    let mut w = World::new().await;
    let (proxy, url) = w.proxy();
    proxy.eat_only_after("UPDATE positions");
    let resets = Arc::default();
    let mut core = w.core(&url, &resets).await;
    let first = w.batch(&["a=1", "a=1"]);
    proxy.eat_commit_reply(0);
    core.process(&first).await.unwrap();
    assert_eq!(proxy.eaten(), 1);
    assert_eq!(
        resets.load(Ordering::SeqCst),
        2,
        "the slice was dropped and read anew"
    );
    let second = w.batch(&["a=1"]);
    core.process(&second).await.unwrap();
    assert_eq!(w.sum("a").await, 3);
    assert_eq!(w.count("SELECT sum(n)::int8 FROM outcomes").await, 3);
    assert_eq!(w.count("SELECT epoch FROM ownership").await, 2);
}

#[tokio::test]
async fn a_zombie_with_an_unknown_commit_does_not_steal_its_partition_back() {
    let mut w = World::new().await;
    let (proxy, url) = w.proxy();
    proxy.eat_only_after("UPDATE positions");
    let mut zombie = w.core(&url, &Arc::default()).await;
    proxy.eat_commit_reply(0);
    // While it does not know, another owner claims: its connection is held back until then.
    let batch = w.batch(&["a=1"]);
    let owner = async {
        eventually("a reply eaten", SOON, async || {
            Ok((proxy.eaten() > 0).then_some(()))
        })
        .await
        .unwrap();
        w.core(w.database.url(), &Arc::default()).await
    };
    let (exit, mut owner) = {
        proxy.latency(Duration::from_millis(20));
        tokio::join!(zombie.process(&batch), owner)
    };
    assert_eq!(exit, Err(Exit::Fenced));
    owner.process(&batch).await.unwrap();
    let next = w.batch(&["a=1"]);
    owner.process(&next).await.unwrap();
    assert_eq!(w.sum("a").await, 2);
}

#[tokio::test]
async fn a_connection_cut_in_the_middle_is_made_again() {
    let mut w = World::new().await;
    let (proxy, url) = w.proxy();
    let mut core = w.core(&url, &Arc::default()).await;
    for n in 1..=3 {
        proxy.cut();
        let batch = w.batch(&["a=1"]);
        core.process(&batch).await.unwrap();
        assert_eq!(w.sum("a").await, n);
    }
}

#[tokio::test]
async fn a_batch_after_a_lost_one_is_not_processed() {
    let mut w = World::new().await;
    let mut core = w.core(w.database.url(), &Arc::default()).await;
    let topic_no = w.topics[0].no;
    let lost = w.batch(&["a=1", "a=1"]);
    let mut next = w.batch(&["a=1"]);
    next.follow(topic_no, 2);
    assert_eq!(core.process(&next).await, Err(Exit::Gap));
    assert_eq!(w.sum("a").await, 0);
    core.process(&lost).await.unwrap();
    core.process(&next).await.unwrap();
    assert_eq!(w.sum("a").await, 3);
}
