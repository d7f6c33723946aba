//! `millrace dlq replay`: the record goes to the live topic of its name once more, with its first coordinates inside.
//!
//! Nothing is marked here. The actor that decides the record finds its letter open, books the new outcome in place of the old
//! one and marks the letter in the same transaction; a second copy finds it marked and changes nothing. So this command may
//! crash, or be run twice, at any point.

use super::Select;
use crate::cli::Context;
use crate::cli::log::{self, Log};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use millrace_schemas::ids::RecordId;
use millrace_topics::contract::{Outgoing, TopicRef};
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;
use tokio_postgres::Client;

/// Letters read and produced at once.
const PAGE: i64 = 1_000;

struct Letter {
    record: RecordId,
    topic: String,
    key: Vec<u8>,
    payload: Vec<u8>,
}

pub(super) async fn run(context: &Context, select: &Select) -> anyhow::Result<ExitCode> {
    let client = context.client().await?;
    let settings = context.settings();
    let log = Log::of(settings, &context.database()?)?;
    let topics = log::live_topics(&client, &log).await?;
    let producer = log.producer(&settings.log, &topics)?;
    let mut after = uuid::Uuid::nil();
    let (mut sent, mut refused) = (0_usize, Vec::new());
    let failed = loop {
        let page = open(&client, select, after).await?;
        let Some(last) = page.last() else { break None };
        after = last.record.to_uuid();
        let mut waiting = Vec::new();
        for letter in page {
            match prepare(&letter, &topics) {
                Ok(record) => waiting.push((letter.record, producer.produce(record))),
                Err(why) => refused.push((letter.record, why.to_string())),
            }
        }
        let mut failed = None;
        for (record, acknowledgement) in waiting {
            match acknowledgement.await {
                Ok(Ok(_)) => sent += 1,
                Ok(Err(e)) => failed = Some((record, e.to_string())),
                Err(_) => failed = Some((record, "the producer ended".to_owned())),
            }
        }
        if failed.is_some() {
            break failed;
        }
    };
    producer
        .close(Duration::from_millis(settings.log.ack_timeout_ms))
        .await;
    if sent == 0 && refused.is_empty() && failed.is_none() {
        bail!("no open dead letter fits; `millrace dlq list` shows them");
    }
    for (record, why) in &refused {
        eprintln!("{record} is not replayed: {why}");
    }
    let refused_json: Vec<_> = refused
        .iter()
        .map(|(r, why)| json!({"record": r.to_string(), "reason": why}))
        .collect();
    context.say(
        &format!(
            "{sent} given to {}; each is marked `replayed` when it is decided",
            log.name()
        ),
        &json!({"sent": sent, "refused": refused_json}),
    )?;
    if let Some((record, why)) = failed {
        bail!("{record}: {why}; run the command again: what was sent already is recognised");
    }
    Ok(if refused.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn open(
    client: &Client,
    select: &Select,
    after: uuid::Uuid,
) -> Result<Vec<Letter>, tokio_postgres::Error> {
    let rows = client
        .query(
            "SELECT d.record_id, t.name, d.key, d.payload FROM dead_letters d JOIN topics t USING (topic_no)
             WHERE d.status = 'open' AND ($1::uuid[] IS NULL OR d.record_id = ANY($1)) AND ($2::text IS NULL OR d.reason = $2)
               AND d.record_id > $3 ORDER BY d.record_id LIMIT $4",
            &[&select.ids(), &select.reason, &after, &PAGE],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|r| Letter {
            record: RecordId::from_uuid(r.get(0)),
            topic: r.get(1),
            key: r.get(2),
            payload: r.get(3),
        })
        .collect())
}

/// The record with its first coordinates inside. What already carries some keeps them: a letter's id is those very ones.
fn prepare(letter: &Letter, topics: &[TopicRef]) -> anyhow::Result<Outgoing> {
    let topic = topics
        .iter()
        .find(|t| t.name == letter.topic)
        .with_context(|| format!("there is no live topic `{}` any more", letter.topic))?;
    let unreadable = "its bytes are no JSON object, so it can never be decided; `millrace dlq show` prints them, \
                      `millrace dlq discard` gives it up";
    // Members stay as they were written: a number must not change on its way through a float.
    let mut object: BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(&letter.payload).context(unreadable)?;
    let first = json!({"topic_no": letter.record.topic_no, "partition": letter.record.partition,
                       "offset": letter.record.offset});
    object.insert(
        "replay".to_owned(),
        serde_json::value::to_raw_value(&first)?,
    );
    Ok(Outgoing {
        topic_no: topic.no,
        key: Bytes::from(letter.key.clone()),
        payload: Bytes::from(serde_json::to_vec(&object)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(payload: &[u8]) -> Letter {
        Letter {
            record: RecordId {
                topic_no: 1,
                partition: 3,
                offset: 99,
            },
            topic: "clicks".to_owned(),
            key: b"1:abc".to_vec(),
            payload: payload.to_vec(),
        }
    }

    fn topics() -> Vec<TopicRef> {
        vec![TopicRef {
            no: 7,
            name: "clicks".into(),
            log_name: "clicks.2".into(),
            partitions: 4,
        }]
    }

    #[test]
    fn a_replay_goes_to_the_live_generation_with_its_first_coordinates() {
        let record = prepare(
            &letter(br#"{"v":1,"accepted_at":5,"n":1.10000000000000000001}"#),
            &topics(),
        )
        .unwrap();
        assert_eq!(record.topic_no, 7);
        assert_eq!(record.key.as_ref(), b"1:abc");
        assert_eq!(
            std::str::from_utf8(&record.payload).unwrap(),
            r#"{"accepted_at":5,"n":1.10000000000000000001,"replay":{"offset":99,"partition":3,"topic_no":1},"v":1}"#
        );
    }

    #[test]
    fn what_is_no_object_is_refused_with_advice() {
        for bytes in [&b"\xff\x00"[..], b"[1]", b""] {
            let why = prepare(&letter(bytes), &topics()).unwrap_err().to_string();
            assert!(why.contains("discard"), "{why}");
        }
    }
}
