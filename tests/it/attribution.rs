//! Attribution on real PostgreSQL: what the specification says, one sentence a test.

mod newer;
mod retention;
mod sets_off;

use millrace::runtime::clock::ManualClock;
use millrace::runtime::core::Exit;
use millrace::settings;
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use millrace_tests::partition::{Partition, topics};
use millrace_tests::postgres::TestDatabase;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio_postgres::Client;

const T0: i64 = 1_780_000_000_000_000;
const MINUTE: i64 = 60_000_000;

struct World {
    _database: TestDatabase,
    url: String,
    client: Client,
    clock: Arc<ManualClock>,
    partition: Partition,
    visits: u32,
}

type Record = (usize, String, Vec<u8>);

impl World {
    async fn new() -> World {
        World::with(settings::Attribution {
            park_for_s: 3_600,
            slice_clicks: 4,
        })
        .await
    }

    async fn with(attribution: settings::Attribution) -> World {
        let database = TestDatabase::create().await;
        let client = database.client().await;
        let topics = topics(&client, 1).await;
        let clock = ManualClock::at(Micros(T0));
        let url = database.url().to_owned();
        let partition = Partition::launch(&url, &topics, 0, clock.clone(), attribution)
            .await
            .expect("the partition is claimed");
        World {
            _database: database,
            url,
            client,
            clock,
            partition,
            visits: 0,
        }
    }

    async fn again(&mut self) {
        let topics = self.partition.topics.clone();
        self.partition = Partition::launch(
            &self.url,
            &topics,
            0,
            self.clock.clone(),
            settings::Attribution {
                park_for_s: 3_600,
                slice_clicks: 4,
            },
        )
        .await
        .expect("claimed again");
    }

    fn visit(&mut self, click: &str, at: i64) -> Record {
        self.visits += 1;
        let mut record = visit(1, click, at);
        record["visit_id"] = json!(uuid::Uuid::from_u128(u128::from(self.visits)));
        on_wire(0, click, &record)
    }

    async fn send(&mut self, records: &[Record]) {
        self.partition.send(records).await.expect("committed");
    }

    async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect(sql).get(0)
    }

    /// Every dead letter as `dlq replay` gives it to the log again.
    async fn letters_again(&self, click_id: &str) -> Vec<Record> {
        let letters = self
            .client
            .query(
                "SELECT topic_no, partition, \"offset\", payload FROM dead_letters ORDER BY record_id",
                &[],
            )
            .await
            .expect("letters");
        let again = letters.iter().map(|row| {
            let mut record: Value = serde_json::from_slice(row.get(3)).expect("JSON");
            record["replay"] = json!({"topic_no": row.get::<_, i32>(0), "partition": row.get::<_, i32>(1), "offset": row.get::<_, i64>(2)});
            let topic = usize::from(record.get("query").is_some());
            on_wire(topic, click_id, &record)
        });
        again.collect()
    }

    async fn outcomes(&self) -> Vec<String> {
        let rows = self
            .client
            .query(
                "SELECT CASE outcome WHEN 0 THEN 'applied' WHEN 1 THEN 'duplicate' WHEN 2 THEN 'parked'
                        WHEN 3 THEN 'rejected' ELSE 'dead_lettered' END || CASE reason WHEN '' THEN '' ELSE ':' || reason END
                        || ' ' || sum(n) FROM outcomes GROUP BY outcome, reason HAVING sum(n) <> 0 ORDER BY outcome, reason",
                &[],
            )
            .await
            .expect("outcomes");
        let total = self
            .count("SELECT coalesce(sum(n), 0)::int8 FROM outcomes")
            .await;
        let consumed = self
            .count("SELECT coalesce(sum(consumed), 0)::int8 FROM positions")
            .await;
        assert_eq!(total, consumed, "outcomes add up to the records consumed");
        rows.iter().map(|r| r.get(0)).collect()
    }
}

fn visit(workspace: i32, click: &str, at: i64) -> Value {
    json!({"v": 1, "kind": "visit", "workspace": workspace, "click_id": click, "accepted_at": at,
        "visit_id": uuid::Uuid::from_u128(1), "campaign": "camp0001", "params": {"fbclid": "X"},
        "journey": {"offer": {"id": "of_nav", "network": "nw_1", "payout": "2.50", "currency": "EUR"},
            "sidecar_offers": [{"offer": "of_side", "network": "nw_1", "network_offer_id": "0077", "payout": "1"}]}})
}

fn on_wire(topic: usize, click: &str, record: &Value) -> Record {
    let workspace = record["workspace"].as_i64().expect("a workspace");
    let key = ids::partition_key(i32::try_from(workspace).expect("small"), click);
    (topic, key, serde_json::to_vec(record).expect("JSON"))
}

