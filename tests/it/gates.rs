//! The gates on real PostgreSQL: firings in, outbox rows out, through the actors' own transactions.

mod caps;
mod crossing;
mod killed;
mod rejected;
mod verified;
mod walks;
mod world;

use millrace::engagement::explain;
use millrace::recipients::load;
use serde_json::json;
use tokio_postgres::SimpleQueryMessage;
use world::{T0, World, connections};

/// An owner hears of their house on the channels that they want, late enough to be called off, and once.
#[tokio::test]
async fn an_owner_is_told_once_and_not_again_inside_the_cooldown() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.wants("ann", "g.house.warned", "email", "instant").await;
    w.rule(
        "warn",
        "g.house.warned",
        "owner",
        &["email", "inapp", "push"],
        86_400,
        100,
    )
    .await;
    w.warned("f1", "h1", Some("ann")).await;
    w.notices().await;
    let rows = w.outbox().await;
    assert_eq!(rows, ["email ann scheduled", "inapp ann scheduled"]);
    // The later of stream time and the wall clock, and the delay.
    let due = w
        .client
        .query_one(
            "SELECT min(extract(epoch FROM due_at))::int8 FROM outbox_due",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(due.get::<_, i64>(0), T0.0 / 1_000_000 + 900);
    // The trigger has no stream, and so no push.
    assert_eq!(w.refusals("f1").await, Vec::<String>::new());

    // The same subject within the cooldown, and another subject.
    w.at(T0.plus_secs(3_600));
    w.warned("f2", "h1", Some("ann")).await;
    w.warned("f3", "h2", Some("ann")).await;
    w.notices().await;
    assert_eq!(w.outbox().await.len(), 4);
    let refused = w.refusals("f2").await;
    assert_eq!(refused, ["7 email cooldown", "7 inapp cooldown"]);
    // A day later it has cooled.
    w.at(T0.plus_secs(86_400));
    w.warned("f4", "h1", Some("ann")).await;
    w.notices().await;
    assert_eq!(w.outbox().await.len(), 6);
    w.balanced().await;
}

/// The link that puts somebody within the ceiling travels with the message, to be asked for again when it leaves.
#[tokio::test]
async fn a_message_says_by_which_link_it_was_decided() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.rule("warn", "g.house.warned", "owner", &["inapp"], 0, 100)
        .await;
    let mut found = w.firing("f1", "g.house.warned", "h1", Some("ann"));
    found.account = Some("ann-the-bold".to_owned());
    w.fire(&found).await;
    // Whoever lost an account, and whom somebody outside named, needs none.
    w.warned("f2", "h2", Some("ann")).await;
    w.notices().await;
    let rows = w
        .client
        .query(
            "SELECT payload::jsonb ->> 'firing', payload::jsonb -> 'linked' ->> 'account' FROM outbox ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let said: Vec<(String, Option<String>)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
    let account = Some("ann-the-bold".to_owned());
    assert_eq!(said, [("f1".to_owned(), account), ("f2".to_owned(), None)]);
}

/// The same event reported twice, and a notice relayed twice, change nothing.
#[tokio::test]
async fn one_event_is_told_once_however_often_it_comes() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.rule("warn", "g.house.warned", "owner", &["inapp"], 0, 100)
        .await;
    w.warned("f1", "h1", Some("ann")).await;
    let relayed = w.emitted().await;
    w.receive(&relayed).await;
    w.receive(&relayed).await;
    assert_eq!(w.outbox().await.len(), 1);
    assert_eq!(w.outcomes("recipients").await, ["applied 1", "duplicate 1"]);
    // Another firing with the same dedupe text: two frames that tell of one fact.
    let mut again = w.firing("f2", "g.house.warned", "h1", Some("ann"));
    again.dedupe = "f1".to_owned();
    w.fire(&again).await;
    w.notices().await;
    assert_eq!(w.outbox().await.len(), 1);
    assert_eq!(w.refusals("f2").await, ["8 inapp told_already"]);
    // After a restart, too: what is remembered stands in the store.
    w.restart().await;
    again.id = "f3".to_owned();
    w.fire(&again).await;
    w.notices().await;
    assert_eq!(w.outbox().await.len(), 1);
    w.balanced().await;
}

