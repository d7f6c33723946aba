//! From a frame to the inbox, through all that lies between, with the rules that module `uo` seeds: what an operator has who
//! switches a rule on and changes nothing.

use super::world::{Actor, T0, deliver, relayed};
use crate::thresholds::walks::{city, decay};
use millrace::directory::seeds;
use millrace::engagement::actor::Engagement;
use millrace::modules::{Modules, shipped};
use millrace::postgres::types::Tz;
use millrace::recipients::actor::Recipients;
use millrace::recipients::facts::Configured;
use millrace::runtime::clock::ManualClock;
use millrace::settings;
use millrace::thresholds::actor::Thresholds;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::frame::Frame;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::TestDatabase;
use millrace_topics::catalogue;
use millrace_topics::contract::TopicRef;
use serde_json::{Value, json};
use std::sync::Arc;

const SHARD: &str = "atlantic";
const MINUTE: i64 = 60;
const HOUR: i64 = 3_600;

/// A shard's feed, and an actor of each group that it goes through.
struct Walk {
    db: TestDatabase,
    client: tokio_postgres::Client,
    clock: Arc<ManualClock>,
    modules: Arc<Modules>,
    ws: i32,
    thresholds: Actor<Thresholds>,
    engagement: Actor<Engagement>,
    recipients: Actor<Recipients>,
    now: Micros,
    boot: String,
    seq: u64,
}

