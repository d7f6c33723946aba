//! The gates with their store: the product's actor on batches of notices, against the same statements with everything that they need
//! made beforehand. One partition, one connection, a durable server; elapsed time, in turns, a fresh database each.

use super::Options;
use crate::stack::POSTGRES_SETTINGS;
use anyhow::{Context, ensure};
use millrace::postgres::copy::Rows;
use millrace::postgres::pool::Database;
use millrace::postgres::types::Tz;
use millrace::recipients::actor::Recipients;
use millrace::recipients::facts::Configured;
use millrace::recipients::{hour, load, store};
use millrace::runtime::clock::{Clock, SharedClock, SystemClock};
use millrace::runtime::connector::connector;
use millrace::runtime::core::Core;
use millrace::runtime::session::{Connect, Session};
use millrace::settings;
use millrace_schemas::emit::EmitSource;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::{DedicatedServer, TestDatabase};
use millrace_topics::catalogue;
use millrace_topics::contract::{Batch, TopicRef};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// What a contender does with one fresh database, and how long that takes.
pub fn measure(options: &Options) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let server = DedicatedServer::start_durable_with(&POSTGRES_SETTINGS);
    runtime.block_on(async {
        let (mut product, mut bare) = (Vec::new(), Vec::new());
        // Unmeasured: the server makes the files that later rounds use again.
        let scene = Scene::fresh(&server, options).await?;
        scene.bare(options).await?;
        for n in 0..options.rounds.max(1) {
            // Who goes first changes from round to round.
            for turn in 0..2 {
                let scene = Scene::fresh(&server, options).await?;
                if (n + turn) % 2 == 0 {
                    product.push(scene.product(options).await?);
                } else {
                    bare.push(scene.bare(options).await?);
                }
            }
        }
        Ok((product, bare))
    })
}

struct Scene {
    database: TestDatabase,
    connect: Connect,
    session: Session,
    topic: TopicRef,
    ws: i32,
    now: Micros,
}

impl Scene {
    /// A workspace with users who all want their inbox, and one rule.
    async fn fresh(server: &DedicatedServer, options: &Options) -> anyhow::Result<Scene> {
        let database = TestDatabase::create_on(server).await;
        let settings = settings::Database {
            url: Some(database.url().to_owned()),
            ..settings::Database::default()
        };
        let connect = connector(
            &Database::new(&settings, "loadtest")?,
            Duration::from_secs(5),
        );
        let client = connect().await.map_err(anyhow::Error::msg)?;
        let ws: i32 = client
            .query_one(
                "INSERT INTO workspaces (slug, name) VALUES ('bench', 'Bench') RETURNING workspace_id",
                &[],
            )
            .await?
            .get(0);
        let users = i32::try_from(options.users)?;
        client
            .execute(
                "INSERT INTO users (workspace_id, user_id, email, email_verified, changed_at)
                 SELECT $1, 'user-' || n, 'user-' || n || '@people.example', true, now() FROM generate_series(0, $2 - 1) AS n",
                &[&ws, &users],
            )
            .await?;
        client
            .execute(
                "INSERT INTO rules (rule_id, workspace_id, trigger_id, name, enabled, channels, delay_s, cooldown_s, hourly_cap)
                 VALUES ('ru_first', $1, 'g.house.warned', 'r', true, '{inapp,email}', 900, 3600, 1000000000)",
                &[&ws],
            )
            .await?;
        let topic = catalogue::register(&client, catalogue::NOTICES, "", 1).await?;
        client.batch_execute("ANALYZE; CHECKPOINT").await?;
        Ok(Scene {
            database,
            connect,
            session: Session::new(client),
            topic,
            ws,
            now: SystemClock.wall(),
        })
    }

    fn batches(&self, options: &Options) -> anyhow::Result<Vec<Batch>> {
        let records: Vec<u32> = (0..options.stored).collect();
        let mut batches = Vec::new();
        for chunk in records.chunks(options.batch.max(1)) {
            let mut batch = Batch::new(0);
            for n in chunk {
                let user = n.wrapping_mul(7_919) % options.users.max(1);
                let notice = json!({
                    "v": 1, "ws": self.ws, "user": format!("user-{user}"), "firing": format!("3-0-{n}-0"),
                    "firing_pos": {"generation": 4, "partition": 0, "offset": n}, "trigger": "g.house.warned", "module": "g",
                    "shard": "s1", "subject": format!("0x{n:x}"), "scope": "", "dedupe_key": format!("g.house.warned:s1:b1:{n}"),
                    "vars": {"stage": "late", "house": format!("0x{n:x}"), "name": "The tower by the river"},
                    "body": {"title": "A house decays", "intro": "A house is about to fall."},
                    "at": self.now.0, "accepted_at": self.now.0, "ceiling": "owner",
                    "rules": [{"id": "ru_first", "version": 1, "channels": ["inapp", "email"], "delay_s": 900, "cooldown_s": 3_600, "hourly_cap": 1_000_000_000}],
                });
                let source = EmitSource {
                    group: "engagement".to_owned(),
                    partition: 0,
                    seq: (*n).into(),
                };
                let payload = source.stamp(&serde_json::to_vec(&notice)?)?;
                let key = format!("{}:user-{user}", self.ws);
                batch.push(self.topic.no, (*n).into(), key.as_bytes(), &payload);
            }
            batches.push(batch);
        }
        Ok(batches)
    }