/// A firing that calls another off does so whether it is read before the notice is decided or after.
#[tokio::test]
async fn a_cancel_is_one_in_either_order() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.rule("warn", "g.house.warned", "owner", &["inapp"], 0, 100)
        .await;
    w.client
        .execute("UPDATE rules SET cancel_on = '{g.house.saved}'", &[])
        .await
        .unwrap();
    // Called off before it was decided.
    w.warned("f1", "h1", Some("ann")).await;
    let saved = w.firing("f2", "g.house.saved", "h1", None);
    w.fire(&saved).await;
    w.notices().await;
    assert_eq!(w.outbox().await, Vec::<String>::new());
    assert_eq!(w.refusals("f1").await, ["0 inapp called_off"]);
    // One that fires later is its own; so is another house.
    w.warned("f3", "h1", Some("ann")).await;
    w.warned("f4", "h2", Some("ann")).await;
    w.notices().await;
    assert_eq!(w.outbox().await.len(), 2);
    // Called off after it was decided: the lease sees the mark.
    let saved = w.firing("f5", "g.house.saved", "h1", None);
    w.fire(&saved).await;
    let called_off = "SELECT count(*) FROM outbox o JOIN cancel_marks m ON m.key = o.cancel_key AND m.firing_pos > o.firing_pos";
    assert_eq!(w.count(called_off).await, 1);
    // Another shard's house of the same name is not meant.
    let mut elsewhere = w.firing("f6", "g.house.saved", "h2", None);
    elsewhere.shard = "s2".to_owned();
    w.fire(&elsewhere).await;
    assert_eq!(w.count(called_off).await, 1);
    w.balanced().await;
}

/// A rule wider than its trigger's ceiling reaches nobody, however it came to be stored; so does one whose conditions cannot be read.
#[tokio::test]
async fn what_is_wider_or_unreadable_reaches_nobody() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.user("sam", "admin").await;
    w.rule(
        "wide",
        "g.house.warned",
        "authenticated",
        &["inapp"],
        0,
        100,
    )
    .await;
    w.rule("staff", "g.house.warned", "staff", &["inapp"], 0, 100)
        .await;
    w.rule("odd", "g.house.warned", "owner", &["inapp"], 0, 100)
        .await;
    w.client
        .execute(
            "UPDATE rules SET conditions = '{\"op\": \"xor\", \"nodes\": []}' WHERE rule_id = 'odd'",
            &[],
        )
        .await
        .unwrap();
    w.rule("when", "g.house.warned", "owner", &["inapp"], 0, 100)
        .await;
    w.client
        .execute(
            "UPDATE rules SET conditions = '{\"var\": \"stage\", \"cmp\": \"ne\", \"value\": \"early\"}' WHERE rule_id = 'when'",
            &[],
        )
        .await
        .unwrap();
    // Without the variable even `ne` is false.
    w.warned("f1", "h1", Some("ann")).await;
    w.notices().await;
    assert_eq!(w.outbox().await, Vec::<String>::new());
    let said = w.said("f1").await;
    assert_eq!(
        said,
        [
            "4 wide ceiling",
            "4 staff ceiling",
            "2 odd conditions",
            "2 when conditions"
        ]
    );
    let mut late = w.firing("f2", "g.house.warned", "h1", Some("ann"));
    late.vars.insert("stage".to_owned(), json!("late"));
    w.fire(&late).await;
    w.notices().await;
    assert_eq!(w.outbox().await, ["inapp ann scheduled"]);
    w.balanced().await;
}

