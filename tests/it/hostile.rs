//! A short form of `loadtest bodies`: some thousands of hostile bodies of one seed to every door, and requests to every admin route.

use millrace_tests::hostile::{Stage, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_are_answered_and_what_was_accepted_has_its_outcome() {
    let mut stage = Stage::start("hostile", "info").await.expect("it starts");
    let ended = run(&mut stage, 3_000, 7, 12, |_| {})
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    let tally = &ended.tally;
    assert_eq!(tally.wrongs, 0, "{}", tally.wrong.join("\n\n"));
    assert_eq!(tally.to_doors(), 3_000);
    for door in [
        "POST /e",
        "POST /pb",
        "POST /v1/batch/visits",
        "POST /v1/batch/clicks",
        "POST /v1/batch/postbacks",
        "POST /feed/{shard}",
        "POST /unsubscribe/{token}",
    ] {
        let bodies = tally.bodies.get(door).copied().unwrap_or(0);
        assert!(bodies > 100, "{bodies} to {door}:\n{}", tally.table());
    }
    // Every route was asked, and most of the refusals there are.
    assert!(tally.answers.len() >= 50, "{}", tally.table());
    for status in [200, 204, 302, 400, 401, 403, 404, 405, 415, 428] {
        assert!(
            tally.with_status(status) > 0,
            "no {status}:\n{}",
            tally.table()
        );
    }
    let produced = u64::try_from(ended.produced).expect("no less than none");
    assert!(
        (tally.accepted..=tally.accepted + tally.unsure).contains(&produced),
        "{produced} records in the log, {} accepted, {} unsure",
        tally.accepted,
        tally.unsure
    );
    assert_eq!(ended.outcomes, ended.records, "{:?}", ended.by_outcome);
    let frames = u64::try_from(ended.frames).expect("no less than none");
    assert!(
        frames > 50 && frames <= tally.frames,
        "{frames} of {} lines",
        tally.frames
    );
    assert!(produced > 1_000, "{produced} accepted");
}
