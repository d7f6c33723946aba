//! `verify` over what the gates told: clean as they leave it, and each thing that must not be is named, by its check and no other.

use super::world::{T0, World};
use millrace::postgres::types::Tz;
use millrace::verify::{self, Options, Report};
use millrace_schemas::firing::Firing;
use serde_json::json;

const DAY_S: i64 = 86_400;

/// What is done, how many differences that makes, and in which words.
const CORRUPTIONS: &[(&str, u64, &str)] = &[
    // A firing that told nobody is not noted.
    (
        "DELETE FROM firings WHERE firing_id = 'nobody'",
        1,
        "counted as applied",
    ),
    // One is noted twice.
    (
        "INSERT INTO firings SELECT * FROM firings WHERE firing_id = 'nobody'",
        1,
        "counted as applied",
    ),
    // A message tells of a firing that is not there.
    (
        "UPDATE outbox SET firing_pos = gen_random_uuid() WHERE rule_id = 'call'",
        1,
        "tells of a firing that is not there",
    ),
    // One house's message was another's: an hour after its first, an hour less than a day before its second.
    (
        "UPDATE outbox o SET cancel_key = x.cancel_key, subject_key = x.subject_key FROM outbox x
         WHERE o.rule_id = 'warn' AND o.subject_key = 'h2' AND x.rule_id = 'warn' AND x.subject_key = 'h1'",
        2,
        "within the rule's cooldown of 86400 s",
    ),
    // What is an owner's was told to somebody else.
    (
        "UPDATE outbox SET user_id = 'bob' WHERE rule_id = 'warn' AND subject_key = 'h2'",
        1,
        "told to bob, who is outside the event's ceiling `owner`",
    ),
    // What is for a list was told to somebody who is not on it.
    (
        "UPDATE outbox SET user_id = 'bob' WHERE rule_id = 'team' AND user_id = 'cid'",
        1,
        "told to bob, who is outside the event's ceiling `members`",
    ),
    // What is the staff's.
    (
        "UPDATE outbox SET user_id = 'bob' WHERE rule_id = 'call'",
        1,
        "told to bob, who is outside the event's ceiling `staff`",
    ),
    // What is the admins', to one of the staff.
    (
        "UPDATE outbox SET user_id = 'mod' WHERE rule_id = 'audit'",
        1,
        "told to mod, who is outside the event's ceiling `admin`",
    ),
    // What was sent to an inbox is not there.
    (
        "DELETE FROM user_notifications WHERE user_id = 'ann' AND dedupe_key = 'g.house.warned:first'",
        1,
        "sent to the inbox of ann, and not there",
    ),
];

/// Tables that corruptions touch.
const TOUCHED: [&str; 3] = ["outbox", "firings", "user_notifications"];

fn differing(report: &Report) -> Vec<&'static str> {
    let differing = report.checks.iter().filter(|c| c.differences > 0);
    differing.map(|c| c.check).collect()
}

async fn verified(w: &World) -> Report {
    verify::run(&w.client, &Options::default()).await.unwrap()
}

/// A team's announcement to these users.
fn announced(ws: i32, id: &str, users: &[&str]) -> Firing {
    serde_json::from_value(json!({
        "v": 1, "ws": ws, "id": id, "trigger": "g.team.announced", "module": "g", "subject": "7",
        "vars": {"team": "7"}, "recipients": users, "dedupe": id, "at": T0.0, "accepted_at": T0.0
    }))
    .unwrap()
}