impl Walk {
    /// With these of the seeded rules switched on, by their triggers.
    async fn with(rules: &[&str]) -> Walk {
        let db = TestDatabase::create().await;
        let mut client = db.client().await;
        let clock = ManualClock::at(T0);
        let ws: i32 = client
            .query_one(
                "INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme') RETURNING workspace_id",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        let modules = Arc::new(shipped::load(&["uo".to_owned()], None).unwrap());
        let tx = client.transaction().await.unwrap();
        let seeded = seeds::seed(&tx, &modules, Some(ws), T0).await.unwrap();
        tx.commit().await.unwrap();
        assert!(seeded > 20, "{seeded} rules");
        let switched = client
            .execute(
                "UPDATE rules SET enabled = true WHERE trigger_id = ANY($1)",
                &[&rules],
            )
            .await
            .unwrap();
        assert_eq!(switched, rules.len() as u64);
        let mut topics = Vec::new();
        for topic in [catalogue::FRAMES, catalogue::TRIGGERS, catalogue::NOTICES] {
            topics.push(catalogue::register(&client, topic, "", 1).await.unwrap());
        }
        let [frames, triggers, notices]: [TopicRef; 3] = topics.try_into().unwrap();
        let url = db.url();
        let trackers = settings::Thresholds { slice_keys: 100 };
        let thresholds = Thresholds::new(Arc::clone(&modules).into(), trackers, triggers.no);
        let engagement = Engagement::new(Arc::clone(&modules).into(), notices.no);
        // So few that cooldowns are asked of the store again.
        let few = settings::Recipients { slice_keys: 2 };
        let recipients = Recipients::new(Configured::ALL).with(few);
        Walk {
            thresholds: Actor::launch(url, thresholds, &clock, &frames, 0).await,
            engagement: Actor::launch(url, engagement, &clock, &triggers, 0).await,
            recipients: Actor::launch(url, recipients, &clock, &notices, 0).await,
            db,
            client,
            clock,
            modules,
            ws,
            now: T0,
            boot: "a".to_owned(),
            seq: 0,
        }
    }

    async fn user(&self, id: &str) {
        self.client
            .execute(
                "INSERT INTO users (workspace_id, user_id, email, email_verified, changed_at)
                 VALUES ($1, $2, concat($2::text, '@people.example'), true, now())",
                &[&self.ws, &id],
            )
            .await
            .unwrap();
    }

    async fn link(&self, account: &str, user: &str) {
        self.link_on(SHARD, account, user).await;
    }

    async fn link_on(&self, shard: &str, account: &str, user: &str) {
        self.client
            .execute(
                "INSERT INTO links (workspace_id, module, shard, account, user_id, linked_at, live, link_id)
                 VALUES ($1, 'uo', $2, $3, $4, '2026-01-01', true, concat('ln_', $2::text, $3::text))",
                &[&self.ws, &shard, &account, &user],
            )
            .await
            .unwrap();
    }

    /// The account is nobody's from now on; a tombstone stays.
    async fn unlink(&self, account: &str) {
        let n = self
            .client
            .execute(
                "UPDATE links SET live = false, unlinked_at = $3 WHERE shard = $1 AND account = $2 AND live",
                &[&SHARD, &account, &Tz(self.now)],
            )
            .await
            .unwrap();
        assert_eq!(n, 1);
    }

    async fn subscribes(&self, user: &str, trigger: &str) {
        self.client
            .execute(
                "INSERT INTO preferences (workspace_id, user_id, stream_id, channel, mode, changed_at)
                 VALUES ($1, $2, $3, 'inapp', 'instant', now())",
                &[&self.ws, &user, &trigger],
            )
            .await
            .unwrap();
    }

    fn later(&mut self, secs: i64) {
        self.now = self.now.plus_secs(secs);
        self.clock.set(self.now);
    }

    /// A frame goes all the way to the outbox.
    async fn on(&mut self, kind: &str, body: Value) {
        self.on_shard(SHARD, kind, body).await;
    }

    /// As [`Walk::on`], of any shard: all count on in one sequence, with gaps in each one's.
    async fn on_shard(&mut self, shard: &str, kind: &str, body: Value) {
        self.seq += 1;
        let text = body.to_string();
        let module = self.modules.get("uo").unwrap();
        let key = module.kind(kind).map_or_else(
            || shard.to_owned(),
            |k| k.key_of(shard, &text).unwrap().expect("a key"),
        );
        let frame = Frame {
            v: WIRE_VERSION,
            ws: self.ws,
            shard: shard.to_owned(),
            boot: self.boot.clone(),
            seq: self.seq,
            kind: kind.to_owned(),
            key,
            accepted_at: self.now,
            body: serde_json::from_str(&text).unwrap(),
            replay: None,
        };
        let payload = serde_json::to_vec(&frame).unwrap();
        let record = (frame.log_key().into_bytes(), payload);
        self.thresholds.send(&[record]).await;
        let firings = relayed(&self.client, "thresholds").await;
        self.engagement.send(&firings).await;
        let notices = relayed(&self.client, "engagement").await;
        self.recipients.send(&notices).await;
    }

    /// What is due by now goes out, in-app: nobody here wants mail.
    async fn deliver(&self) {
        deliver(&self.client, self.db.url(), &self.clock, self.now).await;
    }

    async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.client.query(sql, &[]).await.unwrap();
        rows.iter().map(|r| r.get(0)).collect()
    }

    /// `trigger channel user subject status reason` of every message, in the order in which they were decided.
    async fn outbox(&self) -> Vec<String> {
        self.texts(
            "SELECT concat_ws(' ', payload ->> 'trigger', channel, user_id, subject_key, status, status_reason) FROM outbox
             ORDER BY created_at, 1",
        )
        .await
    }

    /// `trigger user` of every inbox.
    async fn inboxes(&self) -> Vec<String> {
        self.texts(
            "SELECT concat_ws(' ', trigger_id, user_id) FROM user_notifications ORDER BY created_at, 1",
        )
        .await
    }

    /// `trigger gate reason` of what gates 1 to 4 refused.
    async fn refused_by_rule(&self) -> Vec<String> {
        self.texts(
            "SELECT concat_ws(' ', trigger_id, gate, reason) FROM firing_rules JOIN firings USING (firing_pos) WHERE gate > 0
             ORDER BY 1",
        )
        .await
    }

    /// `gate reason times` of what gates 5 to 8 held back in-app.
    async fn held_back(&self) -> Vec<String> {
        self.texts(
            "SELECT concat_ws(' ', gate, reason, count(*)) FROM refusals WHERE channel = 'inapp' GROUP BY gate, reason ORDER BY 1",
        )
        .await
    }
}

