//! Letters in the store: what another owner knows of a dead letter that comes again.

use super::again::replayed;
use super::{DAWN, World, count, names};
use millrace::postgres::pool::Database;
use millrace::runtime::retention;
use millrace::settings;
use millrace_schemas::frame::Frame;
use serde_json::{Value, json};

fn guild(id: u32, serials: &[&str]) -> Value {
    let members: Vec<Value> = serials
        .iter()
        .map(|s| json!({"serial": s, "name": s, "acct": s}))
        .collect();
    json!({"id": id, "guildId": id, "name": "The Order", "members": members})
}

fn spawn(serial: &str, active: bool) -> Value {
    json!({"serial": serial, "type": "Lizardman", "active": active})
}

impl World {
    /// From now on the store refuses that a spawn rises and that anybody is taken off a list.
    async fn refuse(&self) {
        self.client
            .batch_execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     RAISE EXCEPTION 'never' USING ERRCODE = 'data_exception';
                 END $$;
                 CREATE TRIGGER early_memory BEFORE INSERT OR UPDATE ON tracker_states FOR EACH ROW
                     WHEN (new.memory = 'true') EXECUTE FUNCTION refuse();
                 CREATE TRIGGER early_member BEFORE DELETE ON roster_members FOR EACH ROW EXECUTE FUNCTION refuse()",
            )
            .await
            .unwrap();
    }

    async fn mend(&self) {
        self.client
            .batch_execute(
                "DROP TRIGGER early_memory ON tracker_states; DROP TRIGGER early_member ON roster_members;
                 DROP FUNCTION refuse()",
            )
            .await
            .unwrap();
    }

    /// Sends one frame; answers where it stands.
    async fn one(&mut self, frame: &Frame) -> i64 {
        let at = self.next;
        self.send(std::slice::from_ref(frame)).await;
        at
    }

    async fn comes_again(&mut self, frame: &Frame, at: i64) {
        let again = replayed(self, frame, at);
        self.send(&[again]).await;
    }

    /// Letters in the log's order: whether each was overtaken.
    async fn letters(&self) -> Vec<bool> {
        let rows = self
            .client
            .query(
                "SELECT overtaken FROM frame_letters ORDER BY record_id",
                &[],
            )
            .await
            .unwrap();
        rows.iter().map(|r| r.get(0)).collect()
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}

/// A guild that disbanded is cleared though its shard, and another boot of it, went on, by an owner that holds nothing.
#[tokio::test]
async fn a_list_is_cleared_by_another_owner_though_its_shard_went_on() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    let frames = [
        w.frame("atlantic", "guild.roster", guild(7, &["ann", "bob"])),
        w.frame("atlantic", "guild.roster", guild(8, &["ann"])),
    ];
    w.send(&frames).await;
    w.refuse().await;
    let gone = w.frame(
        "atlantic",
        "guild.remove",
        json!({"id": 7, "guildId": 7, "name": "The Order"}),
    );
    let at = w.one(&gone).await;
    assert_eq!(w.letters().await, [false]);
    w.mend().await;
    let other = w.frame("atlantic", "champ.update", spawn("0x1", false));
    w.send(&[other]).await;
    w.reboot("atlantic", "second");
    let others = [
        w.frame("atlantic", "guild.roster", guild(8, &["ann", "eve"])),
        w.frame("atlantic", "champ.update", spawn("0x1", false)),
    ];
    w.send(&others).await;
    assert!(w.told().await.is_empty());
    w.another_owner().await;
    w.comes_again(&gone, at).await;
    let told = w.told().await;
    assert_eq!(names(&told), ["guild.disbanded"]);
    assert_eq!(told[0].id, format!("{}-0-{at}-0", w.frames.no));
    assert_eq!(told[0].recipients.as_deref(), Some(&["u1".to_owned()][..]));
    let left = "SELECT count(*) FROM roster_members WHERE param = ";
    assert_eq!(w.number(&format!("{left}'7'")).await, 0);
    assert_eq!(w.number(&format!("{left}'8'")).await, 2);
    let outcomes = w.outcomes().await;
    assert_eq!(count(&outcomes, "dead_lettered", "data_refused"), 0);
    assert_eq!(count(&outcomes, "applied", "overtaken"), 0);
    assert!(w.letters().await.is_empty());
    // It is no letter any more, and a second copy changes nothing.
    w.comes_again(&gone, at).await;
    assert!(w.told().await.is_empty());
}

