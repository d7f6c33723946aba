//! What comes again, what a crash leaves, what nobody maps, what breaks its declaration.

use super::{World, count, names, owner};
use millrace::runtime::core::{Exit, NEWER};
use millrace_schemas::frame::Frame;
use millrace_tests::proxy::{Protocol, Proxy};
use serde_json::{Value, json};

fn vendor(periods: i64) -> Value {
    json!({"vendor": "0x9", "serial": "0x9", "shopName": "Ann's Bows", "ownerAcct": "ann", "ownerName": "Ann",
        "fees": {"exempt": false, "holdGold": periods * 60, "chargePerPeriod": 60, "periodsRemaining": periods}})
}

fn guild(serials: &[&str]) -> Value {
    let members: Vec<Value> = serials
        .iter()
        .map(|s| json!({"serial": s, "name": s, "acct": s}))
        .collect();
    json!({"id": 7, "guildId": 7, "name": "The Order", "members": members})
}

/// Frames that change each kind of state: a tracker's memory, a roster, the windows, the emits.
fn day(w: &mut World) -> Vec<Frame> {
    vec![
        w.frame("atlantic", "vendor.listing", vendor(9)),
        w.frame("atlantic", "guild.roster", guild(&["ann", "bob"])),
        w.frame("atlantic", "vendor.listing", vendor(0)),
        w.frame("atlantic", "nobody.maps.this", json!({"x": 1})),
    ]
}

#[tokio::test]
async fn a_replay_changes_nothing() {
    let mut w = World::new().await;
    let frames = day(&mut w);
    w.send(&frames).await;
    assert_eq!(names(&w.told().await), ["vendor.expiring"]);
    let kept = w.kept().await;
    // The sidecar lost its acknowledgements and sends all of it again, to this owner and to one that holds nothing.
    w.send(&frames).await;
    w.another_owner().await;
    w.send(&frames).await;
    w.send(&[&frames[2..], &frames[..2]].concat()).await;
    assert!(w.told().await.is_empty());
    assert_eq!(w.kept().await, kept);
    let outcomes = w.outcomes().await;
    assert_eq!(count(&outcomes, "duplicate", ""), 12);
    assert_eq!(count(&outcomes, "applied", ""), 3);
    assert_eq!(count(&outcomes, "applied", "unmapped"), 1);
}

#[tokio::test]
async fn a_frame_that_failed_and_was_overtaken_is_taken_in_when_it_comes() {
    let mut w = World::new().await;
    let first = w.frame("atlantic", "vendor.listing", vendor(9));
    let failed = w.frame(
        "atlantic",
        "account.login.result",
        json!({"acct": "ann", "accepted": false, "ip": "198.51.100.7"}),
    );
    let third = w.frame("atlantic", "vendor.listing", vendor(9));
    w.send(&[first, third.clone()]).await;
    w.send(&[failed.clone(), third]).await;
    assert_eq!(names(&w.told().await), ["account.login_failed"]);
    w.send(&[failed]).await;
    assert!(w.told().await.is_empty());
    assert_eq!(count(&w.outcomes().await, "duplicate", ""), 2);
}

/// The same numbers after a restart of the shard are other frames, and the last of the former boot are still known.
#[tokio::test]
async fn a_boot_numbers_its_frames_anew() {
    let mut w = World::new().await;
    let old = w.frame("atlantic", "vendor.listing", vendor(9));
    w.send(std::slice::from_ref(&old)).await;
    w.reboot("atlantic", "second");
    let new = w.frame("atlantic", "vendor.listing", vendor(0));
    assert_eq!(old.seq, new.seq);
    w.send(&[new.clone(), old, new]).await;
    assert_eq!(names(&w.told().await), ["vendor.expiring"]);
    assert_eq!(count(&w.outcomes().await, "duplicate", ""), 2);
}

