//! A workspace with users and rules, and one actor of each group of the gates.

use millrace::delivery::channel::Channel;
use millrace::delivery::dispatcher::{Delivery, DeliveryConfig, MakeChannel};
use millrace::delivery::inapp::InappChannel;
use millrace::delivery::inapp::settings::Inapp;
use millrace::engagement::actor::Engagement;
use millrace::modules::{Modules, compile};
use millrace::postgres::pool::Database;
use millrace::postgres::types::Tz;
use millrace::recipients::actor::Recipients;
use millrace::recipients::facts::Configured;
use millrace::runtime::clock::ManualClock;
use millrace::runtime::connector::connector;
use millrace::runtime::core::Core;
use millrace::runtime::session::Connect;
use millrace::runtime::vertical::Vertical;
use millrace::settings;
use millrace_schemas::emit::EmitSource;
use millrace_schemas::firing::Firing;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::TestDatabase;
use millrace_tests::process::eventually;
use millrace_topics::catalogue;
use millrace_topics::contract::{Batch, TopicRef};
use serde_json::json;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// When everything begins: 2026-11-30T12:00:00Z.
pub const T0: Micros = Micros(1_796_040_000_000_000);

/// How long anything may take here.
const SOON: Duration = Duration::from_secs(60);

const MODULE: &str = r#"
id = "g"
label = "A game"
description = "A game of houses."
protocol = 1

[[trigger]]
id = "g.house.warned"
label = "A house decays"
description = "A house is about to fall."
subject_key = "house"
audience = "owner"
ceiling = "owner"
version = 1
variables = [
    { name = "house", type = "string", required = true, example = "h1" },
    { name = "stage", type = "string", example = "late" },
]

[[trigger]]
id = "g.house.saved"
label = "A house was saved"
description = "A house was refreshed."
subject_key = "house"
audience = "owner"
ceiling = "owner"
version = 1
variables = [ { name = "house", type = "string", required = true, example = "h1" } ]

[[trigger]]
id = "g.page.new"
label = "A call for help"
description = "Somebody calls for the staff."
subject_key = "page"
audience = "staff"
ceiling = "staff"
version = 1
variables = [ { name = "page", type = "string", required = true, example = "p1" } ]

[[trigger]]
id = "g.team.announced"
label = "A team is told"
description = "Somebody tells a team something."
subject_key = "team"
audience = "members"
ceiling = "members"
version = 1
variables = [ { name = "team", type = "string", required = true, example = "7" } ]

[[trigger]]
id = "g.page.audited"
label = "A call was audited"
description = "What the staff did about a call."
subject_key = "page"
audience = "admin"
ceiling = "admin"
version = 1
variables = [ { name = "page", type = "string", required = true, example = "p1" } ]
"#;

/// The test's module and core's declarations.
pub fn modules() -> Arc<Modules> {
    let module = compile("g.toml", MODULE).expect("a good manifest");
    Arc::new(Modules::assemble(vec![("g.toml".to_owned(), module)]).expect("one module"))
}

/// Connections of whoever connects by himself. They wait for a lock as long as a busy machine may take: a test holds some.
pub fn connections(url: &str) -> Connect {
    let database = settings::Database {
        url: Some(url.to_owned()),
        ..settings::Database::default()
    };
    let database = Database::new(&database, "test").unwrap();
    connector(&database, SOON)
}

/// What a group has emitted and nobody has taken yet, as its relay would send it.
pub async fn relayed(client: &tokio_postgres::Client, group: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows = client
        .query(
            "DELETE FROM emits WHERE group_name = $1 RETURNING source_partition, seq, key, payload",
            &[&group],
        )
        .await
        .unwrap();
    let mut rows: Vec<(i64, Vec<u8>, Vec<u8>)> = rows
        .iter()
        .map(|r| {
            let source = EmitSource {
                group: group.to_owned(),
                partition: r.get(0),
                seq: r.get(1),
            };
            let payload: &[u8] = r.get(3);
            (r.get(1), r.get(2), source.stamp(payload).unwrap())
        })
        .collect();
    rows.sort();
    rows.into_iter().map(|(_, key, p)| (key, p)).collect()
}

/// What is due in-app by then goes out through the dispatcher; needs an actix system.
pub async fn deliver(
    client: &tokio_postgres::Client,
    url: &str,
    clock: &Arc<ManualClock>,
    by: Micros,
) {
    let connect = connections(url);
    let config = DeliveryConfig {
        connect: connect.clone(),
        clock: clock.clone(),
        poll: Duration::from_millis(20),
        drain: Duration::from_secs(5),
    };
    let clock = clock.clone();
    let make: MakeChannel = Arc::new(move || {
        let (clock, connect) = (clock.clone(), connect.clone());
        Ok(Rc::new(InappChannel::new(&Inapp::default(), clock, connect)) as Rc<dyn Channel>)
    });
    let delivery = Delivery::start(&config, vec![make]);
    let ended = eventually("nothing is due any more", SOON, async || {
        let due = "SELECT count(*) FROM outbox_due WHERE due_at <= $1";
        let n: i64 = client.query_one(due, &[&Tz(by)]).await?.get(0);
        Ok((n == 0).then_some(()))
    });
    ended.await.unwrap();
    delivery.stop().await;
}