/// Down and up again, three times within the hour: whoever asked to hear of it hears once that it is down.
#[actix::test]
async fn a_server_restarted_three_times_is_told_of_once() {
    let mut w = Walk::with(&["uo.server.down", "uo.server.up"]).await;
    for user in ["ann", "bob"] {
        w.user(user).await;
    }
    w.subscribes("ann", "uo.server.down").await;
    for boot in ["b", "c", "d"] {
        w.later(5 * MINUTE);
        let down = json!({"shard": SHARD, "name": "Atlantic", "reason": "restart"});
        w.on("server.shutdown", down).await;
        w.later(MINUTE);
        (w.boot, w.seq) = (boot.to_owned(), 0);
        let hello = json!({"protocol": 5, "shard": SHARD, "boot": boot, "server": "ServUO 57.4", "name": "Atlantic"});
        w.on("server.hello", hello).await;
    }
    w.deliver().await;
    let firings = w.texts(
        "SELECT concat_ws(' ', trigger_id, count(*)) FROM firings GROUP BY trigger_id ORDER BY 1",
    );
    assert_eq!(firings.await, ["uo.server.down 3", "uo.server.up 3"]);
    let told = ["uo.server.down inapp ann atlantic sent"];
    assert_eq!(w.outbox().await, told);
    assert_eq!(w.inboxes().await, ["uo.server.down ann"]);
    assert_eq!(w.held_back().await, ["7 cooldown 2"]);
    // Nobody asked to hear that it is up.
    assert_eq!(w.refused_by_rule().await, ["uo.server.up 3 nobody"; 3]);
    // An hour after the first it is news again.
    w.later(HOUR);
    let down = json!({"shard": SHARD, "name": "Atlantic", "reason": "restart"});
    w.on("server.shutdown", down).await;
    w.deliver().await;
    assert_eq!(w.inboxes().await.len(), 2);
}

/// A house about to fall: its owner hears of it a quarter of an hour later, once a day, and not if it was put in order meanwhile.
#[actix::test]
async fn a_warning_comes_once_and_not_if_the_house_was_refreshed() {
    let mut w = Walk::with(&["uo.house.idoc_warning"]).await;
    w.user("u1").await;
    w.link("ann", "u1").await;
    for house in ["0x1", "0x2", "0x3"] {
        w.on("house.decay", decay(house, Some("Fairly"), "Greatly"))
            .await;
    }
    let waits = |house: &str| format!("uo.house.idoc_warning inapp u1 {house} scheduled");
    assert_eq!(w.outbox().await, ["0x1", "0x2", "0x3"].map(waits));
    // Not due yet: nothing goes out.
    w.later(5 * MINUTE);
    w.deliver().await;
    assert_eq!(w.inboxes().await, Vec::<String>::new());
    // Both words mean out of danger.
    w.on("house.decay", decay("0x1", Some("Greatly"), "Ageless"))
        .await;
    w.on("house.decay", decay("0x2", Some("Greatly"), "LikeNew"))
        .await;
    assert_eq!(w.outbox().await, ["0x1", "0x2", "0x3"].map(waits));
    w.later(11 * MINUTE);
    w.deliver().await;
    let told = [
        "uo.house.idoc_warning inapp u1 0x1 cancelled called_off",
        "uo.house.idoc_warning inapp u1 0x2 cancelled called_off",
        "uo.house.idoc_warning inapp u1 0x3 sent",
    ];
    assert_eq!(w.outbox().await, told);
    assert_eq!(w.inboxes().await, ["uo.house.idoc_warning u1"]);
    let log = "SELECT concat_ws(' ', result, code, count(*)) FROM send_log GROUP BY result, code ORDER BY 1";
    assert_eq!(
        w.texts(log).await,
        ["cancelled called_off 2", "delivered written 1"]
    );
    // The rule of its own for a refresh is switched off: it called off, and told nothing.
    let refreshed = ["uo.house.refreshed 1 rule_off"; 2];
    assert_eq!(w.refused_by_rule().await, refreshed);

    // The next stage of the third house, and the first once more: each has a cooldown of its own, of a day.
    w.later(6 * HOUR);
    w.on("house.decay", decay("0x3", Some("Greatly"), "IDOC"))
        .await;
    w.on("house.decay", decay("0x1", Some("Ageless"), "Greatly"))
        .await;
    assert_eq!(w.outbox().await.len(), 3);
    assert_eq!(w.held_back().await, ["7 cooldown 2"]);
    w.on("house.decay", decay("0x4", Some("Fairly"), "IDOC"))
        .await;
    w.later(18 * HOUR);
    w.on("house.decay", decay("0x2", Some("LikeNew"), "IDOC"))
        .await;
    w.later(HOUR);
    w.deliver().await;
    let inboxes = w.inboxes().await;
    assert_eq!(inboxes, ["uo.house.idoc_warning u1"; 3]);
}

