//! Manifests replaced while an owner works: what trackers remember outlives the set that asked for it, and no batch is decided by two.

use super::{World, names};
use millrace::modules::Live;
use millrace::postgres::pool::Database;
use millrace::runtime::clock::ManualClock;
use millrace::runtime::connector::connector;
use millrace::runtime::core::Core;
use millrace::runtime::session::Connect;
use millrace::settings;
use millrace::thresholds::actor::Thresholds;
use millrace_schemas::time::Micros;
use millrace_tests::process::Scratch;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The shipped manifest, and the same without the mapping of vendors, so that those behind it have other numbers.
struct Manifests {
    folder: Scratch,
    whole: String,
    without: String,
}

impl Manifests {
    fn new(name: &str) -> Manifests {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/modules/uo.toml");
        let whole = std::fs::read_to_string(shipped).unwrap();
        let start = whole
            .find("[[mapping]]\nid = \"vendor.expiring\"")
            .expect("the mapping");
        let length = whole[start + 1..].find("[[mapping]]").expect("another one") + 1;
        let without = format!("{}{}", &whole[..start], &whole[start + length..]);
        Manifests {
            folder: Scratch::new(name).unwrap(),
            whole,
            without,
        }
    }

    fn in_force(&self, live: &Live, text: &str) {
        std::fs::write(self.folder.path().join("uo.toml"), text).unwrap();
        live.reload(&["uo".to_owned()], Some(self.folder.path()))
            .unwrap();
    }
}

/// An owner that follows this cell.
async fn follow(w: &mut World, live: &Live, wrap: impl FnOnce(Connect) -> Connect) {
    let settings = settings::Database {
        url: Some(w.database.url().to_owned()),
        ..settings::Database::default()
    };
    let database = Database::new(&settings, "test").unwrap();
    let slice = settings::Thresholds { slice_keys: 100 };
    w.core = Core::launch(
        Thresholds::new(live.clone(), slice, w.triggers.no),
        wrap(connector(&database, Duration::from_secs(2))),
        ManualClock::at(Micros(super::DAWN.0 * 2)),
        vec![w.frames.clone()].into(),
        0,
        "test",
        Arc::default(),
    )
    .await
    .unwrap();
}

fn vendor(periods: i64) -> Value {
    json!({"vendor": "0x9", "serial": "0x9", "shopName": "Ann's Bows", "ownerAcct": "ann", "ownerName": "Ann",
        "fees": {"exempt": false, "holdGold": periods * 60, "chargePerPeriod": 60, "periodsRemaining": periods}})
}

fn champion(boss: bool) -> Value {
    json!({"serial": "0x5", "active": true, "bossUp": boss})
}

async fn remembered(w: &World, mapping: &str) -> i64 {
    let sql = "SELECT count(*) FROM tracker_states WHERE module = 'uo' AND mapping = $1";
    w.client.query_one(sql, &[&mapping]).await.unwrap().get(0)
}

#[tokio::test]
async fn trackers_go_on_from_what_they_remember_and_a_mapping_that_vanishes_keeps_its_rows() {
    let manifests = Manifests::new("reload-trackers");
    let mut w = World::new().await;
    let live = Live::from(Arc::clone(&w.modules));
    follow(&mut w, &live, |connect| connect).await;
    assert!(
        w.on("atlantic", "vendor.listing", vendor(9))
            .await
            .is_empty()
    );
    assert!(
        w.on("atlantic", "champ.update", champion(false))
            .await
            .is_empty()
    );

    manifests.in_force(&live, &manifests.without);
    // Its number was that of another mapping, which remembers `true` of this key.
    let up = w.on("atlantic", "champ.update", champion(true)).await;
    assert_eq!(names(&up), ["champ.boss_up"]);
    assert!(
        w.on("atlantic", "vendor.listing", vendor(0))
            .await
            .is_empty()
    );
    assert_eq!(remembered(&w, "vendor.expiring").await, 1);

    manifests.in_force(&live, &manifests.whole);
    let expiring = w.on("atlantic", "vendor.listing", vendor(0)).await;
    assert_eq!(names(&expiring), ["vendor.expiring"], "of what was kept");
    assert!(
        w.on("atlantic", "champ.update", champion(true))
            .await
            .is_empty()
    );
    // What was decided before a reload is a duplicate after it.
    let again = w.frame("atlantic", "vendor.listing", vendor(9));
    w.send(std::slice::from_ref(&again)).await;
    manifests.in_force(&live, &manifests.without);
    manifests.in_force(&live, &manifests.whole);
    w.send(&[again]).await;
    assert_eq!(super::count(&w.outcomes().await, "duplicate", ""), 1);
}

#[tokio::test]
async fn a_batch_is_decided_by_one_set_whole() {
    let manifests = Arc::new(Manifests::new("reload-batch"));
    let mut w = World::new().await;
    let live = Live::from(Arc::clone(&w.modules));
    // Once armed, whoever connects anew finds the manifests replaced: in the middle of the batch whose connection was cut.
    let armed = Arc::new(AtomicBool::new(false));
    let swap = {
        let (live, manifests, armed) = (live.clone(), Arc::clone(&manifests), Arc::clone(&armed));
        move || {
            if armed.swap(false, Ordering::SeqCst) {
                manifests.in_force(&live, &manifests.without);
            }
        }
    };
    follow(&mut w, &live, |connect| {
        Arc::new(move || {
            swap();
            connect()
        })
    })
    .await;
    assert!(
        w.on("atlantic", "vendor.listing", vendor(9))
            .await
            .is_empty()
    );
    armed.store(true, Ordering::SeqCst);
    w.client
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
            &[],
        )
        .await
        .unwrap();
    let fired = w.on("atlantic", "vendor.listing", vendor(0)).await;
    assert!(!armed.load(Ordering::SeqCst), "nobody connected anew");
    assert_eq!(
        names(&fired),
        ["vendor.expiring"],
        "by the set it began with"
    );
    for periods in [9, 0] {
        let fired = w.on("atlantic", "vendor.listing", vendor(periods)).await;
        assert!(fired.is_empty(), "by the set in force");
    }
}
