//! The host of a group, as a consumer's thread sees it.

use super::{SOON, Sums, World};
use actix::System;
use millrace::runtime::books::Emits;
use millrace::runtime::clock::ManualClock;
use millrace::runtime::host::{GroupHost, HostConfig};
use millrace_schemas::time::Micros;
use millrace_topics::contract::PartitionHost;
use std::time::{Duration, Instant};

/// Waits for a condition that nobody announces; from a thread that may block, and `check` may block too.
fn until(what: &str, mut check: impl FnMut() -> bool) {
    let runtime = tokio::runtime::Handle::current();
    let mut every = tokio::time::interval(Duration::from_millis(5));
    let deadline = Instant::now() + SOON;
    while !check() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        runtime.block_on(every.tick());
    }
}

/// The host as a consumer's thread sees it, on an actix system of its own.
fn with_host(run: impl FnOnce(&GroupHost<Sums>, &mut World) + Send + 'static) {
    with_host_over("", run);
}

/// The same, with this done in the store before the host is there.
fn with_host_over(
    before: &'static str,
    run: impl FnOnce(&GroupHost<Sums>, &mut World) + Send + 'static,
) {
    System::new().block_on(async move {
        let mut w = World::new().await;
        w.client.batch_execute(before).await.unwrap();
        let config = HostConfig {
            topics: w.topics.clone(),
            connect: w.connect(w.database.url()),
            clock: ManualClock::at(Micros(1)),
            owner: "host".to_owned(),
            tick: Duration::from_millis(50),
            emits: Emits::Relayed,
        };
        let host = GroupHost::new(config, 2, Sums::default);
        tokio::task::spawn_blocking(move || {
            run(&host, &mut w);
            host.close();
        })
        .await
        .unwrap();
    });
}

/// Waits until the host knows that its group is not paused.
fn goes(host: &GroupHost<Sums>) {
    until("the group goes", || host.in_flight(0).records == 0);
}

fn ask(w: &World, sql: &str) -> i64 {
    tokio::runtime::Handle::current().block_on(w.count(sql))
}

#[test]
fn the_host_starts_feeds_and_lets_go() {
    with_host(|host, w| {
        let answers = host.assigned(&[0, 1], Duration::from_secs(5));
        assert!(
            answers
                .iter()
                .all(|(_, a)| a.as_ref().is_ok_and(|p| p[0].next_offset == 0)),
            "{answers:?}"
        );
        assert_eq!(host.owned(), [0, 1]);
        goes(host);
        let batch = w.batch(&["a=1", "a=2"]);
        host.batch(batch).unwrap();
        until("the batch is committed", || host.in_flight(0).records == 0);
        assert!(
            host.progress()
                .iter()
                .any(|(p, at)| *p == 0 && at.next_offset == 2)
        );
        host.revoked(&[0, 1], false);
        assert_eq!(host.owned(), [0i32; 0]);
        let late = w.batch(&["a=4"]);
        assert!(host.batch(late).is_err(), "what was let go takes nothing");
        assert_eq!(ask(w, "SELECT sum FROM sums WHERE name = 'a'"), 3);
    });
}

#[test]
fn a_stopped_partition_is_named_and_comes_back_when_resumed() {
    with_host(|host, w| {
        host.assigned(&[0], Duration::from_secs(5));
        goes(host);
        let batch = w.batch(&["nonsense"; 60]);
        host.batch(batch).unwrap();
        until("the stop is seen", || !host.stopped().is_empty());
        assert!(host.wants_reassignment().is_empty());
        let answer = host.assigned(&[0], Duration::from_secs(5));
        assert!(
            matches!(
                &answer[..],
                [(0, Err(millrace_topics::contract::ClaimError::Stopped(_)))]
            ),
            "{answer:?}"
        );
        let resumed = "UPDATE ownership SET stopped_reason = NULL";
        tokio::runtime::Handle::current()
            .block_on(w.client.batch_execute(resumed))
            .unwrap();
        until("the resume is seen", || host.wants_reassignment() == [0]);
        let answer = host.assigned(&[0], Duration::from_secs(5));
        assert!(
            matches!(&answer[..], [(0, Ok(at))] if at[0].next_offset == 50),
            "{answer:?}"
        );
        assert!(host.stopped().is_empty());
    });
}