/// First seen at one stage and two days later at the next: the rule's cooldown of a day is over by then, and its owner hears of
/// both.
#[actix::test]
async fn a_house_first_seen_at_greatly_and_two_days_later_at_idoc_is_told_of_twice() {
    let mut w = Walk::with(&["uo.house.idoc_warning"]).await;
    w.user("u1").await;
    w.link("ann", "u1").await;
    w.on("house.decay", decay("0x1", None, "Greatly")).await;
    w.later(15 * MINUTE);
    w.deliver().await;
    assert_eq!(w.inboxes().await, ["uo.house.idoc_warning u1"]);
    w.later(48 * HOUR - 15 * MINUTE);
    w.on("house.decay", decay("0x1", Some("Greatly"), "IDOC"))
        .await;
    let row = |status: &str| format!("uo.house.idoc_warning inapp u1 0x1 {status}");
    assert_eq!(w.outbox().await, [row("sent"), row("scheduled")]);
    w.later(15 * MINUTE);
    w.deliver().await;
    assert_eq!(w.outbox().await, [row("sent"), row("sent")]);
    assert_eq!(w.inboxes().await, ["uo.house.idoc_warning u1"; 2]);
    assert_eq!(w.held_back().await, Vec::<String>::new());
}

/// The server says that an account was unlinked, before the directory has heard of it or after: whoever had it is told, though no
/// link of theirs is left when the message leaves. What the account alone would have let them hear is held back then.
#[actix::test]
async fn who_lost_an_account_is_told_in_either_order() {
    let mut w = Walk::with(&["uo.account.unlinked", "uo.house.idoc_warning"]).await;
    for (account, user) in [("ann", "u1"), ("bob", "u2")] {
        w.user(user).await;
        w.link(account, user).await;
    }
    // Waits for a quarter of an hour, and hangs on ann's link.
    w.on("house.decay", decay("0x1", Some("Fairly"), "Greatly"))
        .await;
    w.later(MINUTE);
    // The frame first: the message is there before the link is gone.
    w.on("account.unlinked", json!({"acct": "ann"})).await;
    let warning = |status: &str| format!("uo.house.idoc_warning inapp u1 0x1 {status}");
    let lost = |user: &str, account: &str, status: &str| {
        format!("uo.account.unlinked inapp {user} {account} {status}")
    };
    let waits = [warning("scheduled"), lost("u1", "ann", "scheduled")];
    assert_eq!(w.outbox().await, waits);
    w.unlink("ann").await;
    // And the link first.
    w.unlink("bob").await;
    w.later(MINUTE);
    w.on("account.unlinked", json!({"acct": "bob"})).await;
    w.deliver().await;
    let told = [
        warning("scheduled"),
        lost("u1", "ann", "sent"),
        lost("u2", "bob", "sent"),
    ];
    assert_eq!(w.outbox().await, told);
    let inboxes = ["uo.account.unlinked u1", "uo.account.unlinked u2"];
    assert_eq!(w.inboxes().await, inboxes);
    // The house is not theirs to hear of any more.
    w.later(15 * MINUTE);
    w.deliver().await;
    let rows = w.outbox().await;
    assert_eq!(rows[0], warning("suppressed ceiling"));
    assert_eq!(rows.len(), 3);
    assert_eq!(w.inboxes().await, inboxes);
    assert_eq!(w.refused_by_rule().await, Vec::<String>::new());
}