fn click(click: &str, at: i64, campaign: &str, stage: u16) -> Record {
    on_wire(
        0,
        click,
        &json!({"v": 1, "kind": "click", "workspace": 1, "click_id": click, "accepted_at": at,
        "campaign": campaign, "stage": stage}),
    )
}

fn postback(click: &str, at: i64, rest: &str) -> Record {
    on_wire(
        1,
        click,
        &json!({"v": 1, "workspace": 1, "network": "nw_1", "accepted_at": at,
        "query": format!("click_id={click}&{rest}")}),
    )
}

#[tokio::test]
async fn a_visit_its_click_and_its_conversion_are_booked_once() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    w.send(&[
        v.clone(),
        click("a", T0 + 1, "camp0001", 0),
        postback("a", T0 + 2, "txid=t1&payout=3.20"),
    ])
    .await;
    w.send(&[
        v,
        click("a", T0 + 1, "camp0001", 0),
        postback("a", T0 + 2, "txid=t1&payout=9"),
    ])
    .await;
    assert_eq!(w.outcomes().await, ["applied 3", "duplicate 3"]);
    let row = w
        .client
        .query_one(
            "SELECT payout::text, currency, role, offer_id, status FROM conversions",
            &[],
        )
        .await
        .expect("one");
    assert_eq!(
        (
            row.get::<_, String>(0).trim_end_matches('0').to_owned(),
            row.get::<_, &str>(1),
            row.get::<_, &str>(2),
            row.get::<_, &str>(3)
        ),
        ("3.2".to_owned(), "EUR", "navigation", "of_nav")
    );
    assert_eq!(w.count("SELECT count(*) FROM visits").await, 1);
    assert_eq!(w.count("SELECT count(*) FROM clicks").await, 1);
    assert_eq!(w.count("SELECT count(*) FROM postback_log").await, 2);
}

#[tokio::test]
async fn a_sidecar_is_credited_by_its_network_s_id_alone() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    w.send(&[
        v,
        postback("a", T0 + 1, "txid=1&offer_id=0077"),
        postback("a", T0 + 1, "txid=1&offer_id=77"),
        postback("a", T0 + 1, "txid=2&payout=&offer_id={offer_id}"),
    ])
    .await;
    let rows = w
        .client
        .query(
            "SELECT offer_id, role, payout::float8, flags FROM conversions ORDER BY conversion_id",
            &[],
        )
        .await
        .expect("rows");
    let got: Vec<(String, String, f64, String)> = rows
        .iter()
        .map(|r| (r.get(0), r.get(1), r.get(2), r.get(3)))
        .collect();
    assert_eq!(
        got,
        [
            (
                "of_side".into(),
                "monetization".into(),
                1.0,
                "payout_defaulted".into()
            ),
            (
                "of_nav".into(),
                "navigation".into(),
                2.5,
                "offer_id_unmatched,payout_defaulted".into()
            ),
            (
                "of_nav".into(),
                "navigation".into(),
                2.5,
                "offer_id_macro,payout_defaulted".into()
            ),
        ]
    );
}

#[tokio::test]
async fn what_comes_before_its_visit_waits_and_is_woken_in_order() {
    let mut w = World::new().await;
    w.send(&[
        postback("a", T0 + 5, "txid=t&payout=1"),
        postback("a", T0 + 4, "txid=t&payout=2"),
        click("a", T0 + 6, "camp0001", 0),
    ])
    .await;
    assert_eq!(w.outcomes().await, ["parked 3"]);
    w.again().await;
    let v = w.visit("a", T0 + 7);
    w.send(&[v]).await;
    assert_eq!(w.outcomes().await, ["applied 3", "duplicate 1"]);
    assert_eq!(
        w.count("SELECT payout::int8 FROM conversions").await,
        2,
        "the earlier accepted one books"
    );
    assert_eq!(w.count("SELECT count(*) FROM parked").await, 0);
}

/// A door's clock mints, attribution's clamps: a visit may be accepted long before its own click id was made.
#[tokio::test]
async fn a_visit_is_found_though_the_clock_here_is_far_behind_its_door_s() {
    let mut w = World::new().await;
    w.clock.set(Micros(T0 - 600 * MINUTE));
    let id = ids::encode(ids::mint(Micros(T0)).unwrap());
    let v = w.visit(&id, T0);
    w.send(std::slice::from_ref(&v)).await;
    w.again().await;
    w.send(&[postback(&id, T0 + MINUTE, "txid=t&payout=1")])
        .await;
    assert_eq!(w.outcomes().await, ["applied 2"]);
    w.again().await;
    w.send(&[v]).await;
    assert_eq!(w.outcomes().await, ["applied 2", "duplicate 1"]);
}

