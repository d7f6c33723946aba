//! A cancel and a decision are of two partitions: the one may commit while the other has looked for it and not committed yet.

use super::world::{T0, World};
use millrace_tests::process::eventually;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// The decision has read the marks when the cancel commits, and commits after it: gate 0 has not seen it, the lease does.
#[actix::test]
async fn a_cancel_that_crosses_a_decision_is_seen_at_the_lease() {
    let mut w = World::new().await;
    w.user("ann", "user").await;
    w.rule("warn", "g.house.warned", "owner", &["inapp"], 0, 100)
        .await;
    w.client
        .execute("UPDATE rules SET cancel_on = '{g.house.saved}'", &[])
        .await
        .unwrap();
    // Another house, which stays as it is: the rule's hour is there from now on.
    w.warned("f0", "h0", Some("ann")).await;
    w.notices().await;
    w.warned("f1", "h1", Some("ann")).await;
    let notices = w.emitted().await;
    let saved = w.firing("f2", "g.house.saved", "h1", None);
    let saved = (
        saved.log_key().into_bytes(),
        serde_json::to_vec(&saved).unwrap(),
    );
    // Whoever holds the rule's hour holds a decision up that has read the marks: gate 6 comes after gate 0.
    let holder = w.db.client().await;
    holder
        .batch_execute("BEGIN; SELECT FROM rule_hours FOR UPDATE")
        .await
        .unwrap();
    let World {
        client,
        engagement,
        recipients,
        ..
    } = &mut w;
    let crossing = async {
        eventually("the decision waits for the hour", SOON, async || {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                           WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%rule_hours%'";
            let n: i64 = client.query_one(waiting, &[]).await?.get(0);
            Ok((n == 1).then_some(()))
        })
        .await
        .unwrap();
        engagement.send(&[saved]).await;
        let marks = "SELECT count(*) FROM cancel_marks";
        let marks: i64 = client.query_one(marks, &[]).await.unwrap().get(0);
        assert_eq!(marks, 1, "the cancel has committed");
        let told = "SELECT count(*) FROM outbox WHERE subject_key = 'h1'";
        let told: i64 = client.query_one(told, &[]).await.unwrap().get(0);
        assert_eq!(told, 0, "the decision has not");
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    futures::join!(recipients.send(&notices), crossing);

    assert_eq!(
        w.outbox().await,
        ["inapp ann scheduled", "inapp ann scheduled"]
    );
    assert_eq!(w.refusals("f1").await, Vec::<String>::new());
    w.at(T0.plus_secs(901));
    w.deliver().await;
    let ended = "SELECT count(*) FROM outbox WHERE (subject_key, status, status_reason) = ('h1', 'cancelled', 'called_off')";
    assert_eq!(w.count(ended).await, 1);
    let sent = "SELECT count(*) FROM outbox WHERE (subject_key, status) = ('h0', 'sent')";
    assert_eq!(w.count(sent).await, 1);
    let told = "SELECT count(*) FROM user_notifications";
    assert_eq!(w.count(told).await, 1, "of the other house alone");
    w.balanced().await;
}