    /// Notices a second through the product's actor.
    async fn product(&self, options: &Options) -> anyhow::Result<f64> {
        let clock: SharedClock = Arc::new(SystemClock);
        let topics: Arc<[TopicRef]> = vec![self.topic.clone()].into();
        let launched = Core::launch(
            Recipients::new(Configured::ALL),
            Arc::clone(&self.connect),
            clock,
            topics,
            0,
            "loadtest",
            Arc::default(),
        );
        let mut core = launched.await.map_err(|e| anyhow::anyhow!("{e:?}"))?;
        let batches = self.batches(options)?;
        let begun = Instant::now();
        for batch in &batches {
            let done = core.process(batch).await;
            done.map_err(|e| anyhow::anyhow!("{e:?}"))?;
        }
        let took = begun.elapsed();
        self.check(options).await?;
        Ok(f64::from(options.stored) / took.as_secs_f64())
    }

    /// Notices a second through the statements alone.
    async fn bare(&self, options: &Options) -> anyhow::Result<f64> {
        let days = [self.now.day()];
        let made = millrace::runtime::days::make(
            &self.session,
            &["outbox", "send_log", "refusals"],
            &days,
        );
        made.await.map_err(|e| anyhow::anyhow!("{e:?}"))?;
        let hours = vec![Uuid::from_u128(1)];
        let minute = hour::Hour::empty(self.now).minute();
        let batches: Vec<Bare> = (0..options.stored)
            .collect::<Vec<u32>>()
            .chunks(options.batch.max(1))
            .map(|chunk| Bare::make(self, options, chunk))
            .collect();
        let s = &self.session;
        let begun = Instant::now();
        for b in batches {
            s.batch("BEGIN").await?;
            s.query(load::PEOPLE, &[&b.ws, &b.users]).await?;
            s.query(load::SAID, &[&b.ws, &b.users, &b.triggers]).await?;
            s.query(load::RULES, &[&b.rules]).await?;
            s.query(load::PLACES, &[&vec![self.ws]]).await?;
            s.query(load::MARKS, &[&b.keys]).await?;
            s.query(load::COOLDOWNS, &[&b.keys]).await?;
            s.query(load::SENT, &[&b.ids]).await?;
            s.execute(load::MAKE_HOURS, &[&hours, &minute]).await?;
            s.query(load::LOCK_HOURS, &[&hours]).await?;
            let counts = vec![1_i32; hour::MINUTES];
            s.execute(store::HOURS, &[&hours, &vec![minute], &counts])
                .await?;
            s.execute(store::COOL, &[&b.keys, &b.times]).await?;
            s.execute(store::TOLD, &[&b.ids, &b.ids, &Tz(self.now)])
                .await?;
            s.copy(millrace::delivery::outbox::TO_PEOPLE, b.bodies)
                .await?;
            s.copy(millrace::delivery::outbox::DUE_AFTER, b.due).await?;
            s.copy(store::REFUSED, b.refused).await?;
            s.batch("COMMIT").await?;
        }
        let took = begun.elapsed();
        self.check(options).await?;
        Ok(f64::from(options.stored) / took.as_secs_f64())
    }

    /// Every notice is one message and one refusal.
    async fn check(&self, options: &Options) -> anyhow::Result<()> {
        let row = self
            .session
            .client()
            .query_one(
                "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM refusals), (SELECT count(*) FROM sent_keys)",
                &[],
            )
            .await
            .with_context(|| self.database.name().to_owned())?;
        let got: Vec<i64> = (0..3).map(|i| row.get(i)).collect();
        let n = i64::from(options.stored);
        ensure!(got == [n, n, n], "{got:?} of {n}");
        Ok(())
    }
}

/// One batch's parameters.
struct Bare {
    ws: Vec<i32>,
    users: Vec<String>,
    triggers: Vec<&'static str>,
    rules: Vec<&'static str>,
    keys: Vec<Uuid>,
    ids: Vec<Uuid>,
    times: Vec<Tz>,
    bodies: Rows,
    due: Rows,
    refused: Rows,
}

impl Bare {
    fn make(scene: &Scene, options: &Options, chunk: &[u32]) -> Bare {
        let mut users: Vec<String> = chunk
            .iter()
            .map(|n| format!("user-{}", n.wrapping_mul(7_919) % options.users.max(1)))
            .collect();
        let scatter = |n: &u32, of: u128| {
            let mixed = u128::from(*n) + 1;
            Uuid::from_u128(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834) ^ of)
        };
        let keys: Vec<Uuid> = chunk.iter().map(|n| scatter(n, 1)).collect();
        let ids: Vec<Uuid> = chunk.iter().map(|n| scatter(n, 2)).collect();
        let (mut bodies, mut due, mut refused) = (Rows::new(), Rows::new(), Rows::new());
        let payload = "x".repeat(380);
        for ((id, key), user) in ids.iter().zip(&keys).zip(&users) {
            bodies.row(14).uuid(*id).time(scene.now).i32(scene.ws);
            bodies.text("inapp").i32(1).text("0x40000000").null();
            bodies
                .text("01kbaaaaaaaaaaaaaaaaaaaaaa")
                .text(&format!("\"{payload}\""))
                .uuid(*key);
            bodies.text(user).text("ru_first").uuid(*key).uuid(*key);
            due.row(5).uuid(*id).time(scene.now).i32(1);
            due.time(scene.now.plus_secs(900)).null();
            refused.row(7).uuid(*key).time(scene.now).text(user);
            refused
                .text("ru_first")
                .text("email")
                .i16(5)
                .text("preference_off");
        }
        users.sort_unstable();
        users.dedup();
        Bare {
            ws: vec![scene.ws; users.len()],
            users,
            triggers: vec!["", "g.house.warned"],
            rules: vec!["ru_first"],
            times: vec![Tz(scene.now); keys.len()],
            keys,
            ids,
            bodies,
            due,
            refused,
        }
    }
}