/// An actor, and the offset that its log would give next.
pub struct Actor<V: Vertical> {
    pub core: Core<V>,
    pub topic: TopicRef,
    partition: i32,
    next: i64,
}

impl<V: Vertical> Actor<V> {
    pub async fn launch(
        url: &str,
        vertical: V,
        clock: &Arc<ManualClock>,
        topic: &TopicRef,
        partition: i32,
    ) -> Actor<V> {
        let connect = connections(url);
        let topics: Arc<[TopicRef]> = vec![topic.clone()].into();
        let core = Core::launch(
            vertical,
            connect,
            Arc::clone(clock) as _,
            topics,
            partition,
            "test",
            Arc::default(),
        )
        .await
        .unwrap();
        let next = core.positions().first().map_or(0, |p| p.next_offset);
        Actor {
            core,
            topic: topic.clone(),
            partition,
            next,
        }
    }

    /// Processes records at the next offsets.
    pub async fn send(&mut self, records: &[(Vec<u8>, Vec<u8>)]) {
        let mut batch = Batch::new(self.partition);
        for (key, payload) in records {
            batch.push(self.topic.no, self.next, key, payload);
            self.next += 1;
        }
        self.core.process(&batch).await.unwrap();
    }
}

/// The workspace.
pub struct World {
    pub db: TestDatabase,
    pub client: tokio_postgres::Client,
    pub clock: Arc<ManualClock>,
    pub ws: i32,
    pub engagement: Actor<Engagement>,
    pub recipients: Actor<Recipients>,
    now: Micros,
    words: i64,
}

impl World {
    pub async fn new() -> World {
        let db = TestDatabase::create().await;
        let client = db.client().await;
        let clock = ManualClock::at(T0);
        let ws: i32 = client
            .query_one(
                "INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme') RETURNING workspace_id",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        client
            .execute(
                "INSERT INTO mail_transports (workspace_id, transport_id, enabled, host, port, security, sender_address, brand_name,
                        message_domain)
                 VALUES ($1, 'mt_1', true, 'localhost', 25, 'none', 'a@acme.example', 'Acme', 'acme.example')",
                &[&ws],
            )
            .await
            .unwrap();
        let triggers = catalogue::register(&client, catalogue::TRIGGERS, "", 1)
            .await
            .unwrap();
        let notices = catalogue::register(&client, catalogue::NOTICES, "", 2)
            .await
            .unwrap();
        let engagement = Engagement::new(modules().into(), notices.no);
        let engagement = Actor::launch(db.url(), engagement, &clock, &triggers, 0).await;
        let recipients = Actor::launch(
            db.url(),
            Recipients::new(Configured::ALL),
            &clock,
            &notices,
            0,
        )
        .await;
        World {
            db,
            client,
            clock,
            ws,
            engagement,
            recipients,
            now: T0,
            words: 0,
        }
    }

    /// Both actors anew, from what the store says.
    pub async fn restart(&mut self) {
        let (triggers, notices) = (self.engagement.topic.clone(), self.recipients.topic.clone());
        let engagement = Engagement::new(modules().into(), notices.no);
        self.engagement = Actor::launch(self.db.url(), engagement, &self.clock, &triggers, 0).await;
        self.recipients = Actor::launch(
            self.db.url(),
            Recipients::new(Configured::ALL),
            &self.clock,
            &notices,
            0,
        )
        .await;
    }

    /// It is that late.
    pub fn at(&mut self, now: Micros) {
        self.now = now;
        self.clock.set(now);
    }

    pub async fn user(&self, id: &str, role: &str) {
        let email = format!("{id}@people.example");
        self.client
            .execute(
                "INSERT INTO users (workspace_id, user_id, email, email_verified, role, changed_at)
                 VALUES ($1, $2, $3, true, $4, now())",
                &[&self.ws, &id, &email, &role],
            )
            .await
            .unwrap();
    }

    /// A user says how they want to be told; later words are later.
    pub async fn wants(&mut self, user: &str, stream: &str, channel: &str, mode: &str) {
        self.words += 1;
        self.client
            .execute(
                "INSERT INTO preferences (workspace_id, user_id, stream_id, channel, mode, changed_at)
                 VALUES ($1, $2, $3, $4, $5, to_timestamp($6::int8))",
                &[&self.ws, &user, &stream, &channel, &mode, &self.words],
            )
            .await
            .unwrap();
    }

    /// An enabled rule with a delay of a quarter of an hour.
    pub async fn rule(
        &self,
        id: &str,
        trigger: &str,
        audience: &str,
        channels: &[&str],
        cooldown_s: i64,
        hourly_cap: i32,
    ) {
        self.client
            .execute(
                "INSERT INTO rules (rule_id, workspace_id, trigger_id, name, enabled, channels, audience, delay_s, cooldown_s, hourly_cap)
                 VALUES ($1, $2, $3, $1, true, $4, $5, 900, $6, $7)",
                &[&id, &self.ws, &trigger, &channels, &audience, &cooldown_s, &hourly_cap],
            )
            .await
            .unwrap();
    }

