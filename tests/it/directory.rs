//! The directory's stream on real PostgreSQL: records in, users, links and preferences out; and audiences as the store answers them.

use millrace::directory::actor::Directory;
use millrace::directory::audience::{Ask, MOST_REACHED, Unreached, Whom, resolve, resolve_all};
use millrace::directory::segment::{Leaf, Segment};
use millrace::modules::{Modules, shipped};
use millrace::postgres::pool::Database;
use millrace::runtime::clock::ManualClock;
use millrace::runtime::connector::connector;
use millrace::runtime::core::{Core, Exit};
use millrace::settings;
use millrace_schemas::directory::DirectoryRecord;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::TestDatabase;
use millrace_tests::process::eventually;
use millrace_topics::catalogue;
use millrace_topics::contract::{Batch, TopicRef};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio_postgres::Client;

const T0: i64 = 1_790_000_000_000_000;
const SOON: Duration = Duration::from_secs(60);

struct World {
    database: TestDatabase,
    client: Client,
    topic: TopicRef,
    core: Core<Directory>,
    next: i64,
}

impl World {
    async fn new() -> World {
        let database = TestDatabase::create().await;
        let client = database.client().await;
        client
            .batch_execute(
                "INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme'), ('beta', 'Beta')",
            )
            .await
            .unwrap();
        let topic = catalogue::register(&client, catalogue::DIRECTORY_TOPIC, "", 1)
            .await
            .unwrap();
        let core = launch(&database, &topic).await;
        World {
            database,
            client,
            topic,
            core,
            next: 0,
        }
    }

    /// Records as a producer would send them, at the next offsets.
    async fn send(&mut self, records: &[Value]) -> Result<(), Exit> {
        let mut batch = Batch::new(0);
        for record in records {
            batch.push(
                self.topic.no,
                self.next,
                b"1:u",
                record.to_string().as_bytes(),
            );
            self.next += 1;
        }
        self.core.process(&batch).await
    }

    async fn outcomes(&self) -> Vec<String> {
        self.client
            .query("SELECT outcome, reason, n FROM outcomes WHERE group_name = 'directory' ORDER BY 1, 2", &[])
            .await
            .unwrap()
            .iter()
            .map(|r| {
                let outcome = millrace_schemas::outcome::Outcome::from_code(r.get(0)).unwrap().name();
                format!("{outcome}:{} {}", r.get::<_, &str>(1), r.get::<_, i64>(2))
            })
            .collect()
    }

    async fn one(&self, sql: &str) -> Value {
        self.client
            .query_one(&format!("SELECT to_jsonb(q) FROM ({sql}) AS q"), &[])
            .await
            .unwrap()
            .get(0)
    }
}

async fn launch(database: &TestDatabase, topic: &TopicRef) -> Core<Directory> {
    let own = settings::Database {
        url: Some(database.url().to_owned()),
        ..settings::Database::default()
    };
    Core::launch(
        Directory,
        connector(
            &Database::new(&own, "test").unwrap(),
            Duration::from_secs(2),
        ),
        ManualClock::at(Micros(T0 + 60_000_000)),
        vec![topic.clone()].into(),
        0,
        "test",
        Arc::new(AtomicBool::new(false)),
    )
    .await
    .unwrap()
}

fn said(at: i64, change: &str, user: &str, more: Value) -> Value {
    let mut record =
        json!({"v": 1, "ws": 1, "accepted_at": T0 + at, "change": change, "user": user});
    record
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    record
}

