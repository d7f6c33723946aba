//! The role in processes of its own, on the Postgres log, killed at each point of a batch.

use crate::faults::{killed_itself, turn, with_words};
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::firing::Firing;
use millrace_schemas::frame::Frame;
use millrace_schemas::time::Micros;
use millrace_tests::deployment::{Deployment, Line, Log, PATIENCE};
use millrace_tests::process::{Launch, eventually};
use millrace_topics::{catalogue, pglog};
use serde_json::json;
use std::collections::BTreeMap;

/// Accounts whose logins fail.
const ACCOUNTS: u64 = 23;

fn line(seq: u64) -> Line {
    let account = format!("account-{}", seq % ACCOUNTS);
    // Every third frame is of a kind that nothing maps, every sixth a login that went well.
    let (kind, accepted) = match seq % 6 {
        1 | 4 => ("nobody.maps.this", true),
        0 => ("account.login.result", true),
        _ => ("account.login.result", false),
    };
    let body =
        json!({"acct": account, "accepted": accepted, "ip": "198.51.100.7", "reason": "BadPass"});
    let frame = Frame {
        v: WIRE_VERSION,
        ws: 1,
        shard: "atlantic".to_owned(),
        boot: "first".to_owned(),
        seq,
        kind: kind.to_owned(),
        key: account,
        accepted_at: Micros(1_790_000_000_000_000 + i64::try_from(seq).unwrap()),
        body: serde_json::value::to_raw_value(&body).unwrap(),
        replay: None,
    };
    Line {
        topic: catalogue::FRAMES.to_owned(),
        key: frame.log_key().into_bytes(),
        payload: serde_json::to_vec(&frame).unwrap(),
    }
}

fn launch(at: &Deployment, name: &str) -> anyhow::Result<Launch> {
    at.role("thresholds", name)
}

/// Every firing in the log: how often each stands there, by the frame's sequence.
async fn fired(at: &Deployment) -> anyhow::Result<BTreeMap<String, usize>> {
    let store = at.store().await;
    let triggers = catalogue::find(&catalogue::load(&store).await?, catalogue::TRIGGERS)?;
    let mut all = BTreeMap::new();
    for w in pglog::watermarks(&store, std::slice::from_ref(&triggers)).await? {
        for offset in w.low..w.high {
            let found = pglog::record_at(&store, w.topic_no, w.partition, offset).await?;
            let (_, payload) = found.ok_or_else(|| anyhow::anyhow!("a hole at {offset}"))?;
            let firing: Firing = serde_json::from_slice(&payload)?;
            anyhow::ensure!(firing.trigger == "uo.account.login_failed", "{firing:?}");
            *all.entry(firing.dedupe).or_default() += 1;
        }
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_anywhere_each_firing_stands_in_the_log_once() {
    let _turn = turn().await;
    let more = [("modules.enabled", "uo"), ("runtime.batch_records", "40")];
    let at = Deployment::start_with("thresholds", Log::Postgres, 4, &more).await;
    let at = &at.unwrap();
    let points = [
        "batch.before_begin",
        "batch.after_fence",
        "batch.after_claims",
        "batch.before_commit",
        "batch.after_commit",
    ];
    let done = async {
        let mut seq = 0;
        for (n, point) in points.into_iter().enumerate() {
            let mut lines: Vec<Line> = (seq + 1..=seq + 300).map(line).collect();
            // The sidecar's last acknowledgements were lost.
            lines.extend((seq.saturating_sub(20) + 1..=seq).map(line));
            seq += 300;
            at.append(lines).await?;
            let action = format!("abort@{}", 1 + n % 3);
            let name = format!("dies-{point}");
            killed_itself(&mut launch(at, &name)?.failpoint(point, &action).spawn()?).await?;
        }
        let _last = launch(at, "last")?.spawn()?;
        let wanted = i64::try_from(seq)? + 4 * 20;
        let store = at.store().await;
        eventually("all frames are decided", PATIENCE, async || {
            let row = store
                .query_one(
                    "SELECT coalesce(sum(n), 0)::int8 FROM outcomes WHERE group_name = 'thresholds'",
                    &[],
                )
                .await?;
            Ok((row.get::<_, i64>(0) >= wanted).then_some(()))
        })
        .await?;
        let rows = store
            .query(
                "SELECT outcome, reason, sum(n)::int8 FROM outcomes WHERE group_name = 'thresholds' GROUP BY 1, 2 ORDER BY 1, 2",
                &[],
            )
            .await?;
        let outcomes: Vec<(i16, String, i64)> = rows
            .iter()
            .map(|r| (r.get(0), r.get(1), r.get(2)))
            .collect();
        let unmapped = i64::try_from(seq)? / 3;
        anyhow::ensure!(
            outcomes
                == [
                    (0, String::new(), i64::try_from(seq)? - unmapped),
                    (0, "unmapped".to_owned(), unmapped),
                    (1, String::new(), 4 * 20),
                ],
            "{outcomes:?}"
        );
        let all = fired(at).await?;
        let failed = (1..=seq).filter(|s| matches!(s % 6, 2 | 3 | 5)).count();
        anyhow::ensure!(
            all.values().all(|n| *n == 1),
            "a firing stands in the log twice"
        );
        anyhow::ensure!(all.len() == failed, "{} firings of {failed}", all.len());
        Ok(())
    };
    let done = done.await;
    with_words(at, done);
}

/// Nothing is claimed, and nothing polls, where no module is enabled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_module_nobody_consumes_frames() {
    let at = Deployment::start("thresholds-off", Log::Postgres, 2)
        .await
        .unwrap();
    let done = async {
        let mut process = at.role("admin,thresholds", "off")?.spawn()?;
        process.wait_for_log("millrace is up", PATIENCE).await?;
        let store = at.store().await;
        let row = store
            .query_one(
                "SELECT count(*) FROM ownership WHERE group_name = 'thresholds'",
                &[],
            )
            .await?;
        anyhow::ensure!(
            row.get::<_, i64>(0) == 0,
            "a partition of thresholds is owned"
        );
        Ok(())
    };
    let done = done.await;
    with_words(&at, done);
}
