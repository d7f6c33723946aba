//! What is said of an event that no gate has decided.

use super::world::{T0, World};
use millrace::engagement::undecided;
use millrace::postgres::types::Tz;

/// Thresholds note the last firing of each kind that breaks its trigger's declaration: whoever asks for it hears why, and of which
/// record of the log it comes.
#[tokio::test]
async fn a_rejected_event_is_found_by_its_id() {
    let w = World::new().await;
    w.client
        .execute(
            "INSERT INTO firing_rejects (partition, workspace, trigger, reason, variable, n, last_at, last_id)
             VALUES (0, $1, 'g.house.warned', 'variable_type', 'stage', 3, $2, '1-0-7-0')",
            &[&w.ws, &Tz(T0)],
        )
        .await
        .unwrap();
    for ws in [Some(w.ws), None] {
        let why = undecided::why(&w.client, ws, "1-0-7-0").await.unwrap();
        for part in [
            "rejected(variable_type) at `stage`",
            "`g.house.warned`",
            "the last of 3",
            "record 1-0-7 ",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
    let elsewhere = undecided::why(&w.client, Some(w.ws + 1), "1-0-7-0").await;
    let earlier = undecided::why(&w.client, Some(w.ws), "1-0-6-0").await;
    for (why, record) in [(elsewhere, "record 1-0-7 "), (earlier, "record 1-0-6 ")] {
        let why = why.unwrap();
        assert!(why.contains("not decided yet"), "{why}");
        assert!(why.contains(record), "{why}");
    }
    let minted = undecided::why(&w.client, None, "ev_1").await.unwrap();
    assert!(!minted.contains("record"), "{minted}");
}