/// Two letters of one shard: one whose key said the same as before meanwhile, and one that failed once more.
#[tokio::test]
async fn what_came_since_is_known_to_every_owner() {
    let mut w = World::new().await;
    for serial in ["0x1", "0x2"] {
        w.on("atlantic", "champ.update", spawn(serial, false)).await;
    }
    w.refuse().await;
    let letters = ["0x1", "0x2"].map(|s| w.frame("atlantic", "champ.update", spawn(s, true)));
    let mut places = Vec::new();
    for letter in &letters {
        places.push(w.one(letter).await);
    }
    assert_eq!(w.letters().await, [false, false]);
    w.another_owner().await;
    w.on("atlantic", "champ.update", spawn("0x1", false)).await;
    assert_eq!(w.letters().await, [true, false]);
    // It fails again, with this owner and with the next.
    w.comes_again(&letters[1], places[1]).await;
    w.another_owner().await;
    w.comes_again(&letters[1], places[1]).await;
    assert_eq!(w.letters().await, [true, false]);
    let deaths = "SELECT max(deaths)::int8 FROM dead_letters WHERE status = 'open'";
    assert_eq!(w.number(deaths).await, 3);
    w.mend().await;
    w.on("atlantic", "champ.update", spawn("0x3", false)).await;
    w.another_owner().await;
    for (letter, at) in letters.iter().zip(&places) {
        w.comes_again(letter, *at).await;
    }
    let told = w.told().await;
    assert_eq!(names(&told), ["champ.started"]);
    assert_eq!(told[0].subject, "0x2");
    assert!(w.letters().await.is_empty());
    let outcomes = w.outcomes().await;
    assert_eq!(count(&outcomes, "dead_lettered", "data_refused"), 0);
    assert_eq!(count(&outcomes, "applied", "overtaken"), 1);
    // What the one says is remembered, and what the other said is not.
    let up = w.on("atlantic", "champ.update", spawn("0x1", true)).await;
    assert_eq!(names(&up), ["champ.started"]);
    let up = w.on("atlantic", "champ.update", spawn("0x2", true)).await;
    assert!(up.is_empty());
}

/// A program that knows of no letters decides frames beside this one and leaves them as they are; its windows give it away.
#[tokio::test]
async fn what_an_older_program_decided_overtakes_every_letter_of_its_shard() {
    let mut w = World::new().await;
    let shards = ["atlantic", "pacific"];
    for shard in shards {
        w.on(shard, "champ.update", spawn("0x1", false)).await;
        w.on(shard, "champ.update", spawn("0x2", false)).await;
    }
    w.refuse().await;
    let mut letters = Vec::new();
    for shard in shards {
        for serial in ["0x1", "0x2"] {
            let letter = w.frame(shard, "champ.update", spawn(serial, true));
            let at = w.one(&letter).await;
            letters.push((letter, at));
        }
    }
    w.mend().await;
    let marked = "SELECT marked::text FROM frame_windows WHERE shard = 'atlantic'";
    let before: String = w.client.query_one(marked, &[]).await.unwrap().get(0);
    for shard in shards {
        w.on(shard, "champ.update", spawn("0x3", false)).await;
    }
    // As it would be if an older program had decided that one of atlantic.
    let older = "UPDATE frame_windows SET marked = $1::text::uuid WHERE shard = 'atlantic'";
    w.client.execute(older, &[&before]).await.unwrap();
    assert_eq!(w.letters().await, [false; 4]);
    w.another_owner().await;
    let (first, at) = &letters[0];
    w.comes_again(first, *at).await;
    assert!(w.told().await.is_empty());
    // The store says so from now on, though the window fits again.
    assert_eq!(w.letters().await, [true, false, false]);
    w.another_owner().await;
    for (letter, at) in &letters[1..] {
        w.comes_again(letter, *at).await;
    }
    let told = w.told().await;
    assert_eq!(names(&told), ["champ.started"; 2]);
    assert!(told.iter().all(|f| f.shard == "pacific"));
    assert_eq!(count(&w.outcomes().await, "applied", "overtaken"), 2);
}

#[tokio::test]
async fn a_letter_goes_with_its_dead_letter_and_one_of_a_retired_topic_is_not_trusted() {
    let mut w = World::new().await;
    w.on("atlantic", "champ.update", spawn("0x1", false)).await;
    w.refuse().await;
    let letters = ["0x1", "0x2"].map(|s| w.frame("atlantic", "champ.update", spawn(s, true)));
    let first = w.one(&letters[0]).await;
    w.one(&letters[1]).await;
    w.mend().await;
    w.client
        .batch_execute(
            "UPDATE dead_letters SET status = 'discarded', changed_at = '2026-01-01' WHERE \"offset\" = 2",
        )
        .await
        .unwrap();
    let database = settings::Database {
        url: Some(w.database.url().to_owned()),
        ..settings::Database::default()
    };
    let kept = settings::Settings {
        retention: settings::Retention {
            dead_letters_days: 30,
            ..settings::Retention::default()
        },
        ..settings::Settings::default()
    };
    let database = Database::new(&database, "tests").unwrap();
    retention::once(&database, &kept, DAWN).await.unwrap();
    assert_eq!(w.number("SELECT count(*) FROM dead_letters").await, 1);
    assert_eq!(w.letters().await, [false]);
    // Its key may have been another partition's, which knows of no letter here.
    w.on("atlantic", "champ.update", spawn("0x3", false)).await;
    w.client
        .batch_execute("UPDATE topics SET retired_at = now() WHERE name = 'frames'")
        .await
        .unwrap();
    w.another_owner().await;
    w.comes_again(&letters[0], first).await;
    assert!(w.told().await.is_empty());
    assert_eq!(count(&w.outcomes().await, "applied", "overtaken"), 1);
}