/// A message that is called off keeps its cooldown, and `explain` names it.
#[tokio::test]
async fn what_was_called_off_keeps_its_cooldown() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.rule("warn", "g.house.warned", "owner", &["inapp"], 86_400, 100)
        .await;
    w.client
        .execute("UPDATE rules SET cancel_on = '{g.house.saved}'", &[])
        .await
        .unwrap();
    w.warned("f1", "h1", Some("ann")).await;
    w.notices().await;
    assert_eq!(w.outbox().await, ["inapp ann scheduled"]);
    // Within the cooldown of one that waits, then of one that was called off, before the lease saw it and after.
    w.at(T0.plus_secs(60));
    w.warned("f2", "h1", Some("ann")).await;
    w.notices().await;
    let waits = says(&w, "f2", "ann").await;
    assert!(waits.starts_with("the user was told"), "{waits}");
    let saved = w.firing("f3", "g.house.saved", "h1", None);
    w.fire(&saved).await;
    w.at(T0.plus_secs(120));
    w.warned("f4", "h1", Some("ann")).await;
    w.notices().await;
    assert_eq!(w.refusals("f4").await, ["7 inapp cooldown"]);
    let called_off = "a cooldown by a message that was called off: it keeps its cooldown";
    assert_eq!(says(&w, "f4", "ann").await, called_off);
    for (status, why, expected) in [
        ("cancelled", "called_off", called_off.to_owned()),
        (
            "suppressed",
            "stale",
            "a cooldown by a message that was held back right before it would have left (stale): it keeps its cooldown"
                .to_owned(),
        ),
    ] {
        w.client
            .execute(
                "UPDATE outbox SET status = $1, status_reason = $2",
                &[&status, &why],
            )
            .await
            .unwrap();
        assert_eq!(says(&w, "f4", "ann").await, expected);
    }
}

/// What `explain` says to a user of the gate that refused an event.
async fn says(w: &World, id: &str, user: &str) -> String {
    let event = explain::event(&w.client, w.ws, id).await.unwrap();
    let lines = explain::explain(&w.client, w.ws, &event.unwrap(), user)
        .await
        .unwrap();
    let refused = lines.into_iter().find(|l| l.verdict == "refused");
    refused.unwrap().says
}

/// A rule none of whose channels is configured is off before anybody is resolved, and `explain` says so.
#[tokio::test]
async fn a_rule_without_a_configured_channel_reaches_nobody() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.wants("ann", "g.house.warned", "email", "instant").await;
    w.rule("mail", "g.house.warned", "owner", &["email"], 0, 100)
        .await;
    w.rule(
        "both",
        "g.house.warned",
        "owner",
        &["email", "inapp"],
        0,
        100,
    )
    .await;
    w.client
        .execute("UPDATE mail_transports SET enabled = false", &[])
        .await
        .unwrap();
    w.warned("f1", "h1", Some("ann")).await;
    assert_eq!(
        w.said("f1").await,
        ["5 mail channel_unconfigured", "0 both "]
    );
    w.notices().await;
    assert_eq!(w.outbox().await, ["inapp ann scheduled"]);
    // Of the rule with a channel that is, the other one is refused to each user; of the other rule nobody was asked.
    assert_eq!(w.refusals("f1").await, ["5 email channel_unconfigured"]);
    let event = explain::event(&w.client, w.ws, "f1").await.unwrap();
    let lines = explain::explain(&w.client, w.ws, &event.unwrap(), "ann")
        .await
        .unwrap();
    let mail: Vec<_> = lines.iter().filter(|l| l.rule == "mail").collect();
    assert_eq!(mail.len(), 1);
    assert_eq!((mail[0].gate, mail[0].verdict), (Some(5), "refused"));
    assert_eq!(mail[0].reason, "channel_unconfigured");
    // With a transport again, it is on.
    w.client
        .execute("UPDATE mail_transports SET enabled = true", &[])
        .await
        .unwrap();
    w.warned("f2", "h2", Some("ann")).await;
    assert_eq!(w.said("f2").await, ["0 mail ", "0 both "]);
    w.balanced().await;
}

