//! Rosters, kept from frames and carried by firings.

use super::{World, names};
use millrace_schemas::firing::Firing;
use serde_json::{Value, json};

fn roster(members: &[&str]) -> Value {
    let members: Vec<Value> = members
        .iter()
        .map(|a| json!({"serial": format!("0x{a}"), "name": a, "acct": a}))
        .collect();
    json!({"id": 7, "guildId": 7, "name": "The Order", "members": members})
}

impl World {
    /// Who stands on a list.
    async fn members(&self, roster: &str, shard: &str, param: &str) -> Vec<String> {
        let rows = self
            .client
            .query(
                "SELECT account FROM roster_members WHERE workspace = 1 AND module = 'uo' AND roster = $1 AND shard = $2
                 AND param = $3 ORDER BY account",
                &[&roster, &shard, &param],
            )
            .await
            .unwrap();
        rows.iter().map(|r| r.get(0)).collect()
    }

    async fn guild(&self, shard: &str) -> Vec<String> {
        self.members("uo.guild.members", shard, "7").await
    }
}

fn carried(firing: &Firing) -> Vec<&str> {
    assert!(firing.by_links);
    firing
        .recipients
        .as_ref()
        .unwrap()
        .iter()
        .map(String::as_str)
        .collect()
}

#[tokio::test]
async fn a_guild_that_disbands_is_told_though_it_is_gone() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    w.link("atlantic", "bob", "u2").await;
    w.link("pacific", "eve", "u3").await;
    let seen = w
        .on("atlantic", "guild.roster", roster(&["ann", "bob", "eve"]))
        .await;
    assert!(
        seen.is_empty(),
        "who was there before anybody looked is no news"
    );
    assert_eq!(w.guild("atlantic").await, ["ann", "bob", "eve"]);
    let gone = w
        .on(
            "atlantic",
            "guild.remove",
            json!({"id": 7, "guildId": 7, "name": "The Order"}),
        )
        .await;
    assert_eq!(names(&gone), ["guild.disbanded"]);
    assert_eq!(
        carried(&gone[0]),
        ["u1", "u2"],
        "eve is linked on another shard"
    );
    assert!(w.guild("atlantic").await.is_empty());
}

/// All within one batch: the store has seen nothing of the list yet.
#[tokio::test]
async fn a_list_that_comes_and_goes_in_one_batch_is_read_in_between() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    let frames = [
        w.frame("atlantic", "guild.roster", roster(&["ann"])),
        w.frame("pacific", "guild.roster", roster(&["ann"])),
        w.frame(
            "atlantic",
            "guild.remove",
            json!({"id": 7, "guildId": 7, "name": "The Order"}),
        ),
    ];
    w.send(&frames).await;
    let gone = w.told().await;
    assert_eq!(names(&gone), ["guild.disbanded"]);
    assert_eq!(carried(&gone[0]), ["u1"]);
    assert!(w.guild("atlantic").await.is_empty());
    assert_eq!(
        w.guild("pacific").await,
        ["ann"],
        "another shard's guild 7 is another"
    );
}

/// A slot stands in an index, which takes no text of any length: one shard's nonsense must not stop the others of its partition.
#[tokio::test]
async fn a_serial_of_any_length_stops_nobody() {
    let mut w = World::new().await;
    let mut n = 1_u64;
    // 64 letters in no order: nothing compresses them.
    let serial: String = (0..4_096)
        .map(|_| {
            n = n
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            char::from(b'0' + (n >> 58) as u8)
        })
        .collect();
    let mut all = roster(&["ann", "eve"]);
    all["members"][1]["serial"] = json!(serial);
    let frames = [
        w.frame("atlantic", "guild.roster", all),
        w.frame("pacific", "guild.roster", roster(&["bob"])),
    ];
    w.send(&frames).await;
    assert_eq!(w.guild("atlantic").await, ["ann"]);
    assert_eq!(w.guild("pacific").await, ["bob"]);
}

#[tokio::test]
async fn whoever_left_is_told_of_once_whichever_frame_reports_it() {
    let mut w = World::new().await;
    for (account, user) in [("ann", "u1"), ("bob", "u2"), ("eve", "u3")] {
        w.link("atlantic", account, user).await;
    }
    w.on("atlantic", "guild.roster", roster(&["ann", "bob", "eve"]))
        .await;
    let leave = json!({"id": 7, "guildId": 7, "guildName": "The Order", "name": "The Order",
        "serial": "0xbob", "acct": "bob", "member": {"serial": "0xbob", "name": "bob", "acct": "bob"}});
    let by_word = w.on("atlantic", "guild.leave", leave).await;
    assert_eq!(names(&by_word), ["guild.left"]);
    assert_eq!(
        carried(&by_word[0]),
        ["u1", "u3"],
        "all but the one who left"
    );
    assert!(
        w.on("atlantic", "guild.roster", roster(&["ann", "eve"]))
            .await
            .is_empty()
    );
    let by_list = w.on("atlantic", "guild.roster", roster(&["ann"])).await;
    assert_eq!(names(&by_list), ["guild.left"]);
    assert_eq!(carried(&by_list[0]), ["u1"]);
    assert_eq!(w.guild("atlantic").await, ["ann"]);
}

/// The schema lets a member's account be null: whoever is listed has not left.
#[tokio::test]
async fn whoever_is_listed_without_an_account_has_not_left() {
    let mut w = World::new().await;
    w.link("atlantic", "ann", "u1").await;
    w.on("atlantic", "guild.roster", roster(&["ann", "bob"]))
        .await;
    let mut nameless = roster(&["ann", "bob"]);
    nameless["members"][1]["acct"] = Value::Null;
    assert!(w.on("atlantic", "guild.roster", nameless).await.is_empty());
    assert_eq!(w.guild("atlantic").await, ["ann", "bob"]);
    // The character is another account's by now: it is known, and nobody left.
    let mut sold = roster(&["ann", "bob"]);
    sold["members"][1]["acct"] = json!("eve");
    assert!(w.on("atlantic", "guild.roster", sold).await.is_empty());
    assert_eq!(w.guild("atlantic").await, ["ann", "eve"]);
    let left = w.on("atlantic", "guild.roster", roster(&["ann"])).await;
    assert_eq!(names(&left), ["guild.left"]);
}

#[tokio::test]
async fn a_seat_is_held_by_one_and_a_town_has_its_own() {
    let mut w = World::new().await;
    let city = |name: &str, governor: Value| json!({"city": name, "name": name, "electionPhase": "none", "governor": governor});
    let who = |a: &str| json!({"serial": format!("0x{a}"), "name": a, "acct": a});
    for (town, governor) in [
        ("Britain", who("ann")),
        ("Trinsic", who("bob")),
        ("Britain", who("eve")),
        ("Minoc", who("dan")),
        ("Minoc", Value::Null),
    ] {
        w.on("atlantic", "city.update", city(town, governor)).await;
    }
    assert_eq!(
        w.members("uo.governors", "atlantic", "").await,
        ["bob", "eve"]
    );
    // A frame that says nothing of the governor unseats nobody.
    let silent = json!({"city": "Trinsic", "name": "Trinsic", "electionPhase": "none"});
    w.on("atlantic", "city.update", silent).await;
    assert_eq!(
        w.members("uo.governors", "atlantic", "").await,
        ["bob", "eve"]
    );
}
