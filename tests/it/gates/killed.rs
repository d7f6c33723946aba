//! Both groups in processes of their own, on the Postgres log, killed at each point of a batch: every firing is told once, no
//! cooldown is broken, and the store adds up.

use crate::faults::{killed_itself, turn, with_words};
use millrace_schemas::firing::Firing;
use millrace_tests::deployment::{Deployment, Line, Log, PATIENCE};
use millrace_tests::process::eventually;
use millrace_topics::catalogue;
use serde_json::json;
use std::collections::BTreeSet;

/// Firings of one death.
const FIRINGS: u64 = 120;
const USERS: u64 = 7;
const TEAMS: u64 = 17;

/// Whom a firing carries, and of which team it is.
fn about(n: u64) -> (Vec<String>, String) {
    let users = (0..3).map(|k| format!("u{}", (n * 3 + k) % USERS));
    (users.collect(), format!("team-{}", n % TEAMS))
}

fn line(ws: i32, n: u64) -> Line {
    let (users, team) = about(n);
    let at = 1_796_040_000_000_000 + n;
    let firing: Firing = serde_json::from_value(json!({
        "v": 1, "ws": ws, "id": format!("ev_{n}"), "trigger": "team.announcement", "module": "core", "subject": team,
        "vars": {"teamId": team, "title": format!("Number {n}")}, "recipients": users, "scope": format!("team:{team}"),
        "dedupe": format!("ev_{n}"), "at": at, "accepted_at": at
    }))
    .unwrap();
    Line {
        topic: catalogue::TRIGGERS.to_owned(),
        key: firing.log_key().into_bytes(),
        payload: serde_json::to_vec(&firing).unwrap(),
    }
}

async fn people(at: &Deployment) -> anyhow::Result<i32> {
    let store = at.store().await;
    let ws: i32 = store
        .query_one(
            "INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme') RETURNING workspace_id",
            &[],
        )
        .await?
        .get(0);
    store
        .execute(
            "INSERT INTO users (workspace_id, user_id, changed_at) SELECT $1, 'u' || n, now() FROM generate_series(0, $2::int4 - 1) n",
            &[&ws, &i32::try_from(USERS)?],
        )
        .await?;
    store
        .execute(
            "INSERT INTO rules (rule_id, workspace_id, trigger_id, name, enabled, channels, audience, cooldown_s, hourly_cap)
             SELECT r.id, $1, 'team.announcement', r.id, true, '{inapp}', 'members', r.cooldown, 1000000
             FROM (VALUES ('always', 0), ('cool', 86400)) AS r(id, cooldown)",
            &[&ws],
        )
        .await?;
    Ok(ws)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_anywhere_everybody_is_told_once() {
    let _turn = turn().await;
    let more = [
        ("modules.enabled", "survival"),
        ("runtime.batch_records", "30"),
    ];
    let at = Deployment::start_with("gates", Log::Postgres, 2, &more).await;
    let at = &at.unwrap();
    let points = [
        "batch.before_begin",
        "batch.after_fence",
        "batch.after_claims",
        "batch.before_commit",
        "batch.after_commit",
    ];
    let done = async {
        let ws = people(at).await?;
        let mut n = 0;
        for (turn, point) in points.into_iter().enumerate() {
            at.append((n..n + FIRINGS).map(|n| line(ws, n)).collect())
                .await?;
            n += FIRINGS;
            let action = format!("abort@{}", 1 + turn % 4);
            let process = at.role("engagement,recipients", &format!("dies-{point}"))?;
            killed_itself(&mut process.failpoint(point, &action).spawn()?).await?;
        }
        let _last = at.role("engagement,recipients", "last")?.spawn()?;
        let store = at.store().await;
        let wanted = i64::try_from(n * 3)?;
        eventually("all notices are decided", PATIENCE, async || {
            let decided =
                "SELECT coalesce(sum(n), 0)::int8 FROM outcomes WHERE group_name = 'recipients'";
            let row = store.query_one(decided, &[]).await?;
            Ok((row.get::<_, i64>(0) >= wanted).then_some(()))
        })
        .await?;
        let rows = store
            .query(
                "SELECT rule_id, count(*), count(DISTINCT dedupe_key), count(DISTINCT (user_id, subject_key)) FROM outbox
                 GROUP BY 1 ORDER BY 1",
                &[],
            )
            .await?;
        let told: Vec<(String, i64, i64, i64)> = rows
            .iter()
            .map(|r| (r.get(0), r.get(1), r.get(2), r.get(3)))
            .collect();
        let pairs: BTreeSet<(String, String)> = (0..n)
            .map(about)
            .flat_map(|(users, team)| users.into_iter().map(move |u| (u, team.clone())))
            .collect();
        let pairs = i64::try_from(pairs.len())?;
        anyhow::ensure!(
            told == [
                ("always".to_owned(), wanted, wanted, pairs),
                ("cool".to_owned(), pairs, pairs, pairs)
            ],
            "{told:?}, {wanted} notices, {pairs} pairs of a user and a team"
        );
        at.launch("verify")?.args(["verify"]).run(PATIENCE).await?;
        Ok(())
    };
    let done = done.await;
    with_words(at, done);
}