#[tokio::test]
async fn records_become_users_links_and_preferences() {
    let mut w = World::new().await;
    let account = json!({"module": "m", "shard": "s", "account": "007"});
    w.send(&[
        said(
            1,
            "user",
            "a",
            json!({"email": "Foo@x.com", "role": "editor", "zone": "Europe/Berlin"}),
        ),
        said(2, "user", "b", json!({"email": "foo@X.com"})),
        said(3, "user", "c", json!({"email": "josé@x.com"})),
        said(4, "user", "d", json!({"email": "jose@x.com"})),
        said(5, "user", "e", json!({"email": "JOSÉ@x.com"})),
        said(6, "login", "a", json!({})),
        said(7, "login", "nobody", json!({})),
        said(8, "unlink", "a", account.clone()),
        said(7, "link", "a", account.clone()),
        said(
            9,
            "preference",
            "a",
            json!({"id": "x.y", "channel": "email", "scope": "team:1", "mode": "digest"}),
        ),
        said(
            8,
            "preference",
            "a",
            json!({"id": "x.y", "channel": "email", "scope": "team:1", "mode": "off"}),
        ),
        said(9, "preference", "a", json!({"channel": "email"})),
        json!({"v": 1, "ws": 99, "accepted_at": T0, "change": "user", "user": "a"}),
    ])
    .await
    .unwrap();
    assert_eq!(
        w.outcomes().await,
        [
            "applied: 7",
            "duplicate:superseded 1",
            "rejected:email_taken 2",
            "rejected:field_malformed 1",
            "rejected:user_unknown 1",
            "rejected:workspace_unknown 1",
        ]
    );
    assert_eq!(
        w.one("SELECT email, email_folded, role, zone, version FROM users WHERE user_id = 'a'")
            .await,
        json!({"email": "Foo@x.com", "email_folded": "foo@x.com", "role": "editor", "zone": "Europe/Berlin", "version": 1})
    );
    assert_eq!(
        w.one("SELECT user_id, live, linked_at < unlinked_at AS ended FROM links")
            .await,
        json!({"user_id": "a", "live": false, "ended": true})
    );
    assert_eq!(
        w.one("SELECT mode, scope FROM preferences").await,
        json!({"mode": "digest", "scope": "team:1"})
    );
    assert_eq!(
        w.one("SELECT sum(n) AS n FROM directory_rejects").await,
        json!({"n": 5})
    );
    // A process that starts anew goes on where this one stood; two who change addresses for each other's may.
    w.core = launch(&w.database, &w.topic).await;
    w.send(&[
        said(20, "user", "a", json!({"email": "jose@x.com"})),
        said(21, "user", "d", json!({"email": "foo@x.com"})),
    ])
    .await
    .unwrap();
    assert_eq!(
        w.outcomes().await[2],
        "rejected:email_taken 4",
        "each came while the other still had it"
    );
    w.send(&[
        said(30, "user", "d", json!({})),
        said(31, "user", "a", json!({"email": "jose@x.com"})),
        said(32, "user", "d", json!({"email": "foo@x.com"})),
    ])
    .await
    .unwrap();
    assert_eq!(
        w.one("SELECT string_agg(user_id || '=' || email_folded, ' ' ORDER BY user_id) AS all FROM users").await,
        json!({"all": "a=jose@x.com c=josé@x.com d=foo@x.com"})
    );
}

#[tokio::test]
async fn what_an_operator_says_stands_until_something_newer_comes() {
    let mut w = World::new().await;
    let account = json!({"module": "m", "shard": "s", "account": "7"});
    let user = |at, name: &str| said(at, "user", "a", json!({"name": name}));
    w.send(&[user(5, "first"), said(5, "link", "a", account.clone())])
        .await
        .unwrap();
    let tx_user = "UPDATE users SET name = 'operator', changed_at = changed_at + interval '1 microsecond', changed_topic = 0";
    w.client.execute(tx_user, &[]).await.unwrap();
    let unlink: DirectoryRecord = serde_json::from_value(said(0, "unlink", "a", account)).unwrap();
    let tx = w.client.transaction().await.unwrap();
    millrace::directory::operator::apply(&tx, vec![unlink], Micros(T0), "op")
        .await
        .unwrap()
        .unwrap();
    tx.commit().await.unwrap();
    w.send(&[user(5, "replayed")]).await.unwrap();
    assert_eq!(
        w.one("SELECT name FROM users").await,
        json!({"name": "operator"})
    );
    assert_eq!(
        w.one("SELECT live, updated_by FROM links").await,
        json!({"live": false, "updated_by": "op"})
    );
    w.send(&[user(9, "newer")]).await.unwrap();
    assert_eq!(
        w.one("SELECT name FROM users").await,
        json!({"name": "newer"})
    );
}

/// The API gives an address to somebody else between the batch's look at it and its writing: the store refuses the batch, which
/// runs again, sees the owner and says so. No record is set aside for it.
#[tokio::test]
async fn an_address_that_is_taken_in_the_same_moment_is_taken() {
    let mut w = World::new().await;
    let (mut other, eyes) = (w.database.client().await, w.database.client().await);
    let taking = other.transaction().await.unwrap();
    taking
        .execute(
            "INSERT INTO users (workspace_id, user_id, email, changed_at) VALUES (1, 'z', 'foo@x.com', now())",
            &[],
        )
        .await
        .unwrap();
    let records = [
        said(1, "user", "a", json!({"email": "Foo@X.com"})),
        said(2, "user", "b", json!({"email": "bar@x.com"})),
    ];
    let taken = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually("the batch waits for the address", SOON, async || {
            let n: i64 = eyes.query_one(waiting, &[]).await?.get(0);
            Ok((n > 0).then_some(()))
        })
        .await
        .unwrap();
        taking.commit().await.unwrap();
    };
    let (sent, ()) = tokio::join!(w.send(&records), taken);
    sent.unwrap();
    assert_eq!(w.outcomes().await, ["applied: 1", "rejected:email_taken 1"]);
    assert_eq!(
        w.one("SELECT count(*) AS n FROM dead_letters").await,
        json!({"n": 0})
    );
    assert_eq!(
        w.one("SELECT string_agg(user_id || '=' || email_folded, ' ' ORDER BY user_id) AS all FROM users").await,
        json!({"all": "b=bar@x.com z=foo@x.com"})
    );
}