/// Told by every ceiling, twice of one event, again after exactly a cooldown, and by a rule that cools down since it was changed.
async fn told() -> World {
    let mut w = World::new().await;
    for user in ["ann", "bob", "cid"] {
        w.user(user, "user").await;
    }
    w.user("mod", "moderator").await;
    w.user("boss", "admin").await;
    let (house, day) = ("g.house.warned", DAY_S);
    w.rule("warn", house, "owner", &["inapp"], day, 100).await;
    w.rule("also", house, "owner", &["inapp"], 0, 100).await;
    w.rule("team", "g.team.announced", "members", &["inapp"], day, 100)
        .await;
    w.rule("audit", "g.page.audited", "admin", &["inapp"], day, 100)
        .await;
    w.rule("call", "g.page.new", "staff", &["inapp"], day, 100)
        .await;
    w.warned("first", "h1", Some("ann")).await;
    w.warned("nobody", "h1", None).await;
    let announced = announced(w.ws, "friday", &["ann", "cid"]);
    w.fire(&announced).await;
    let audited = w.firing("audited", "g.page.audited", "p1", None);
    w.fire(&audited).await;
    w.notices().await;
    w.at(T0.plus_secs(3_600));
    w.warned("other", "h2", Some("ann")).await;
    // By the rule without a cooldown alone.
    w.warned("soon", "h1", Some("ann")).await;
    // The one of the staff who is no admin: what is told to both, `boss` has in the same words.
    w.client
        .execute(
            "UPDATE users SET status = 'disabled' WHERE user_id = 'boss'",
            &[],
        )
        .await
        .unwrap();
    let call = w.firing("call", "g.page.new", "p1", None);
    w.fire(&call).await;
    w.notices().await;
    w.client
        .execute(
            "UPDATE users SET status = 'active' WHERE user_id = 'boss'",
            &[],
        )
        .await
        .unwrap();
    // It told of one house twice within an hour, before it cooled down for a day.
    w.client
        .execute(
            "UPDATE rules SET cooldown_s = 86400, version = version + 1 WHERE rule_id = 'also'",
            &[],
        )
        .await
        .unwrap();
    // To the second.
    w.at(T0.plus_secs(DAY_S));
    w.warned("again", "h1", Some("ann")).await;
    w.notices().await;
    w.at(T0.plus_secs(2 * DAY_S));
    w.deliver().await;
    // Nobody has changed since long before: what they are, they were.
    let long_before = Tz(T0.plus_secs(-DAY_S));
    w.client
        .execute("UPDATE users SET updated_at = $1", &[&long_before])
        .await
        .unwrap();
    w
}

#[actix::test]
async fn what_must_not_be_told_is_named_if_it_was() {
    let w = told().await;
    let told = w.outbox().await;
    assert!(told.iter().all(|m| m.ends_with(" sent")), "{told:?}");
    // Of three events about houses by two rules and of one by one, to a list of two, and to one each of the admins and the staff.
    let judged = w.outcomes("engagement").await;
    assert_eq!(told.len(), 7 + 2 + 1 + 1, "{told:?} {judged:?}");
    let items = w.count("SELECT count(*) FROM user_notifications").await;
    assert_eq!(
        items,
        4 + 2 + 1 + 1,
        "two rules that tell one event leave one item"
    );
    let report = verified(&w).await;
    assert!(report.is_clean(), "{report}");

    let mut keep = "CREATE SCHEMA kept;".to_owned();
    let mut restore = format!("TRUNCATE {};", TOUCHED.join(", "));
    for table in TOUCHED {
        keep += &format!("CREATE TABLE kept.{table} AS TABLE {table};");
        restore +=
            &format!("INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM kept.{table};");
    }
    w.client.batch_execute(&keep).await.unwrap();
    for (sql, n, words) in CORRUPTIONS {
        let touched = w.client.execute(*sql, &[]).await.unwrap();
        assert!(touched > 0, "nothing to corrupt: {sql}");
        let report = verified(&w).await;
        assert_eq!(differing(&report), ["gates"], "{sql}\n{report}");
        assert_eq!(report.count(), *n, "{sql}\n{report}");
        let said = report.differences().all(|(_, d)| d.what.contains(words));
        assert!(said, "{sql}\n{report}");
        w.client.batch_execute(&restore).await.unwrap();
    }
    let report = verified(&w).await;
    assert!(report.is_clean(), "{report}");
}

/// What cannot be known any more is not called wrong: who changed since, and by which rule that changed since.
#[actix::test]
async fn what_cannot_be_judged_any_more_is_not_called_wrong() {
    let w = told().await;
    let changes = "
        UPDATE users SET role = 'user', updated_at = now() WHERE user_id = 'mod';
        UPDATE rules SET cooldown_s = 10 * 86400, version = version + 1 WHERE rule_id = 'warn'";
    w.client.batch_execute(changes).await.unwrap();
    let report = verified(&w).await;
    assert!(report.is_clean(), "{report}");
    // The same without a word of it: a user who was none of the staff all along, a rule that cooled down for longer.
    let changes = [
        (
            "UPDATE users SET updated_at = '2026-01-01' WHERE user_id = 'mod'",
            1,
        ),
        (
            "UPDATE firing_rules SET rule_version = 2 WHERE rule_id = 'warn'",
            2,
        ),
    ];
    for (sql, n) in changes {
        w.client.batch_execute(sql).await.unwrap();
        let report = verified(&w).await;
        assert_eq!(differing(&report), ["gates"], "{sql}\n{report}");
        assert_eq!(report.count(), n, "{sql}\n{report}");
    }
}