    /// A firing of a trigger about a subject.
    pub fn firing(&self, id: &str, trigger: &str, subject: &str, owner: Option<&str>) -> Firing {
        let name = if trigger.starts_with("g.page") {
            "page"
        } else {
            "house"
        };
        serde_json::from_value(json!({
            "v": 1, "ws": self.ws, "id": id, "trigger": trigger, "module": "g", "shard": "s1", "subject": subject,
            "vars": {name: subject}, "owner": owner, "dedupe": id, "at": self.now.0, "accepted_at": self.now.0
        }))
        .unwrap()
    }

    pub async fn fire(&mut self, firing: &Firing) {
        let payload = serde_json::to_vec(firing).unwrap();
        let record = (firing.log_key().into_bytes(), payload);
        self.engagement.send(&[record]).await;
    }

    pub async fn warned(&mut self, id: &str, house: &str, owner: Option<&str>) {
        let firing = self.firing(id, "g.house.warned", house, owner);
        self.fire(&firing).await;
    }

    /// What engagement has emitted and nobody has taken yet, as its relay would send it.
    pub async fn emitted(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        relayed(&self.client, "engagement").await
    }

    pub async fn receive(&mut self, notices: &[(Vec<u8>, Vec<u8>)]) {
        self.recipients.send(notices).await;
    }

    /// What is due in-app goes out through the dispatcher; needs an actix system.
    pub async fn deliver(&self) {
        deliver(&self.client, self.db.url(), &self.clock, self.now).await;
    }

    /// Everything emitted so far is decided.
    pub async fn notices(&mut self) {
        let notices = self.emitted().await;
        self.receive(&notices).await;
    }

    async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.client.query(sql, &[]).await.unwrap();
        rows.iter().map(|r| r.get(0)).collect()
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// `channel user status` of every message.
    pub async fn outbox(&self) -> Vec<String> {
        self.texts(
            "SELECT concat_ws(' ', channel, user_id, status) FROM outbox ORDER BY created_at, 1",
        )
        .await
    }

    /// `gate channel reason` of every refusal of a firing.
    pub async fn refusals(&self, id: &str) -> Vec<String> {
        self.texts(&format!(
            "SELECT concat_ws(' ', gate, channel, reason) FROM refusals r JOIN firings f USING (firing_pos)
             WHERE f.firing_id = '{id}' ORDER BY 1"
        ))
        .await
    }

    /// `gate rule reason` of every rule of a firing, in rule order.
    pub async fn said(&self, id: &str) -> Vec<String> {
        self.texts(&format!(
            "SELECT concat_ws(' ', gate, rule_id, s.reason) FROM firing_rules s JOIN firings f USING (firing_pos)
             JOIN rules USING (rule_id) WHERE f.firing_id = '{id}' ORDER BY position"
        ))
        .await
    }

    /// `outcome reason n` of a group.
    pub async fn outcomes(&self, group: &str) -> Vec<String> {
        let rows = self
            .client
            .query(
                "SELECT outcome, reason, n FROM outcomes WHERE group_name = $1 AND n <> 0",
                &[&group],
            )
            .await
            .unwrap();
        let name = |code| {
            millrace_schemas::outcome::Outcome::from_code(code)
                .unwrap()
                .name()
        };
        let mut all: Vec<String> = rows
            .iter()
            .map(|r| {
                let (reason, n): (&str, i64) = (r.get(1), r.get(2));
                match reason {
                    "" => format!("{} {n}", name(r.get(0))),
                    _ => format!("{} {reason} {n}", name(r.get(0))),
                }
            })
            .collect();
        all.sort();
        all
    }

    /// Whatever was accepted has an outcome, and whatever was told stands in the outbox, due or ended.
    pub async fn balanced(&self) {
        let unbalanced = "
            SELECT count(*) FROM (
                SELECT group_name, sum(consumed) FROM positions GROUP BY 1
                EXCEPT SELECT group_name, sum(n) FROM outcomes GROUP BY 1) AS differ";
        assert_eq!(self.count(unbalanced).await, 0);
        let untold = "SELECT count(*) FROM sent_keys s WHERE NOT EXISTS (SELECT FROM outbox o WHERE o.outbox_id = s.outbox_id)";
        assert_eq!(self.count(untold).await, 0);
        let unkept = "SELECT count(*) FROM outbox o WHERE o.status = 'scheduled'
                      AND NOT EXISTS (SELECT FROM outbox_due d WHERE d.outbox_id = o.outbox_id)";
        assert_eq!(self.count(unkept).await, 0);
        let counted = "SELECT coalesce(sum(c), 0)::int8 - (SELECT count(*) FROM sent_keys) FROM rule_hours, unnest(counts) AS c";
        // An hour forgets; it never counts what was not told.
        assert!(self.count(counted).await <= 0);
    }
}