/// What breaks its declaration is rejected by name, and calls nothing off.
#[tokio::test]
async fn a_firing_that_breaks_its_declaration_is_rejected() {
    let mut w = World::new().await;
    let good = w.firing("f1", "g.house.warned", "h1", None);
    let mut undeclared = good.clone();
    undeclared.vars.insert("colour".to_owned(), json!("red"));
    let mut missing = good.clone();
    missing.vars.clear();
    let mut kind = good.clone();
    kind.vars.insert("stage".to_owned(), json!(7));
    let mut subject = good.clone();
    subject.subject = "h2".to_owned();
    let mut ceiling = good.clone();
    ceiling.ceiling = Some(millrace_schemas::ceiling::Ceiling::Staff);
    let mut unknown = good.clone();
    unknown.trigger = "g.house.sold".to_owned();
    for f in [&undeclared, &missing, &kind, &subject, &ceiling, &unknown] {
        w.fire(f).await;
    }
    let outcomes = w.outcomes("engagement").await;
    assert_eq!(
        outcomes,
        [
            "rejected ceiling_incomparable 1",
            "rejected subject_mismatch 1",
            "rejected trigger_unknown 1",
            "rejected variable_missing 1",
            "rejected variable_type 1",
            "rejected variable_undeclared 1",
        ]
    );
    assert_eq!(w.count("SELECT count(*) FROM firings").await, 0);
}

/// Preferences, statuses and rules count as they stand when the notice is decided, not as they stood when it was emitted.
#[tokio::test]
async fn what_changed_on_the_way_counts() {
    let mut w = World::new().await;
    for user in ["ann", "bob", "cid"] {
        w.user(user, "user").await;
        w.wants(user, "g.house.warned", "email", "instant").await;
    }
    w.rule("warn", "g.house.warned", "owner", &["email"], 0, 100)
        .await;
    for (id, user) in [("f1", "ann"), ("f2", "bob"), ("f3", "cid")] {
        w.warned(id, id, Some(user)).await;
    }
    // One unsubscribes from everything, one is banned, one's address is no longer verified.
    w.at(T0.plus_secs(1));
    w.wants("ann", "", "email", "off").await;
    w.client
        .batch_execute(
            "UPDATE users SET status = 'disabled' WHERE user_id = 'bob';
             UPDATE users SET email_verified = false WHERE user_id = 'cid'",
        )
        .await
        .unwrap();
    w.notices().await;
    assert_eq!(w.outbox().await, Vec::<String>::new());
    assert_eq!(w.refusals("f1").await, ["5 email preference_off"]);
    assert_eq!(w.refusals("f2").await, ["3 email user_inactive"]);
    assert_eq!(w.refusals("f3").await, ["5 email unverified"]);
    // A rule that was switched off tells nobody any more.
    w.warned("f4", "f4", Some("cid")).await;
    w.client
        .execute("UPDATE rules SET enabled = false", &[])
        .await
        .unwrap();
    w.notices().await;
    assert_eq!(w.refusals("f4").await, ["1 email rule_off"]);
    w.balanced().await;
}

/// Whoever's address is dead is refused mail at gate 5, however often something happens, and the claims of the living are not spent
/// on it; the inbox is theirs all the same.
#[tokio::test]
async fn a_dead_address_takes_nothing_from_the_living() {
    let mut w = World::new().await;
    for user in ["ann", "bob"] {
        w.user(user, "user").await;
        w.wants(user, "g.house.warned", "email", "instant").await;
    }
    w.rule(
        "warn",
        "g.house.warned",
        "owner",
        &["email", "inapp"],
        86_400,
        100,
    )
    .await;
    // One mail in an hour: a message to the dead would take it.
    w.rule("mail", "g.house.warned", "owner", &["email"], 86_400, 1)
        .await;
    // Written in another case: it is one address.
    w.client
        .batch_execute(
            "UPDATE users SET email = 'Bob@People.example' WHERE user_id = 'bob';
             INSERT INTO suppressions (suppression_id, workspace_id, address_hash, address_masked, reason)
             SELECT 'sp_1', workspace_id, sha256('bob@people.example'), 'b***@people.example', 'hard_bounce' FROM workspaces",
        )
        .await
        .unwrap();
    for (id, house) in [("f1", "h1"), ("f2", "h2"), ("f3", "h3")] {
        w.warned(id, house, Some("bob")).await;
    }
    w.notices().await;
    assert_eq!(w.outbox().await, ["inapp bob scheduled"; 3]);
    for id in ["f1", "f2", "f3"] {
        let refused = w.refusals(id).await;
        assert_eq!(refused, ["5 email address_suppressed"; 2], "{id}");
    }
    let claimed = "SELECT count(*) FROM cooldowns";
    assert_eq!(w.count(claimed).await, 3);
    assert_eq!(w.count("SELECT count(*) FROM sent_keys").await, 3);
    assert_eq!(w.count("SELECT count(*) FROM outbox_due").await, 3);
    let reason = says(&w, "f1", "bob").await;
    assert!(reason.contains("was suppressed"), "{reason}");
    // The hour is free for whoever can be reached.
    w.warned("f4", "h4", Some("ann")).await;
    w.notices().await;
    assert_eq!(w.refusals("f4").await, Vec::<String>::new());
    // Another workspace's list is none of this one's; without an entry the next event is mailed again.
    w.client
        .batch_execute(
            "INSERT INTO workspaces (slug, name) VALUES ('other', 'Other');
             UPDATE suppressions SET workspace_id = (SELECT workspace_id FROM workspaces WHERE slug = 'other')",
        )
        .await
        .unwrap();
    w.at(T0.plus_secs(7_200));
    w.warned("f5", "h1", Some("bob")).await;
    w.notices().await;
    assert_eq!(w.refusals("f5").await, ["7 inapp cooldown"]);
    w.balanced().await;
}