/// The COMMIT is durable and its reply lost: whoever goes on knows what it did.
#[tokio::test]
async fn a_lost_reply_to_a_commit_fires_once() {
    let mut w = World::new().await;
    let address = {
        let (_, rest) = w.database.url().split_once('@').unwrap();
        let (address, _) = rest.split_once('/').unwrap();
        address.to_owned()
    };
    let proxy = Proxy::start(address.parse().unwrap(), Protocol::Postgres).unwrap();
    let url = w
        .database
        .url()
        .replace(&address, &proxy.address().to_string());
    proxy.eat_only_after("UPDATE positions");
    w.core = owner(&url, &w.modules, &w.frames, &w.triggers, 100).await;
    proxy.eat_commit_reply(0);
    let frames = day(&mut w);
    w.send(&frames).await;
    assert_eq!(proxy.eaten(), 1);
    assert_eq!(names(&w.told().await), ["vendor.expiring"]);
    assert_eq!(count(&w.outcomes().await, "applied", ""), 3);
    let up_and_down = [
        w.frame("atlantic", "vendor.listing", vendor(0)),
        w.frame("atlantic", "vendor.listing", vendor(9)),
        w.frame("atlantic", "vendor.listing", vendor(0)),
    ];
    w.send(&up_and_down).await;
    assert_eq!(names(&w.told().await), ["vendor.expiring"]);
}

