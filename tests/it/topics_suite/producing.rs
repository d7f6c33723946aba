//! Producing: acknowledgements, placement, refusals.

use super::*;

pub async fn acknowledgements_ascend_and_placement_is_the_partitioners<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 4).await else {
        return;
    };
    let sent = records(&w.topics[0], "r", 400);
    let positions = produced(&w.producer(), sent.clone()).await;
    let mut next: BTreeMap<i32, i64> = BTreeMap::new();
    for (record, position) in sent.iter().zip(&positions) {
        assert_eq!(position.partition, partitioner::partition(&record.key, 4));
        let next = next.entry(position.partition).or_insert(0);
        assert_eq!(
            position.offset, *next,
            "dense, from 0, in the order of producing"
        );
        *next += 1;
    }
    assert!(next.len() > 1, "twenty keys, more than one partition");
}

pub async fn oversize_is_refused_and_others_pass<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 1).await else {
        return;
    };
    let producer = w.log.producer(&w.topics, 10_000);
    let large = "x".repeat(10_001);
    let sent = vec![
        record(&w.topics[0], "k", "before"),
        record(&w.topics[0], "k", &large),
        record(&w.topics[0], "k", &large[..9_999]),
        record(&w.topics[0], "k", "after"),
    ];
    let answers = produce(&producer, sent).await;
    let at = |offset| {
        Ok(Position {
            partition: 0,
            offset,
        })
    };
    let refused = Err(ProduceError::TooLarge {
        bytes: 10_002,
        limit: 10_000,
    });
    assert_eq!(answers, [at(0), refused, at(1), at(2)]);
}

pub async fn what_cannot_be_produced_is_said<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 1).await else {
        return;
    };
    let producer = w.producer();
    let stranger = TopicRef {
        no: 999_999,
        ..w.topics[0].clone()
    };
    let answers = produce(&producer, vec![record(&stranger, "k", "x")]).await;
    assert_eq!(answers, [Err(ProduceError::UnknownTopic(999_999))]);
    producer.health(SOON).await.expect("well");
    // What is under way when it closes is acknowledged.
    let waiting = producer.produce(record(&w.topics[0], "k", "x"));
    producer.close(SOON).await;
    let at = Position {
        partition: 0,
        offset: 0,
    };
    assert_eq!(waiting.await.expect("an answer"), Ok(at));
    let answers = produce(&producer, vec![record(&w.topics[0], "k", "x")]).await;
    assert_eq!(answers, [Err(ProduceError::Closed)]);
}

pub async fn two_producers_share_the_partitions<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks", "postbacks"], 3).await else {
        return;
    };
    let mut tasks = Vec::new();
    for name in ["a", "b", "c"] {
        let producer = w.producer();
        let sent: Vec<_> = (0..1_000)
            .map(|i| {
                record(
                    &w.topics[i % 2],
                    &format!("k{}", i % 20),
                    &format!("{name}{i}"),
                )
            })
            .collect();
        tasks.push(tokio::spawn(async move {
            let mut out = Vec::new();
            for part in sent.chunks(50) {
                let topics: Vec<i32> = part.iter().map(|r| r.topic_no).collect();
                let positions = produced(&producer, part.to_vec()).await;
                out.extend(topics.into_iter().zip(positions));
            }
            out
        }));
    }
    let mut places = std::collections::BTreeSet::new();
    for task in tasks {
        let mut last: BTreeMap<(i32, i32), i64> = BTreeMap::new();
        for (topic_no, p) in task.await.expect("produced") {
            assert!(
                places.insert((topic_no, p.partition, p.offset)),
                "given twice"
            );
            let before = last.insert((topic_no, p.partition), p.offset);
            assert!(
                before.is_none_or(|b| b < p.offset),
                "ascending for each producer"
            );
        }
    }
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(3_000, SOON).await);
    let seen: std::collections::BTreeSet<_> = w
        .store
        .ledger()
        .iter()
        .map(|s| (s.topic_no, s.partition, s.offset))
        .collect();
    assert_eq!(seen, places);
    shut(&consumer).await;
}