#[tokio::test]
async fn what_waits_in_vain_dies_by_stream_time_and_can_be_replayed() {
    let mut w = World::new().await;
    w.send(&[
        postback("late", T0, "txid=t"),
        click("late", T0, "camp0001", 0),
    ])
    .await;
    // The postbacks run ahead; the clicks were not read that far, so nothing expires.
    w.clock.set(Micros(T0 + 70 * MINUTE));
    w.send(&[postback("x", T0 + 70 * MINUTE, "txid=x")]).await;
    assert_eq!(w.outcomes().await, ["parked 3"]);
    w.partition.at_end().await.expect("committed");
    assert_eq!(
        w.outcomes().await,
        ["parked 1", "dead_lettered:journey_unknown 2"]
    );
    // Its visit comes at last, and the dead letters are replayed, twice.
    let v = w.visit("late", T0 + 71 * MINUTE);
    w.send(&[v]).await;
    let again = w.letters_again("late").await;
    assert_eq!(again.len(), 2);
    w.send(&again).await;
    w.send(&again).await;
    assert_eq!(w.outcomes().await, ["applied 3", "parked 1"]);
    assert_eq!(w.count("SELECT count(*) FROM conversions").await, 1);
    assert_eq!(
        w.count("SELECT count(*) FROM dead_letters WHERE status = 'replayed'")
            .await,
        2
    );
    assert_eq!(
        w.count("SELECT sum(replayed)::int8 FROM positions").await,
        4
    );
}

#[tokio::test]
async fn what_is_replayed_waits_from_now_though_no_record_came_since() {
    let mut w = World::new().await;
    w.send(&[postback("late", T0, "txid=t")]).await;
    w.clock.set(Micros(T0 + 300 * MINUTE));
    w.partition.at_end().await.expect("committed");
    assert_eq!(w.outcomes().await, ["dead_lettered:journey_unknown 1"]);
    let again = w.letters_again("late").await;
    w.send(&again).await;
    w.partition.at_end().await.expect("committed");
    assert_eq!(w.outcomes().await, ["parked 1"]);
}

#[tokio::test]
async fn a_status_moves_once_and_brings_its_payout() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    w.send(&[
        v,
        postback("a", T0 + 1, "txid=t&status=pending&payout=1"),
        postback("a", T0 + 1, "txid=u&status=pending&payout=5"),
    ])
    .await;
    w.send(&[postback("a", T0 + 2, "txid=t&status=approved&payout=4")])
        .await;
    w.send(&[
        postback("a", T0 + 3, "txid=t&status=pending&payout=7"),
        postback("a", T0 + 3, "txid=t&status=rejected"),
        postback("a", T0 + 3, "txid=u&status=rejected"),
    ])
    .await;
    assert_eq!(
        w.outcomes().await,
        [
            "applied 3",
            "applied:status_changed 2",
            "duplicate:status_conflict 2"
        ]
    );
    let rows = w
        .client
        .query(
            "SELECT txid, status, payout::float8 FROM conversions ORDER BY txid",
            &[],
        )
        .await
        .expect("rows");
    let got: Vec<(String, String, f64)> = rows
        .iter()
        .map(|r| (r.get(0), r.get(1), r.get(2)))
        .collect();
    assert_eq!(
        got,
        [
            ("t".into(), "approved".into(), 4.0),
            ("u".into(), "rejected".into(), 5.0)
        ]
    );
    assert_eq!(w.count("SELECT count(*) FROM conversion_history").await, 2);
}

#[tokio::test]
async fn an_upgraded_callback_attaches_and_another_external_id_books() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    w.send(&[v, postback("a", T0 + 1, "txid=t")]).await;
    w.send(&[postback("a", T0 + 2, "txid=t&external_conversion_id=e1")])
        .await;
    w.send(&[
        postback("a", T0 + 3, "txid=t&external_conversion_id=e2"),
        postback("a", T0 + 3, "txid=t&external_conversion_id=e1"),
        postback("a", T0 + 4, "external_conversion_id=e2"),
    ])
    .await;
    assert_eq!(w.outcomes().await, ["applied 3", "duplicate 3"]);
    let rows = w
        .client
        .query(
            "SELECT external_id FROM conversions ORDER BY conversion_id",
            &[],
        )
        .await
        .expect("rows");
    assert_eq!(
        rows.iter()
            .map(|r| r.get::<_, Option<String>>(0))
            .collect::<Vec<_>>(),
        [Some("e1".into()), Some("e2".into())]
    );
}