/// One frame is a letter to the new governor and a bulletin to whoever subscribed, and neither to the other.
#[actix::test]
async fn one_frame_tells_the_governor_and_the_subscribers() {
    let mut w = Walk::with(&["uo.governor.appointed", "uo.governor.elected"]).await;
    for user in ["u1", "u2", "u3"] {
        w.user(user).await;
    }
    w.link("ann", "u1").await;
    w.link("bob", "u2").await;
    w.subscribes("u3", "uo.governor.elected").await;
    // Who governed before anybody looked is no news.
    w.on("city.update", city("Ann", "ann")).await;
    assert_eq!(w.outbox().await, Vec::<String>::new());
    w.on("city.update", city("Bob", "bob")).await;
    w.on("city.update", city("Bob", "bob")).await;
    w.deliver().await;
    let told = [
        "uo.governor.appointed inapp u2 Britain sent",
        "uo.governor.elected inapp u3 Britain sent",
    ];
    assert_eq!(w.outbox().await, told);
    let mut inboxes = w.inboxes().await;
    inboxes.sort();
    let news = ["uo.governor.appointed u2", "uo.governor.elected u3"];
    assert_eq!(inboxes, news);
    assert_eq!(w.held_back().await, Vec::<String>::new());
}

/// A house of each of two shards has one serial, and one player both: neither cools the other one down, and a refresh calls off its
/// own shard's alone.
#[actix::test]
async fn houses_of_two_shards_with_one_serial_are_two() {
    let mut w = Walk::with(&["uo.house.idoc_warning"]).await;
    w.user("u1").await;
    for shard in [SHARD, "pacific"] {
        w.link_on(shard, "ann", "u1").await;
        let body = decay("0x1", Some("Fairly"), "Greatly");
        w.on_shard(shard, "house.decay", body).await;
    }
    let waits = "uo.house.idoc_warning inapp u1 0x1 scheduled";
    assert_eq!(w.outbox().await, [waits; 2]);
    assert_eq!(w.held_back().await, Vec::<String>::new());
    w.later(5 * MINUTE);
    let body = decay("0x1", Some("Greatly"), "LikeNew");
    w.on_shard("pacific", "house.decay", body).await;
    w.later(11 * MINUTE);
    w.deliver().await;
    let ended = "SELECT concat_ws(' ', shard, status, status_reason) FROM outbox JOIN firings USING (firing_pos) ORDER BY 1";
    let ends = ["atlantic sent", "pacific cancelled called_off"];
    assert_eq!(w.texts(ended).await, ends);
    assert_eq!(w.inboxes().await, ["uo.house.idoc_warning u1"]);
}

/// An account that is linked to nobody: gate 3 says so, and nobody is told, whatever they asked for.
#[actix::test]
async fn an_unlinked_owner_reaches_nobody() {
    let mut w = Walk::with(&["uo.house.idoc_warning", "uo.house.collapsed"]).await;
    w.user("u1").await;
    w.subscribes("u1", "uo.house.idoc_warning").await;
    // Somebody else's account.
    w.link("bob", "u1").await;
    w.on("house.decay", decay("0x1", Some("Fairly"), "Greatly"))
        .await;
    w.on("house.decay", decay("0x1", Some("Greatly"), "Collapsed"))
        .await;
    assert_eq!(
        w.refused_by_rule().await,
        [
            "uo.house.collapsed 3 no_owner",
            "uo.house.idoc_warning 3 no_owner"
        ]
    );
    assert_eq!(w.outbox().await, Vec::<String>::new());
    assert_eq!(w.held_back().await, Vec::<String>::new());
    w.later(HOUR);
    w.deliver().await;
    assert_eq!(w.inboxes().await, Vec::<String>::new());
    // Another house of the account, once it is linked.
    w.link("ann", "u1").await;
    w.on("house.decay", decay("0x2", Some("Fairly"), "IDOC"))
        .await;
    w.later(HOUR);
    w.deliver().await;
    assert_eq!(w.inboxes().await, ["uo.house.idoc_warning u1"]);
}
