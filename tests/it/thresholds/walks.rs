//! The walks of the seed's phase 11 as far as they end in firings: whom the gates tell is walked in `gates`.

use super::{HOUR, World, count, names};
use serde_json::{Value, json};

/// A house of `ann` goes from one stage to another.
pub fn decay(serial: &str, from: Option<&str>, to: &str) -> Value {
    let mut body = json!({
        "serial": serial, "to": to, "map": "Felucca", "x": 1420, "y": 1691, "z": 0, "region": "Britain", "name": "The Old Mill",
        "ownerSerial": "0x1f", "ownerAcct": "ann", "ownerName": "Ann", "builtOn": "2026-01-01T00:00:00Z",
        "lastRefreshed": "2026-11-20T00:00:00Z",
    });
    if let (Some(from), Some(members)) = (from, body.as_object_mut()) {
        members.insert("from".to_owned(), json!(from));
    }
    body
}

#[tokio::test]
async fn a_warning_comes_once_and_a_refresh_calls_it_off() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    assert!(
        w.on(
            "atlantic",
            "house.decay",
            decay("0x1", Some("LikeNew"), "Fairly")
        )
        .await
        .is_empty()
    );
    let warned = w
        .on(
            "atlantic",
            "house.decay",
            decay("0x1", Some("Fairly"), "Greatly"),
        )
        .await;
    assert_eq!(names(&warned), ["house.idoc_warning"]);
    let warning = &warned[0];
    assert_eq!(warning.owner.as_deref(), Some("u1"));
    assert_eq!(warning.account.as_deref(), Some("ann"));
    assert_eq!(warning.recipients, None);
    assert_eq!((&*warning.subject, &*warning.shard), ("0x1", "atlantic"));
    assert_eq!((warning.at, warning.accepted_at), (w.now, w.now));
    // The sweep says the same stage again: nothing changed.
    w.later(HOUR);
    assert!(
        w.on(
            "atlantic",
            "house.decay",
            decay("0x1", Some("Greatly"), "Greatly")
        )
        .await
        .is_empty()
    );
    for good in ["Ageless", "LikeNew"] {
        let refreshed = w
            .on(
                "atlantic",
                "house.decay",
                decay("0x1", Some("Greatly"), good),
            )
            .await;
        assert_eq!(names(&refreshed), ["house.refreshed"]);
        assert_eq!(
            refreshed[0].log_key(),
            warning.log_key(),
            "they call each other off, so they must meet"
        );
    }
}

#[tokio::test]
async fn a_house_first_seen_at_greatly_is_told_of_twice() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    let first = w
        .on("atlantic", "house.decay", decay("0x1", None, "Greatly"))
        .await;
    w.later(48 * HOUR);
    let second = w
        .on(
            "atlantic",
            "house.decay",
            decay("0x1", Some("Greatly"), "IDOC"),
        )
        .await;
    assert_eq!(names(&first), ["house.idoc_warning"]);
    assert_eq!(names(&second), ["house.idoc_warning"]);
    assert_ne!(first[0].dedupe, second[0].dedupe);
    assert_ne!(first[0].id, second[0].id);
}

#[tokio::test]
async fn a_collapse_that_two_frames_report_is_one_event() {
    let mut w = World::new().await;
    let fell = w
        .on(
            "atlantic",
            "house.decay",
            decay("0x1", Some("IDOC"), "Collapsed"),
        )
        .await;
    let removed = w
        .on(
            "atlantic",
            "house.remove",
            json!({"serial": "0x1", "name": "The Old Mill", "ownerAcct": "ann"}),
        )
        .await;
    assert_eq!(names(&fell), ["house.collapsed"]);
    assert_eq!(names(&removed), ["house.collapsed"]);
    assert_eq!(fell[0].dedupe, removed[0].dedupe);
}

fn listing(vendor: &str, periods: Option<i64>) -> Value {
    let mut body = json!({
        "vendor": vendor, "serial": vendor, "shopName": "Ann's Bows", "ownerSerial": "0x1f", "ownerName": "Ann", "ownerAcct": "ann",
        "map": "Felucca", "x": 1, "y": 2, "z": 0, "items": [{"serial": "0x2", "name": "a bow", "price": 700}],
    });
    if let (Some(periods), Some(members)) = (periods, body.as_object_mut()) {
        members.insert(
            "fees".to_owned(),
            json!({"exempt": false, "holdGold": periods * 60, "chargePerPeriod": 60, "periodsRemaining": periods,
                "payPeriodMinutes": 1440, "dismissalAt": "2026-12-02T00:00:00Z"}),
        );
    }
    body
}