#[tokio::test]
async fn a_newer_wire_version_stops_and_nonsense_is_a_dead_letter() {
    let mut w = World::new().await;
    w.send(&[json!({"v": 1, "ws": 1}), json!(7)]).await.unwrap();
    assert_eq!(w.outcomes().await, ["dead_lettered:undecodable 2"]);
    for record in [
        said(1, "user", "a", json!({"v": 2})),
        json!({"v": 70_000, "ws": "changed"}),
    ] {
        let exit = w.send(std::slice::from_ref(&record)).await;
        assert!(
            matches!(&exit, Err(Exit::Stopped(why)) if why.contains("upgrade")),
            "{exit:?}"
        );
        w.client
            .batch_execute("UPDATE ownership SET stopped_reason = NULL, stopped_at = NULL")
            .await
            .unwrap();
        w.next -= 1;
        w.core = launch(&w.database, &w.topic).await;
    }
}

/// Users `u0` to `u9` with roles, links and one who is disabled.
async fn people(w: &World) -> BTreeMap<&'static str, BTreeSet<String>> {
    w.client
        .batch_execute(
            "INSERT INTO users (workspace_id, user_id, changed_at, role, status)
             SELECT ws, 'u' || n, now(), CASE WHEN n % 5 = 0 THEN 'admin' WHEN n % 3 = 0 THEN 'editor' ELSE 'user' END,
                    CASE WHEN n = 9 THEN 'disabled' ELSE 'active' END
             FROM generate_series(0, 9) AS n, unnest(ARRAY[1, 2]) AS ws;
             INSERT INTO links (workspace_id, module, shard, account, user_id, link_id, live)
             SELECT 1, 'survival', CASE WHEN n < 5 THEN 'north' ELSE 'south' END, 'acc' || n, 'u' || n, 'ln' || n, n <> 4
             FROM generate_series(2, 9) AS n;
             CREATE TABLE IF NOT EXISTS roster_members (workspace integer NOT NULL, module text NOT NULL, roster text NOT NULL,
                 shard text NOT NULL, param text NOT NULL, slot text NOT NULL, account text NOT NULL);
             INSERT INTO roster_members (workspace, module, roster, shard, param, slot, account)
             SELECT 1, 'survival', 'survival.clan.members', CASE WHEN n < 5 THEN 'north' ELSE 'south' END, 'red', 'acc' || n, 'acc' || n
             FROM generate_series(3, 6) AS n;
             INSERT INTO preferences (workspace_id, user_id, stream_id, channel, mode, changed_at)
             VALUES (1, 'u1', 's', 'email', 'instant', now()), (1, 'u1', 's', 'push', 'off', now()),
                    (1, 'u2', 's', 'push', 'off', now()), (1, 'u3', 't', 'push', 'instant', now())",
        )
        .await
        .unwrap();
    let of = |ns: &[i32]| ns.iter().map(|n| format!("u{n}")).collect::<BTreeSet<_>>();
    BTreeMap::from([
        ("everyone", of(&[0, 1, 2, 3, 4, 5, 6, 7, 8])),
        ("staff", of(&[0, 3, 5, 6])),
        ("admin", of(&[0, 5])),
        ("survival.linked.accounts", of(&[2, 3, 5, 6, 7, 8])),
        ("survival.clan.members", of(&[3, 5, 6])),
    ])
}

fn survival() -> Modules {
    shipped::load(&["survival".to_owned()], None).expect("the shipped manifest")
}

async fn users(w: &World, modules: &Modules, whom: Whom<'_>) -> BTreeSet<String> {
    let reached = resolve(&w.client, modules, &Ask { ws: 1, whom })
        .await
        .unwrap();
    reached.users.iter().cloned().collect()
}