/// Whether an address is suppressed is looked up by its hash, one row a user, however long the list is.
#[tokio::test]
async fn a_suppressed_address_is_found_by_its_key() {
    let w = World::new().await;
    let fill = format!(
        "INSERT INTO suppressions (suppression_id, workspace_id, address_hash, address_masked, reason)
         SELECT 'sp_' || n, {}, sha256(convert_to(n::text, 'UTF8')), '***', 'manual' FROM generate_series(1, 20000) AS n;
         ANALYZE suppressions",
        w.ws
    );
    w.client.batch_execute(&fill).await.unwrap();
    // As an actor's connection makes it, once and for all.
    let planner = connections(w.db.url())().await.unwrap();
    let prepare = format!("PREPARE asked AS {}", load::PEOPLE);
    planner.batch_execute(&prepare).await.unwrap();
    let explain = "EXPLAIN EXECUTE asked (ARRAY[1], ARRAY['ann'])";
    let told = planner.simple_query(explain).await.unwrap();
    let lines: Vec<&str> = told
        .iter()
        .filter_map(|m| match m {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    let plan = lines.join("\n");
    assert!(plan.contains("suppressions_pkey"), "{plan}");
    assert!(
        lines
            .iter()
            .any(|l| l.contains("Index Cond") && l.contains("address_hash")),
        "{plan}"
    );
}

/// `explain` says what happened, gate by gate.
#[tokio::test]
async fn explain_says_what_the_gates_stored() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.user("bob", "user").await;
    w.rule("off", "g.house.warned", "owner", &["inapp"], 0, 100)
        .await;
    w.client
        .execute("UPDATE rules SET enabled = false", &[])
        .await
        .unwrap();
    w.rule(
        "warn",
        "g.house.warned",
        "owner",
        &["inapp", "email"],
        0,
        100,
    )
    .await;
    w.warned("f1", "h1", Some("ann")).await;
    w.notices().await;
    let event = explain::event(&w.client, w.ws, "f1")
        .await
        .unwrap()
        .unwrap();
    let lines = |user| explain::explain(&w.client, w.ws, &event, user);
    let told: Vec<String> = lines("ann")
        .await
        .unwrap()
        .iter()
        .map(|l| {
            format!(
                "{:?} {} {} {} {}",
                l.gate, l.rule, l.channel, l.verdict, l.reason
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            "Some(1) off  refused rule_off",
            "Some(4) warn  passed ",
            "Some(5) warn email refused preference_off",
            "None warn inapp told scheduled",
        ]
    );
    let other = lines("bob").await.unwrap();
    assert_eq!(other.last().unwrap().reason, "not_decided");
    assert_eq!(explain::event(&w.client, w.ws, "f9").await.unwrap(), None);
    // Whoever asks need not say of which workspace, as long as one alone has the event.
    let of = async |id: &str| explain::workspaces_of(&w.client, id).await.unwrap();
    assert_eq!(of("f1").await, [w.ws]);
    assert!(of("f9").await.is_empty());
}