#[tokio::test]
async fn a_vendor_expires_once_a_crossing() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    let mut told = Vec::new();
    // A listing of an older shard has no fees; prices change, and the sweep repeats itself.
    for periods in [
        Some(9),
        None,
        Some(9),
        Some(0),
        Some(0),
        None,
        Some(0),
        Some(9),
        Some(9),
        Some(0),
    ] {
        w.later(HOUR);
        let fired = w
            .on("atlantic", "vendor.listing", listing("0x9", periods))
            .await;
        told.push(names(&fired).join(" "));
        assert!(
            fired
                .iter()
                .all(|f| f.subject == "0x9" && f.owner.as_deref() == Some("u1"))
        );
    }
    let expiring = "vendor.expiring";
    assert_eq!(told, ["", "", "", expiring, "", "", "", "", "", expiring]);
}

#[tokio::test]
async fn a_vendor_first_seen_without_gold_is_no_news() {
    let mut w = World::new().await;
    assert!(
        w.on("atlantic", "vendor.listing", listing("0x9", Some(0)))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn a_login_that_failed_is_told_and_one_that_did_not_never_is() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    let login = |accepted: bool| {
        let mut body = json!({"acct": "ann", "accepted": accepted, "ip": "198.51.100.7"});
        if let (false, Some(members)) = (accepted, body.as_object_mut()) {
            members.insert("reason".to_owned(), json!("BadPass"));
        }
        body
    };
    let failed = w.on("atlantic", "account.login.result", login(false)).await;
    assert_eq!(names(&failed), ["account.login_failed"]);
    assert_eq!(failed[0].owner.as_deref(), Some("u1"));
    for _ in 0..3 {
        assert!(
            w.on("atlantic", "account.login.result", login(true))
                .await
                .is_empty()
        );
    }
    // Every failure is told: nothing is remembered of the one before.
    let again = w.on("atlantic", "account.login.result", login(false)).await;
    assert_eq!(names(&again), ["account.login_failed"]);
}

/// A city of a governor.
pub fn city(governor: &str, account: &str) -> Value {
    json!({"city": "Britain", "name": "Britain", "electionPhase": "none",
        "governor": {"serial": format!("0x{account}"), "name": governor, "acct": account}})
}

#[tokio::test]
async fn one_frame_elects_and_appoints() {
    let mut w = World::new().await;
    w.link("atlantic", "bob", "u2").await;
    assert!(
        w.on("atlantic", "city.update", city("Ann", "ann"))
            .await
            .is_empty(),
        "who governed before anybody looked is no news"
    );
    let fired = w.on("atlantic", "city.update", city("Bob", "bob")).await;
    let mut triggers = names(&fired);
    triggers.sort_unstable();
    assert_eq!(triggers, ["governor.appointed", "governor.elected"]);
    let of = |name: &str| fired.iter().find(|f| f.trigger.ends_with(name)).unwrap();
    assert_eq!(of("appointed").owner.as_deref(), Some("u2"));
    assert_ne!(of("appointed").id, of("elected").id);
    assert_eq!(of("appointed").subject, of("elected").subject);
    assert!(
        w.on("atlantic", "city.update", city("Bob", "bob"))
            .await
            .is_empty()
    );
}

/// A town without a governor, and no election: both are said to be null.
#[tokio::test]
async fn a_town_first_seen_without_a_governor_elects_its_first() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    let town = |phase: Value, governor: Value| json!({"city": "Minoc", "name": "Minoc", "electionPhase": phase, "governor": governor});
    let ann = || json!({"serial": "0xann", "name": "Ann", "acct": "ann"});
    // Twice, and then without a word of either.
    let silent = json!({"city": "Minoc", "name": "Minoc"});
    for body in [
        silent.clone(),
        town(Value::Null, Value::Null),
        town(Value::Null, Value::Null),
        silent,
    ] {
        assert!(w.on("atlantic", "city.update", body).await.is_empty());
    }
    // What was null is remembered by the store, not by its owner alone.
    w.another_owner().await;
    let opened = w
        .on(
            "atlantic",
            "city.update",
            town(json!("Voting"), Value::Null),
        )
        .await;
    assert_eq!(names(&opened), ["election.opened"]);
    let fired = w
        .on("atlantic", "city.update", town(json!("none"), ann()))
        .await;
    let mut triggers = names(&fired);
    triggers.sort_unstable();
    assert_eq!(triggers, ["governor.appointed", "governor.elected"]);
    let appointed = fired.iter().find(|f| f.trigger.ends_with("appointed"));
    assert_eq!(appointed.unwrap().owner.as_deref(), Some("u1"));
    // A frame without a word of either, with a governor in the seat: nobody is unseated.
    let silent = json!({"city": "Minoc", "name": "Minoc"});
    assert!(w.on("atlantic", "city.update", silent).await.is_empty());
    let seats = "SELECT account FROM roster_members WHERE roster = 'uo.governors'";
    let seated = w.client.query_one(seats, &[]).await.unwrap();
    assert_eq!(seated.get::<_, &str>(0), "ann");
    // The seat is empty for a while, and the same governor takes it again: nothing changed.
    for governor in [Value::Null, ann()] {
        let body = town(json!("none"), governor);
        assert!(w.on("atlantic", "city.update", body).await.is_empty());
    }
}

