//! Handing over: limits, room, pauses.

use super::*;

pub async fn a_batch_that_found_no_room_arrives_unchanged<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 1).await else {
        return;
    };
    let host = w.host("a");
    host.set_no_room(true);
    let consumer = w.consumer(&host);
    produced(&w.producer(), records(&w.topics[0], "r", 100)).await;
    let twice = |events: &[Event]| {
        let back = |e: &&Event| matches!(e, Event::HandedBack { .. });
        events.iter().filter(back).count() >= 3
    };
    assert!(host.events_within(SOON, twice).await);
    host.set_no_room(false);
    assert!(w.store.committed_within(100, SOON).await);
    let want: Vec<_> = (0..100).map(|i| (i, format!("r{i}"))).collect();
    assert_eq!(w.seen(0, 0), want);
    shut(&consumer).await;
}

pub async fn paused_partitions_rest_and_go_on<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(host.owned_within(SOON, |o| o == [0, 1]).await);
    consumer.pause(&[0]);
    // What was under way when the pause came may still arrive; the second round may not.
    for round in 0..2 {
        let mut sent = Vec::new();
        for partition in 0..2 {
            let key = key_in(topic, partition);
            sent.extend((0..20).map(|i| record(topic, &key, &format!("{round}-{i}"))));
        }
        produced(&producer, sent).await;
        eventually("the other partition goes on", || {
            w.seen(0, 1).len() == 20 * (round + 1)
        })
        .await;
    }
    assert!(
        w.seen(0, 0).len() <= 20,
        "{} of a paused partition",
        w.seen(0, 0).len()
    );
    consumer.resume(&[0]);
    assert!(w.store.committed_within(80, SOON).await);
    let order: Vec<i64> = w.seen(0, 0).iter().map(|s| s.0).collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
    shut(&consumer).await;
}

pub async fn a_full_partition_gets_no_more_until_it_has_room<L: Log>() {
    let Some(mut w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    w.limits = BatchLimits {
        records: 10,
        high_records: 30,
        ..BatchLimits::default()
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    let host = w.host("a");
    host.hold();
    let consumer = w.consumer(&host);
    let in_partition = |partition: i32, n: usize| {
        let key = key_in(topic, partition);
        (0..n)
            .map(|i| record(topic, &key, &format!("{i}")))
            .collect::<Vec<_>>()
    };
    produced(&producer, in_partition(0, 500)).await;
    let taken = |events: &[Event], of: i32| {
        let records = |e: &Event| match e {
            Event::Batch {
                partition, records, ..
            } if *partition == of => records.len(),
            _ => 0,
        };
        events.iter().map(records).sum::<usize>()
    };
    assert!(host.events_within(SOON, move |e| taken(e, 0) >= 10).await);
    // Another partition's record shows that the consumer has had its turn.
    produced(&producer, in_partition(1, 1)).await;
    assert!(host.events_within(SOON, move |e| taken(e, 1) == 1).await);
    let most = taken(&host.events(), 0);
    assert!(
        most <= 40,
        "{most} records under way, the high watermark is 30"
    );
    host.release();
    assert!(w.store.committed_within(501, SOON).await);
    assert_eq!(w.store.refused(), 0);
    shut(&consumer).await;
}

pub async fn large_and_small_records_keep_within_the_limits<L: Log>() {
    let Some(mut w) = World::<L>::new(&["clicks", "postbacks"], 1).await else {
        return;
    };
    w.limits = BatchLimits {
        records: 50,
        bytes: 50_000,
        high_records: 100,
        high_bytes: 100_000,
    };
    let sizes = [1, 7_990, 300, 8_000, 0, 60_000, 200_000, 12, 30_000, 20_000];
    let mut sent = Vec::new();
    for i in 0..100 {
        let text = "z".repeat(sizes[i % sizes.len()]);
        sent.push(record(&w.topics[i % 2], "k", &format!("{i}{text}")));
    }
    let texts: Vec<String> = sent
        .iter()
        .map(|r| String::from_utf8_lossy(&r.payload).into_owned())
        .collect();
    produced(&w.producer(), sent).await;
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(100, SOON).await);
    let sizes: BTreeMap<(i32, i64), usize> = w
        .store
        .ledger()
        .iter()
        .map(|s| ((s.topic_no, s.offset), s.key.len() + s.payload.len()))
        .collect();
    for event in host.events() {
        if let Event::Batch { records, .. } = event {
            let bytes: usize = records.iter().map(|r| sizes[r]).sum();
            let largest = records.iter().map(|r| sizes[r]).max().unwrap_or(0);
            assert!(records.len() <= 50);
            // One record may pass the limit.
            assert!(
                bytes - largest <= 50_000,
                "{} records of {bytes} bytes, the largest of {largest}",
                records.len()
            );
        }
    }
    for topic in 0..2 {
        let want: Vec<String> = texts.iter().skip(topic).step_by(2).cloned().collect();
        let seen: Vec<String> = w.seen(topic, 0).into_iter().map(|s| s.1).collect();
        assert_eq!(seen, want);
    }
    shut(&consumer).await;
}