#[tokio::test]
async fn poison_is_set_aside_and_the_rest_of_its_batch_applied() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    let mut nul = visit(1, "n", T0);
    nul["visit_id"] = json!(uuid::Uuid::from_u128(99));
    nul["user_agent"] = json!("a\u{0}b");
    let nul = on_wire(0, "n", &nul);
    let broken: Record = (1, "1:z".to_owned(), b"\xff\x00 no JSON".to_vec());
    w.send(&[
        v,
        nul,
        click("a", T0, "camp0001", 0),
        broken,
        postback("a", T0 + 1, "txid=1"),
    ])
    .await;
    assert_eq!(
        w.outcomes().await,
        [
            "applied 3",
            "dead_lettered:data_refused 1",
            "dead_lettered:undecodable 1"
        ]
    );
    let row = w
        .client
        .query_one(
            "SELECT payload FROM dead_letters WHERE reason = 'undecodable'",
            &[],
        )
        .await
        .expect("kept");
    assert_eq!(row.get::<_, Vec<u8>>(0), b"\xff\x00 no JSON");
}

#[tokio::test]
async fn a_newer_wire_version_stops_the_partition_after_what_came_before() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    let newer: Record = (
        0,
        "1:b".to_owned(),
        br#"{"v":2,"shape":"unknown"}"#.to_vec(),
    );
    let exit = w.partition.send(&[v, newer]).await;
    assert!(matches!(exit, Err(Exit::Stopped(why)) if why.contains("version 2")));
    assert_eq!(w.outcomes().await, ["applied 1"]);
    assert_eq!(
        w.count("SELECT count(*) FROM ownership WHERE stopped_reason LIKE '%version 2%'")
            .await,
        1
    );
    assert_eq!(w.count("SELECT count(*) FROM dead_letters").await, 0);
}

#[tokio::test]
async fn a_fenced_owner_writes_nothing_more() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    let (topics, url) = (w.partition.topics.clone(), w.url.clone());
    let mut other = Partition::launch(
        &url,
        &topics,
        0,
        w.clock.clone(),
        settings::Attribution::default(),
    )
    .await
    .expect("claimed over it");
    assert_eq!(
        w.partition.send(std::slice::from_ref(&v)).await,
        Err(Exit::Fenced)
    );
    assert_eq!(w.count("SELECT count(*) FROM visits").await, 0);
    other.send(&[v]).await.expect("the new owner commits");
    assert_eq!(w.count("SELECT count(*) FROM visits").await, 1);
}

#[tokio::test]
async fn tenants_with_one_click_id_never_meet() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    let mut theirs = visit(2, "a", T0);
    theirs["visit_id"] = json!(uuid::Uuid::from_u128(1));
    let mut pb: Value = json!({"v": 1, "workspace": 2, "network": "nw_1", "accepted_at": T0, "query": "click_id=a&txid=t"});
    let before = on_wire(1, "a", &pb);
    w.send(&[v, before, postback("a", T0, "txid=t")]).await;
    assert_eq!(w.outcomes().await, ["applied 2", "parked 1"]);
    pb["query"] = json!("click_id=a&txid=t&again=1");
    w.send(&[on_wire(0, "a", &theirs), on_wire(1, "a", &pb)])
        .await;
    assert_eq!(w.outcomes().await, ["applied 4", "duplicate 1"]);
    assert_eq!(w.count("SELECT count(*) FROM conversions").await, 2);
}

#[tokio::test]
async fn a_click_of_another_campaign_is_rejected_and_kept() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    w.send(&[
        v,
        click("a", T0, "elsewhere", 0),
        click("a", T0, "camp0001", 1),
        click("a", T0, "camp0001", 1),
    ])
    .await;
    assert_eq!(
        w.outcomes().await,
        ["applied 2", "duplicate 1", "rejected:campaign_mismatch 1"]
    );
    assert_eq!(
        w.count("SELECT count(*) FROM rejects WHERE reason = 'campaign_mismatch'")
            .await,
        1
    );
}

#[tokio::test]
async fn provider_clicks_only_correlate() {
    let mut w = World::new().await;
    let v = w.visit("a", T0);
    let provider = |offer: &str| {
        on_wire(
            0,
            "a",
            &json!({"v": 1, "kind": "provider_click", "workspace": 1, "click_id": "a", "accepted_at": T0,
            "campaign": "camp0001", "network": "nw_1", "network_offer_id": offer, "provider_txid": "p"}),
        )
    };
    w.send(&[v, provider("77"), provider("0077"), provider("0077")])
        .await;
    w.send(&[provider("0077")]).await;
    assert_eq!(
        w.outcomes().await,
        [
            "applied 1",
            "applied:provider_click 1",
            "duplicate 2",
            "rejected:provider_click_unmatched 1"
        ]
    );
    assert_eq!(w.count("SELECT count(*) FROM clicks").await, 0);
    assert_eq!(w.count("SELECT count(*) FROM conversions").await, 0);
}
