//! Thresholds on a real PostgreSQL, one database a test: frames in, firings out, with the shipped manifest `uo`.

mod again;
mod forgotten;
mod killed;
mod letters;
mod reload;
mod rosters;
pub mod walks;

use millrace::modules::{Modules, shipped};
use millrace::postgres::pool::Database;
use millrace::runtime::clock::ManualClock;
use millrace::runtime::connector::connector;
use millrace::runtime::core::Core;
use millrace::settings;
use millrace::thresholds::actor::Thresholds;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::firing::Firing;
use millrace_schemas::frame::Frame;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::TestDatabase;
use millrace_topics::catalogue;
use millrace_topics::contract::{Batch, TopicRef};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio_postgres::Client;

/// When the walks begin: 2026-11-30T08:00:00Z.
const DAWN: Micros = Micros(1_796_025_600_000_000);
/// An hour, in seconds.
const HOUR: i64 = 3_600;

/// A partition of thresholds, the shards whose frames it reads, and what came of them.
struct World {
    database: TestDatabase,
    client: Client,
    modules: Arc<Modules>,
    frames: TopicRef,
    triggers: TopicRef,
    core: Core<Thresholds>,
    /// The next offset of the partition.
    next: i64,
    /// The last sequence of each shard, and its boot.
    feeds: BTreeMap<String, (u64, String)>,
    now: Micros,
    /// Emits that were looked at.
    seen: i64,
}

async fn owner(
    url: &str,
    modules: &Arc<Modules>,
    frames: &TopicRef,
    triggers: &TopicRef,
    slice_keys: usize,
) -> Core<Thresholds> {
    let settings = settings::Database {
        url: Some(url.to_owned()),
        ..settings::Database::default()
    };
    let database = Database::new(&settings, "test").unwrap();
    Core::launch(
        Thresholds::new(
            Arc::clone(modules).into(),
            settings::Thresholds { slice_keys },
            triggers.no,
        ),
        connector(&database, Duration::from_secs(2)),
        // Far enough behind nobody: what is accepted is never clamped.
        ManualClock::at(Micros(DAWN.0 * 2)),
        vec![frames.clone()].into(),
        0,
        "test",
        Arc::new(AtomicBool::new(false)),
    )
    .await
    .unwrap()
}

impl World {
    async fn new() -> World {
        let database = TestDatabase::create().await;
        let client = database.client().await;
        client
            .batch_execute("INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme')")
            .await
            .unwrap();
        let modules = Arc::new(shipped::load(&["uo".to_owned()], None).unwrap());
        let frames = catalogue::register(&client, catalogue::FRAMES, "", 1)
            .await
            .unwrap();
        let triggers = catalogue::register(&client, catalogue::TRIGGERS, "", 1)
            .await
            .unwrap();
        let core = owner(database.url(), &modules, &frames, &triggers, 100).await;
        World {
            database,
            client,
            modules,
            frames,
            triggers,
            core,
            next: 0,
            feeds: BTreeMap::new(),
            now: DAWN,
            seen: 0,
        }
    }

    /// Another owner takes the partition over, with nothing in memory.
    async fn another_owner(&mut self) {
        let url = self.database.url();
        self.core = owner(url, &self.modules, &self.frames, &self.triggers, 100).await;
    }

    /// The next frame of a shard, keyed as its feed would.
    fn frame(&mut self, shard: &str, kind: &str, body: Value) -> Frame {
        let (seq, boot) = self
            .feeds
            .entry(shard.to_owned())
            .or_insert_with(|| (0, "first".to_owned()));
        *seq += 1;
        let text = body.to_string();
        let module = self.modules.get("uo").unwrap();
        let key = module.kind(kind).map_or_else(
            || shard.to_owned(),
            |k| k.key_of(shard, &text).unwrap().expect("a key"),
        );
        Frame {
            v: WIRE_VERSION,
            ws: 1,
            shard: shard.to_owned(),
            boot: boot.clone(),
            seq: *seq,
            kind: kind.to_owned(),
            key,
            accepted_at: self.now,
            body: serde_json::from_str(&text).unwrap(),
            replay: None,
        }
    }

