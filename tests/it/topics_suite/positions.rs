//! Consuming: order, positions, claims, ends, restarts.

use super::*;

pub async fn every_record_arrives_once_in_order<L: Log>() {
    let Some(mut w) = World::<L>::new(&["clicks", "postbacks"], 3).await else {
        return;
    };
    w.limits = BatchLimits {
        records: 70,
        ..BatchLimits::default()
    };
    let host = w.host("a");
    let consumer = w.consumer(&host);
    let producer = w.producer();
    let mut want: BTreeMap<(usize, i32), Vec<(i64, String)>> = BTreeMap::new();
    for round in 0..5 {
        for topic in 0..2 {
            let sent = records(&w.topics[topic], &format!("{round}-{topic}-"), 200);
            let texts: Vec<String> = sent
                .iter()
                .map(|r| String::from_utf8_lossy(&r.payload).into_owned())
                .collect();
            for (position, text) in produced(&producer, sent).await.iter().zip(texts) {
                want.entry((topic, position.partition))
                    .or_default()
                    .push((position.offset, text));
            }
        }
    }
    assert!(w.store.committed_within(2_000, SOON).await);
    for ((topic, partition), list) in &want {
        assert_eq!(
            w.seen(*topic, *partition),
            *list,
            "topic {topic}, partition {partition}"
        );
    }
    assert_eq!(w.store.refused(), 0);
    for event in host.events() {
        if let Event::Batch { records, .. } = event {
            assert!(
                records.len() <= 70,
                "{} records in one batch",
                records.len()
            );
        }
    }
    assert_eq!(consumer.owned(), [0, 1, 2]);
    consumer.health().expect("well");
    shut(&consumer).await;
    assert_eq!(w.store.committed(), 2_000);
}

pub async fn consumption_starts_exactly_at_stored_positions<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    for partition in 0..2 {
        let key = key_in(topic, partition);
        let sent = (0..50)
            .map(|i| record(topic, &key, &format!("{i}")))
            .collect();
        produced(&producer, sent).await;
    }
    w.store.set_position(0, topic.no, 37);
    w.store.set_position(1, topic.no, 50);
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(13, SOON).await);
    produced(&producer, vec![record(topic, &key_in(topic, 1), "new")]).await;
    assert!(w.store.committed_within(14, SOON).await);
    let want: Vec<_> = (37..50).map(|i| (i, format!("{i}"))).collect();
    assert_eq!(w.seen(0, 0), want);
    assert_eq!(w.seen(0, 1), [(50, "new".to_owned())]);
    shut(&consumer).await;
}

pub async fn a_new_consumer_goes_on_where_the_old_one_stopped<L: Log>() {
    let Some(mut w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    w.limits.records = 16;
    let producer = w.producer();
    for round in 1..=3 {
        produced(&producer, records(&w.topics[0], &format!("{round}-"), 300)).await;
        let host = w.host(&format!("h{round}"));
        let consumer = w.consumer(&host);
        // Stopped in the middle, but for the last.
        let enough = if round == 3 { 900 } else { round * 300 - 150 };
        assert!(w.store.committed_within(enough, SOON).await);
        shut(&consumer).await;
    }
    assert_eq!(w.store.committed(), 900);
    assert_eq!(w.store.refused(), 0);
    for partition in 0..2 {
        let offsets: Vec<i64> = w.seen(0, partition).iter().map(|s| s.0).collect();
        let want: Vec<i64> = (0..).take(offsets.len()).collect();
        assert_eq!(offsets, want);
    }
}

pub async fn ends_are_told<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks", "postbacks"], 1).await else {
        return;
    };
    let numbers: Vec<i32> = w.topics.iter().map(|t| t.no).collect();
    let host = w.host("a");
    let consumer = w.consumer(&host);
    let (h, all) = (Arc::clone(&host), numbers.clone());
    eventually("both are empty, and so at their ends", move || {
        h.at_end(0) == all
    })
    .await;
    produced(&w.producer(), records(&w.topics[0], "r", 100)).await;
    assert!(w.store.committed_within(100, SOON).await);
    eventually("the end is told again after new records", || {
        host.at_end(0) == numbers
    })
    .await;
    shut(&consumer).await;
}

pub async fn after_shutdown_nothing_arrives<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let producer = w.producer();
    let host = w.host("a");
    let consumer = w.consumer(&host);
    produced(&producer, records(&w.topics[0], "r", 50)).await;
    assert!(w.store.committed_within(50, SOON).await);
    let took = shut(&consumer).await;
    assert!(took < Duration::from_secs(6), "{took:?}");
    let events = host.events();
    let gone = |e: &Event| {
        matches!(e, Event::Revoked { partitions, lost: false } if {
            let mut p = partitions.clone();
            p.sort_unstable();
            p == [0, 1]
        })
    };
    assert!(events.last().is_some_and(gone), "{:?}", events.last());
    assert_eq!(consumer.owned(), Vec::<i32>::new());
    assert!(consumer.health().is_err());
    produced(&producer, records(&w.topics[0], "s", 50)).await;
    let other = w.host("b");
    let second = w.consumer(&other);
    assert!(w.store.committed_within(100, SOON).await);
    assert_eq!(host.events(), events);
    shut(&second).await;
}