#[test]
fn a_paused_group_takes_no_records_and_goes_on_when_resumed() {
    with_host(|host, w| {
        host.assigned(&[0], Duration::from_secs(5));
        goes(host);
        let handle = tokio::runtime::Handle::current();
        handle
            .block_on(
                w.client
                    .batch_execute("INSERT INTO paused_groups VALUES ('sums', now(), 'test')"),
            )
            .unwrap();
        until("the pause is seen", || {
            host.in_flight(0).records == usize::MAX
        });
        let batch = w.batch(&["a=1"]);
        let back = host.batch(batch).expect_err("paused");
        handle
            .block_on(w.client.batch_execute("DELETE FROM paused_groups"))
            .unwrap();
        until("the resume is seen", || host.in_flight(0).records == 0);
        host.batch(back).unwrap();
        until("the batch is committed", || host.in_flight(0).records == 0);
        assert_eq!(ask(w, "SELECT sum FROM sums WHERE name = 'a'"), 1);
    });
}

#[test]
fn a_group_that_was_paused_before_the_process_began_takes_no_record_at_all() {
    let pause = "INSERT INTO paused_groups VALUES ('sums', now(), 'test')";
    with_host_over(pause, |host, w| {
        host.assigned(&[0], Duration::from_secs(5));
        let batch = w.batch(&["a=1"]);
        let back = host.batch(batch).expect_err("paused");
        tokio::runtime::Handle::current()
            .block_on(w.client.batch_execute("DELETE FROM paused_groups"))
            .unwrap();
        goes(host);
        host.batch(back).unwrap();
        until("the batch is committed", || host.in_flight(0).records == 0);
        assert_eq!(ask(w, "SELECT sum FROM sums WHERE name = 'a'"), 1);
    });
}

#[test]
fn a_claim_that_comes_too_late_is_kept_for_the_next_time() {
    with_host(|host, w| {
        let answer = host.assigned(&[0], Duration::ZERO);
        assert!(
            matches!(
                &answer[..],
                [(0, Err(millrace_topics::contract::ClaimError::Later(_)))]
            ),
            "{answer:?}"
        );
        until("the late claim is taken up", || {
            host.assigned(&[0], Duration::ZERO)[0].1.is_ok()
        });
        assert_eq!(host.owned(), [0]);
        assert_eq!(ask(w, "SELECT max(epoch) FROM ownership"), 1);
        goes(host);
        let batch = w.batch(&["a=1"]);
        host.batch(batch).unwrap();
        until("the batch is committed", || {
            ask(w, "SELECT coalesce(sum(sum), 0)::int8 FROM sums") == 1
        });
    });
}

#[test]
fn a_claim_waits_for_a_hung_owner_no_longer_than_it_is_told_and_names_it() {
    with_host(|host, w| {
        let handle = tokio::runtime::Handle::current();
        host.assigned(&[0], Duration::from_secs(5));
        host.revoked(&[0], false);
        handle
            .block_on(
                w.client
                    .batch_execute("BEGIN; SELECT 1 FROM ownership WHERE partition = 0 FOR UPDATE"),
            )
            .unwrap();
        let answer = host.assigned(&[0], Duration::from_secs(5));
        let named = |why: &str| why.contains("held by host");
        assert!(
            matches!(&answer[..], [(0, Err(millrace_topics::contract::ClaimError::Later(why)))] if named(why)),
            "{answer:?}"
        );
        handle.block_on(w.client.batch_execute("ROLLBACK")).unwrap();
        assert!(host.assigned(&[0], Duration::from_secs(5))[0].1.is_ok());
    });
}