    /// The shard's server starts anew.
    fn reboot(&mut self, shard: &str, boot: &str) {
        self.feeds.insert(shard.to_owned(), (0, boot.to_owned()));
    }

    fn later(&mut self, secs: i64) {
        self.now = self.now.plus_secs(secs);
    }

    /// Frames as one batch, at the next offsets.
    fn batch(&mut self, frames: &[Frame]) -> Batch {
        let mut batch = Batch::new(0);
        for frame in frames {
            let payload = serde_json::to_vec(frame).unwrap();
            batch.push(
                self.frames.no,
                self.next,
                frame.log_key().as_bytes(),
                &payload,
            );
            self.next += 1;
        }
        batch
    }

    async fn send(&mut self, frames: &[Frame]) {
        let batch = self.batch(frames);
        self.core.process(&batch).await.unwrap();
    }

    /// Sends one frame and answers what it fired.
    async fn on(&mut self, shard: &str, kind: &str, body: Value) -> Vec<Firing> {
        let frame = self.frame(shard, kind, body);
        self.send(&[frame]).await;
        self.told().await
    }

    /// What was fired since this was asked last.
    async fn told(&mut self) -> Vec<Firing> {
        let rows = self
            .client
            .query(
                "SELECT seq, topic_no, key, payload FROM emits WHERE group_name = 'thresholds' AND seq >= $1 ORDER BY seq",
                &[&self.seen],
            )
            .await
            .unwrap();
        self.seen += rows.len() as i64;
        rows.iter()
            .map(|row| {
                let firing: Firing = serde_json::from_slice(row.get(3)).unwrap();
                assert_eq!(row.get::<_, i32>(1), self.triggers.no);
                assert_eq!(row.get::<_, &[u8]>(2), firing.log_key().as_bytes());
                assert_eq!(firing.fault(), None);
                firing
            })
            .collect()
    }

    async fn link(&self, shard: &str, account: &str, user: &str) {
        self.client
            .execute(
                "INSERT INTO links (workspace_id, module, shard, account, user_id, linked_at, live, link_id)
                 VALUES (1, 'uo', $1, $2, $3, '2026-01-01', true, concat('ln_', $1::text, $2::text, $3::text))",
                &[&shard, &account, &user],
            )
            .await
            .unwrap();
    }

    async fn unlink(&self, shard: &str, account: &str) {
        let at = millrace::postgres::types::Tz(self.now);
        let n = self
            .client
            .execute(
                "UPDATE links SET live = false, unlinked_at = $3 WHERE shard = $1 AND account = $2 AND live",
                &[&shard, &account, &at],
            )
            .await
            .unwrap();
        assert_eq!(n, 1);
    }

    /// Outcomes by name and reason.
    async fn outcomes(&self) -> BTreeMap<(String, String), i64> {
        let rows = self
            .client
            .query(
                "SELECT outcome, reason, n FROM outcomes WHERE group_name = 'thresholds' AND n <> 0",
                &[],
            )
            .await
            .unwrap();
        rows.iter()
            .map(|r| {
                let outcome = Outcome::from_code(r.get(0)).unwrap().name().to_owned();
                ((outcome, r.get(1)), r.get(2))
            })
            .collect()
    }

    /// Everything that thresholds keep in the store, as text: to see that nothing changes.
    async fn kept(&self) -> Vec<String> {
        let rows = self
            .client
            .query(
                "SELECT t::text FROM tracker_states t UNION ALL SELECT r::text FROM roster_members r
                 UNION ALL SELECT e::text FROM emits e UNION ALL SELECT w::text FROM frame_windows w ORDER BY 1",
                &[],
            )
            .await
            .unwrap();
        rows.iter().map(|r| r.get(0)).collect()
    }
}

/// Triggers of firings, without their module.
fn names(firings: &[Firing]) -> Vec<&str> {
    firings
        .iter()
        .map(|f| f.trigger.strip_prefix("uo.").unwrap_or(&f.trigger))
        .collect()
}

fn count(outcomes: &BTreeMap<(String, String), i64>, outcome: &str, reason: &str) -> i64 {
    outcomes
        .get(&(outcome.to_owned(), reason.to_owned()))
        .copied()
        .unwrap_or(0)
}