pub async fn shutdown_does_not_wait_for_a_stuck_host<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 1).await else {
        return;
    };
    let host = w.host("a");
    host.hold();
    let consumer = w.consumer(&host);
    produced(&w.producer(), records(&w.topics[0], "r", 50)).await;
    let some = |e: &[Event]| e.iter().any(|e| matches!(e, Event::Batch { .. }));
    assert!(host.events_within(SOON, some).await);
    let took = shut(&consumer).await;
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert_eq!(w.store.committed(), 0);
}

pub async fn a_position_out_of_range_is_a_fault_and_can_be_mended<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    for partition in 0..2 {
        produced(
            &producer,
            vec![record(topic, &key_in(topic, partition), "x")],
        )
        .await;
    }
    w.store.set_position(0, topic.no, 5);
    let host = w.host("a");
    let consumer = w.consumer(&host);
    let fault = |e: &[Event]| {
        e.iter()
            .any(|e| matches!(e, Event::Fault { partition: 0, .. }))
    };
    assert!(host.events_within(SOON, fault).await);
    assert!(w.store.committed_within(1, SOON).await, "the other goes on");
    assert_eq!(w.seen(0, 0), []);
    w.store.set_position(0, topic.no, 0);
    host.want_again(0);
    assert!(w.store.committed_within(2, SOON).await);
    assert_eq!(w.seen(0, 0), [(0, "x".to_owned())]);
    shut(&consumer).await;
}

pub async fn topics_of_one_partition_meet_in_one_stream<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks", "postbacks"], 4).await else {
        return;
    };
    let producer = w.producer();
    for topic in &w.topics {
        produced(&producer, records(topic, &topic.name, 100)).await;
    }
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(200, SOON).await);
    for seen in w.store.ledger() {
        assert_eq!(seen.partition, partitioner::partition(&seen.key, 4));
    }
    let place = |no: i32| w.topics.iter().position(|t| t.no == no);
    for event in host.events() {
        if let Event::Batch { records, .. } = event {
            let places: Vec<_> = records.iter().map(|(no, _)| place(*no)).collect();
            assert!(places.is_sorted(), "clicks before postbacks");
        }
    }
    shut(&consumer).await;
}

pub async fn a_refused_claim_is_tried_again<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    produced(&w.producer(), records(&w.topics[0], "r", 100)).await;
    let host = w.host("a");
    host.refuse_claims(1, 2, ClaimError::Later("held".to_owned()));
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(100, SOON).await);
    let refused = |e: &&Event| matches!(e, Event::Refused { partition: 1 });
    assert_eq!(host.events().iter().filter(refused).count(), 2);
    shut(&consumer).await;
}

pub async fn a_stopped_partition_waits_until_it_is_wanted<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    let host = w.host("a");
    host.refuse_claims(0, 1, ClaimError::Stopped("poison".to_owned()));
    let consumer = w.consumer(&host);
    for partition in 0..2 {
        produced(
            &producer,
            vec![record(topic, &key_in(topic, partition), "x")],
        )
        .await;
    }
    assert!(w.store.committed_within(1, SOON).await);
    assert_eq!(w.seen(0, 0), []);
    host.want_again(0);
    assert!(w.store.committed_within(2, SOON).await);
    shut(&consumer).await;
}

pub async fn restarted_logs_lose_and_repeat_nothing<L: Log>() {
    let Some(log) = L::start(true).await else {
        return;
    };
    let Some(mut w) = World::on(log, &["clicks", "postbacks"], 2).await else {
        return;
    };
    let host = w.host("a");
    let consumer = w.consumer(&host);
    let producer = w.producer();
    produced(&producer, records(&w.topics[0], "before", 200)).await;
    assert!(w.store.committed_within(200, SOON).await);
    // Records under way while the log goes down: each ends acknowledged or not, and the acknowledged ones are there.
    let (under_way, topic) = (Arc::clone(&producer), w.topics[1].clone());
    let task = tokio::spawn(async move {
        let mut good = Vec::new();
        for i in 0..60 {
            let answers = produce(&under_way, records(&topic, &format!("{i}-"), 20)).await;
            good.extend(answers.into_iter().filter_map(Result::ok));
        }
        good
    });
    w.log.restart().await;
    let good = task.await.expect("produced");
    let deadline = Instant::now() + SOON;
    loop {
        let answers = produce(&producer, vec![record(&w.topics[0], "k0", "after")]).await;
        if answers[0].is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "{answers:?}");
    }
    let is_there = |w: &World<L>, position: &Position| {
        w.seen(1, position.partition)
            .iter()
            .any(|(offset, _)| *offset == position.offset)
    };
    eventually("every acknowledged record arrives", || {
        good.iter().all(|p| is_there(&w, p))
            && w.store.ledger().iter().any(|s| s.payload == b"after")
    })
    .await;
    for topic in 0..2 {
        for partition in 0..2 {
            let offsets: Vec<i64> = w.seen(topic, partition).iter().map(|s| s.0).collect();
            assert!(offsets.is_sorted_by(|a, b| a < b), "once each, in order");
        }
    }
    assert_eq!(w.store.refused(), 0);
    shut(&consumer).await;
}