/// A batch that is rolled back leaves nothing in memory either.
#[tokio::test]
async fn an_attempt_that_was_rolled_back_fires_once() {
    let mut w = World::new().await;
    w.client
        .batch_execute(
            "CREATE SEQUENCE passages;
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('passages') <= 2 THEN
                     RAISE EXCEPTION 'not this time' USING ERRCODE = 'serialization_failure';
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON tracker_states
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await
        .unwrap();
    let frames = day(&mut w);
    w.send(&frames).await;
    assert_eq!(names(&w.told().await), ["vendor.expiring"]);
    assert_eq!(count(&w.outcomes().await, "duplicate", ""), 0);
    assert_eq!(count(&w.outcomes().await, "applied", ""), 3);
}

/// The slice holds two keys; thirty vendors pass through it twice.
#[tokio::test]
async fn what_the_slice_cannot_hold_is_read_from_the_store() {
    let mut w = World::new().await;
    w.core = owner(w.database.url(), &w.modules, &w.frames, &w.triggers, 2).await;
    let mut told = 0;
    for periods in [9, 0, 9, 0] {
        for half in 0..2 {
            let frames: Vec<_> = (0..15)
                .map(|n| {
                    let mut body = vendor(periods);
                    let serial = json!(format!("0x{}", half * 15 + n));
                    body["vendor"] = serial.clone();
                    body["serial"] = serial;
                    w.frame("atlantic", "vendor.listing", body)
                })
                .collect();
            w.send(&frames).await;
            told += w.told().await.len();
        }
    }
    assert_eq!(told, 60);
}

#[tokio::test]
async fn a_firing_that_breaks_its_declaration_is_rejected_by_name() {
    let mut w = World::new().await;
    // A skill at its cap that is not named.
    let fired = w
        .on(
            "atlantic",
            "skill.gain",
            json!({"serial": "0x9", "acct": "ann", "base": 100, "cap": 100.0}),
        )
        .await;
    assert!(fired.is_empty());
    let outcomes = w.outcomes().await;
    assert_eq!(
        count(&outcomes, "rejected", "variable_missing"),
        1,
        "{outcomes:?}"
    );
    let row = w
        .client
        .query_one(
            "SELECT trigger, reason, n, last_id, variable FROM firing_rejects",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "uo.skill.capped");
    assert_eq!(row.get::<_, &str>(4), "skill");
    assert_eq!(row.get::<_, &str>(1), "variable_missing");
    assert_eq!(row.get::<_, i64>(2), 1);
    assert!(row.get::<_, &str>(3).ends_with("-0"));
}

#[tokio::test]
async fn ids_name_the_frame() {
    let mut w = World::new().await;
    let hello = w.frame("atlantic", "nobody.maps.this", json!({}));
    let failed = w.frame(
        "atlantic",
        "account.login.result",
        json!({"acct": "ann", "accepted": false, "ip": "198.51.100.7"}),
    );
    w.send(&[hello, failed]).await;
    let fired = w.told().await;
    assert_eq!(fired[0].id, format!("{}-0-1-0", w.frames.no));
}

/// What the store refuses of one frame is set aside alone, and decided when it comes again, under its first coordinates.
#[tokio::test]
async fn a_frame_that_the_store_refuses_is_set_aside_and_decided_later() {
    let mut w = World::new().await;
    w.client
        .batch_execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF new.key = '0x13' AND new.memory = '1' THEN
                     RAISE EXCEPTION 'never' USING ERRCODE = 'data_exception';
                 END IF;
                 RETURN new;
             END $$;
             CREATE TRIGGER early BEFORE INSERT OR UPDATE ON tracker_states FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await
        .unwrap();
    let of = |serial: &str, periods: i64| {
        let mut body = vendor(periods);
        body["serial"] = json!(serial);
        body
    };
    let frames = [
        w.frame("atlantic", "vendor.listing", of("0x9", 9)),
        w.frame("atlantic", "vendor.listing", of("0x13", 9)),
        w.frame("atlantic", "vendor.listing", of("0x9", 0)),
        w.frame("atlantic", "vendor.listing", of("0x13", 0)),
    ];
    w.send(&frames).await;
    let told = w.told().await;
    assert_eq!(names(&told), ["vendor.expiring"]);
    assert_eq!(told[0].subject, "0x9");
    let outcomes = w.outcomes().await;
    assert_eq!(count(&outcomes, "dead_lettered", "data_refused"), 1);
    assert_eq!(count(&outcomes, "applied", ""), 3);
    // Mended, and given to the log once more, twice for good measure.
    w.client
        .batch_execute("DROP TRIGGER early ON tracker_states")
        .await
        .unwrap();
    let again = replayed(&w, &frames[3], 3);
    w.send(&[again.clone(), again]).await;
    let told = w.told().await;
    assert_eq!(names(&told), ["vendor.expiring"]);
    assert_eq!(told[0].id, format!("{}-0-3-0", w.frames.no));
    let outcomes = w.outcomes().await;
    assert_eq!(count(&outcomes, "dead_lettered", "data_refused"), 0);
    assert_eq!(count(&outcomes, "applied", ""), 4);
    // The sidecar's own replay of it is known by then.
    w.send(&frames[3..4]).await;
    assert_eq!(count(&w.outcomes().await, "duplicate", ""), 1);
}

/// A frame as `dlq replay` gives it to the log once more.
pub(super) fn replayed(w: &World, frame: &Frame, offset: i64) -> Frame {
    let mut again = frame.clone();
    again.replay = Some(millrace_schemas::postback::Replay {
        topic_no: w.frames.no,
        partition: 0,
        offset,
    });
    again
}

/// What trackers remember, and who stands on lists.
async fn states(w: &World) -> Vec<String> {
    let rows = w
        .client
        .query(
            "SELECT concat_ws(' ', mapping, key, memory) FROM tracker_states UNION ALL
             SELECT concat_ws(' ', roster, slot, account) FROM roster_members ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|r| r.get(0)).collect()
}

/// What a dead letter says of a state is no longer so when later frames have been decided: the spawn was down by then, and the one
/// who was listed has left.
#[tokio::test]
async fn a_dead_letter_that_was_overtaken_steps_no_tracker_back() {
    let mut w = World::new().await;
    w.client
        .batch_execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE EXCEPTION 'never' USING ERRCODE = 'data_exception';
             END $$;
             CREATE TRIGGER early_memory BEFORE INSERT OR UPDATE ON tracker_states FOR EACH ROW
                 WHEN (new.memory = 'true') EXECUTE FUNCTION refuse();
             CREATE TRIGGER early_member BEFORE INSERT OR UPDATE ON roster_members FOR EACH ROW
                 WHEN (new.account = 'bob') EXECUTE FUNCTION refuse()",
        )
        .await
        .unwrap();
    let spawn =
        |active: bool| json!({"serial": "0x40000777", "type": "Lizardman", "active": active});
    let frames = [
        w.frame("atlantic", "champ.update", spawn(false)),
        w.frame("atlantic", "champ.update", spawn(true)),
        w.frame("atlantic", "guild.roster", guild(&["ann", "bob"])),
        w.frame("atlantic", "champ.update", spawn(false)),
        w.frame("atlantic", "guild.roster", guild(&["ann"])),
    ];
    for frame in &frames {
        w.send(std::slice::from_ref(frame)).await;
    }
    assert!(w.told().await.is_empty());
    assert_eq!(
        count(&w.outcomes().await, "dead_lettered", "data_refused"),
        2
    );
    w.client
        .batch_execute(
            "DROP TRIGGER early_memory ON tracker_states; DROP TRIGGER early_member ON roster_members",
        )
        .await
        .unwrap();
    let kept = states(&w).await;
    let again = [replayed(&w, &frames[1], 1), replayed(&w, &frames[2], 2)];
    w.another_owner().await;
    w.send(&again).await;
    assert!(w.told().await.is_empty());
    assert_eq!(states(&w).await, kept);
    let outcomes = w.outcomes().await;
    assert_eq!(count(&outcomes, "dead_lettered", "data_refused"), 0);
    assert_eq!(count(&outcomes, "applied", "overtaken"), 2);
    assert_eq!(count(&outcomes, "applied", ""), 3);
    // The next time it comes up is news.
    let up = w.on("atlantic", "champ.update", spawn(true)).await;
    assert_eq!(names(&up), ["champ.started"]);
}