#[tokio::test]
async fn a_server_restarted_three_times_fires_each_time_about_one_subject() {
    let mut w = World::new().await;
    let mut all = Vec::new();
    for boot in ["a", "b", "c"] {
        w.reboot("atlantic", boot);
        let hello = json!({"protocol": 5, "shard": "atlantic", "boot": boot, "server": "ServUO 57.4", "name": "Atlantic"});
        all.extend(w.on("atlantic", "server.hello", hello).await);
        w.later(20);
        let down = json!({"shard": "atlantic", "name": "Atlantic", "reason": "restart"});
        all.extend(w.on("atlantic", "server.shutdown", down).await);
        w.later(5);
    }
    let up = names(&all).iter().filter(|n| **n == "server.up").count();
    let down = names(&all).iter().filter(|n| **n == "server.down").count();
    assert_eq!((up, down, all.len()), (3, 3, 6));
    // The cooldown that makes one notice of them is kept by rule, user and subject: there must be one subject.
    assert!(all.iter().all(|f| f.subject == all[0].subject));
    let dedupes: std::collections::BTreeSet<_> =
        all.iter().map(|f| (&f.trigger, &f.dedupe)).collect();
    assert_eq!(dedupes.len(), 6);
}

#[tokio::test]
async fn an_account_without_a_user_is_no_fault() {
    let mut w = World::new().await;
    w.link("pacific", "ann", "u1").await;
    let fired = w
        .on(
            "atlantic",
            "house.decay",
            decay("0x1", Some("Fairly"), "IDOC"),
        )
        .await;
    assert_eq!(names(&fired), ["house.idoc_warning"]);
    assert_eq!(fired[0].owner, None, "the link is of another shard");
    assert_eq!(count(&w.outcomes().await, "applied", ""), 1);
    // What was linked and is not any more is nobody's, too.
    w.link("atlantic", "ann", "u1").await;
    w.unlink("atlantic", "ann").await;
    let fired = w
        .on(
            "atlantic",
            "house.decay",
            decay("0x1", Some("Greatly"), "IDOC"),
        )
        .await;
    assert_eq!(fired[0].owner, None);
}

#[tokio::test]
async fn an_unlinked_account_is_told_in_either_order() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    w.link("atlantic", "bob", "u2").await;
    // The frame before the directory's word.
    let before = w
        .on("atlantic", "account.unlinked", json!({"acct": "ann"}))
        .await;
    w.unlink("atlantic", "ann").await;
    // And behind it.
    w.unlink("atlantic", "bob").await;
    w.later(1);
    let after = w
        .on("atlantic", "account.unlinked", json!({"acct": "bob"}))
        .await;
    for (fired, user) in [(&before, "u1"), (&after, "u2")] {
        assert_eq!(names(fired), ["account.unlinked"]);
        assert_eq!(fired[0].owner.as_deref(), Some(user));
        assert_eq!(fired[0].account, None, "there need be no link any more");
    }
}

#[tokio::test]
async fn two_shards_with_equal_serials_never_meet() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    w.link("pacific", "ann", "u2").await;
    // Interleaved, in one batch: each shard crosses by itself.
    let mut frames = Vec::new();
    for (shard, periods) in [
        ("atlantic", 9),
        ("pacific", 0),
        ("atlantic", 0),
        ("pacific", 9),
        ("pacific", 0),
        ("atlantic", 0),
    ] {
        frames.push(w.frame(shard, "vendor.listing", listing("0x9", Some(periods))));
    }
    w.send(&frames).await;
    let fired = w.told().await;
    assert_eq!(names(&fired), ["vendor.expiring", "vendor.expiring"]);
    assert_eq!(fired[0].owner.as_deref(), Some("u1"));
    assert_eq!(fired[1].owner.as_deref(), Some("u2"));
    assert_ne!(fired[0].log_key(), fired[1].log_key());
    assert_ne!(fired[0].dedupe, fired[1].dedupe);
}