#[tokio::test]
async fn audiences_are_what_their_sets_are() {
    let w = World::new().await;
    let (modules, sets) = (survival(), people(&w).await);
    let audience = |id: &str| match id {
        "survival.clan.members" => json!({"audience": id, "params": {"clan": "red"}}),
        _ => json!({"audience": id}),
    };
    let group = |op: &str, nodes: &[Value]| json!({"op": op, "nodes": nodes});
    let of = |leaf: &Leaf| sets[leaf.audience.as_str()].clone();
    let ids: Vec<&str> = sets.keys().copied().collect();
    // All pairs, united, intersected and taken away; what has no ceiling is nobody.
    for a in &ids {
        for b in &ids {
            let (a, b) = (audience(a), audience(b));
            for tree in [
                a.clone(),
                group("or", &[a.clone(), b.clone()]),
                group("and", &[a.clone(), b.clone()]),
                group("and", &[a.clone(), group("not", std::slice::from_ref(&b))]),
                group(
                    "and",
                    &[
                        a.clone(),
                        group("or", &[a.clone(), b.clone()]),
                        group("not", &[group("and", &[a.clone(), b.clone()])]),
                    ],
                ),
            ] {
                let segment = Segment::read(&tree).unwrap();
                let ceiling =
                    segment.ceiling(|id| millrace::directory::audience::declared(&modules, id));
                let want = if ceiling.is_ok() {
                    segment.members(&of)
                } else {
                    BTreeSet::new()
                };
                assert_eq!(
                    users(&w, &modules, Whom::Segment(&segment)).await,
                    want,
                    "{tree}"
                );
            }
        }
    }
    let other_clan =
        Segment::read(&json!({"audience": "survival.clan.members", "params": {"clan": "blue"}}))
            .unwrap();
    assert!(
        users(&w, &modules, Whom::Segment(&other_clan))
            .await
            .is_empty()
    );
    // Without its parameter it would be every clan: dormant instead.
    let every = Segment::read(&audience("x"))
        .map(|_| Segment::read(&json!({"audience": "survival.clan.members"})).unwrap())
        .unwrap();
    let ask = Ask {
        ws: 1,
        whom: Whom::Segment(&every),
    };
    assert_eq!(
        resolve(&w.client, &modules, &ask).await.unwrap().reason,
        Some(Unreached::Dormant)
    );
}

#[tokio::test]
async fn plain_audiences_of_many_firings_are_answered_in_their_order() {
    let w = World::new().await;
    let modules = survival();
    people(&w).await;
    let listed: Vec<String> = ["u9", "u4", "nobody", "u4", "u1"]
        .map(str::to_owned)
        .to_vec();
    let none: Vec<String> = Vec::new();
    let asks = [
        Ask {
            ws: 1,
            whom: Whom::Owner(Some("u4")),
        },
        Ask {
            ws: 1,
            whom: Whom::Owner(Some("u9")),
        },
        Ask {
            ws: 1,
            whom: Whom::Owner(None),
        },
        Ask {
            ws: 1,
            whom: Whom::Members(Some(&listed)),
        },
        Ask {
            ws: 1,
            whom: Whom::Members(Some(&none)),
        },
        Ask {
            ws: 1,
            whom: Whom::Members(None),
        },
        Ask {
            ws: 1,
            whom: Whom::Subscribers("s"),
        },
        Ask {
            ws: 1,
            whom: Whom::Staff,
        },
        Ask {
            ws: 1,
            whom: Whom::Staff,
        },
        Ask {
            ws: 2,
            whom: Whom::Members(Some(&listed)),
        },
        Ask {
            ws: 2,
            whom: Whom::Subscribers("s"),
        },
    ];
    let reached = resolve_all(&w.client, &modules, &asks).await.unwrap();
    let names: Vec<String> = reached.iter().map(|r| r.users.join(" ")).collect();
    assert_eq!(
        names,
        [
            "u4",
            "",
            "",
            "u1 u4",
            "",
            "",
            "u1",
            "u0 u3 u5 u6",
            "u0 u3 u5 u6",
            "u1 u4",
            ""
        ]
    );
    let reasons: Vec<_> = reached.iter().map(|r| r.reason).collect();
    assert_eq!(
        (reasons[2], reasons[5]),
        (Some(Unreached::NoOwner), Some(Unreached::NoList))
    );
    assert!(reasons[1].is_none() && reasons[4].is_none());
    w.client
        .execute(
            "INSERT INTO users (workspace_id, user_id, changed_at) SELECT 1, 'x' || n, now() FROM generate_series(1, 5000) AS n",
            &[],
        )
        .await
        .unwrap();
    let all = resolve(
        &w.client,
        &modules,
        &Ask {
            ws: 1,
            whom: Whom::Everyone,
        },
    )
    .await
    .unwrap();
    assert_eq!((all.users.len(), all.capped), (MOST_REACHED, true));
}