/// No text of the store holds a NUL: such a key cannot be remembered, and stops nobody.
#[tokio::test]
async fn a_key_that_no_text_holds_is_set_aside_alone() {
    let mut w = World::new().await;
    let mut odd = w.frame("atlantic", "vendor.listing", vendor(9));
    odd.key = "a\0b".to_owned();
    let frames = [
        odd,
        w.frame("atlantic", "vendor.listing", vendor(9)),
        w.frame("atlantic", "vendor.listing", vendor(0)),
    ];
    w.send(&frames).await;
    assert_eq!(names(&w.told().await), ["vendor.expiring"]);
    let outcomes = w.outcomes().await;
    assert_eq!(count(&outcomes, "dead_lettered", "data_refused"), 1);
    assert_eq!(count(&outcomes, "applied", ""), 2);
}

#[tokio::test]
async fn a_frame_of_a_newer_build_stops_the_partition() {
    let mut w = World::new().await;
    let frame = w.frame("atlantic", "vendor.listing", vendor(9));
    for newer in [
        json!({"v": 2, "frame": {"of": "another shape"}}),
        json!({"v": 70_000}),
    ] {
        let mut batch = w.batch(&[]);
        let payload = serde_json::to_vec(&newer).unwrap();
        batch.push(w.frames.no, w.next, frame.log_key().as_bytes(), &payload);
        let exit = w.core.process(&batch).await;
        let Err(Exit::Stopped(why)) = exit else {
            panic!("{exit:?}");
        };
        assert!(why.starts_with(NEWER), "{why}");
        w.client
            .batch_execute("UPDATE ownership SET stopped_reason = NULL, stopped_at = NULL")
            .await
            .unwrap();
        w.another_owner().await;
    }
    assert!(w.outcomes().await.is_empty());
    w.send(&[frame]).await;
    assert_eq!(count(&w.outcomes().await, "applied", ""), 1);
}
