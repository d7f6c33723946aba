//! What lies in the log, and what is decided of it.

use crate::claims::{Identities, claim};
use millrace::attribution::actor::Attribution;
use millrace::attribution::draft::Draft;
use millrace::delivery::schedule;
use millrace::runtime::vertical::{Effects, Item, Raw, Start, Vertical};
use millrace::settings;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::click::ClickRecord;
use millrace_schemas::emit::{EmitSource, can_carry};
use millrace_schemas::frame::{Frame, ReplayWindow};
use millrace_schemas::ids::{self, ClickKey, RecordId};
use millrace_schemas::journey::Journey;
use millrace_schemas::macros::{encode_query_value, is_unsubstituted};
use millrace_schemas::money::{PayoutRules, parse_payout};
use millrace_schemas::postback::{NetworkRules, PostbackRecord, click_id_of, query_pairs, read};
use millrace_schemas::time::{Micros, Now};
use millrace_topics::catalogue::{CLICKS, POSTBACKS};
use millrace_topics::contract::{Batch, TopicRef};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::RefCell;

/// 2026-01-01T00:00:00Z
pub(super) const NOW: Micros = Micros(1_767_225_600_000_000);

/// A topic as the catalogue has it.
pub(super) fn topic(no: i32, name: &str) -> TopicRef {
    TopicRef {
        no,
        name: name.to_owned(),
        log_name: name.to_owned(),
        partitions: 8,
    }
}

/// An actor of one partition, without a store.
pub(super) fn actor() -> Attribution {
    let mut actor = Attribution::new(settings::Attribution {
        slice_clicks: usize::MAX,
        ..settings::Attribution::default()
    });
    actor.reset(&Start {
        partition: 0,
        partitions: 8,
        mark: 0,
    });
    actor
}

/// What is read reads back as the same text once it is written.
pub(super) fn stable<T: Serialize + DeserializeOwned>(value: &T) {
    let text = serde_json::to_string(value).expect("what was read can be written");
    let again: T = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(serde_json::to_string(&again).expect("and again"), text);
}

/// Records of `frames`, and what a reader stores of them.
pub(super) fn frame(data: &[u8]) {
    if let Ok(frame) = serde_json::from_slice::<Frame>(data) {
        stable(&frame);
        let mut window = ReplayWindow::default();
        assert_eq!(window.admit(&frame.boot, frame.seq), frame.seq != 0);
        assert!(!window.admit(&frame.boot, frame.seq));
    }
    if let Some(window) = ReplayWindow::from_bytes(data) {
        assert_eq!(ReplayWindow::from_bytes(&window.to_bytes()), Some(window));
    }
}

/// Records of `clicks`.
pub(super) fn click(data: &[u8]) {
    let decoded = actor().decode(&topic(1, CLICKS), data);
    let Ok(record) = serde_json::from_slice::<ClickRecord>(data) else {
        assert!(decoded.is_err(), "the actor read what is no record");
        return;
    };
    assert_eq!(decoded.is_ok(), record.v <= WIRE_VERSION);
    stable(&record);
    assert_eq!(record.check(), record.check_under(record.key()));
    if record.check().is_ok() {
        assert!(ids::click_id_is_well_formed(&record.click_id));
    }
}

/// Records of `postbacks`.
pub(super) fn postback(data: &[u8]) {
    let decoded = actor().decode(&topic(2, POSTBACKS), data);
    let Ok(record) = serde_json::from_slice::<PostbackRecord>(data) else {
        assert!(decoded.is_err(), "the actor read what is no record");
        return;
    };
    assert_eq!(decoded.is_ok(), record.v <= WIRE_VERSION);
    stable(&record);
    check_query(
        &record.query,
        record.workspace,
        record.accepted_at,
        &record.rules,
    );
}

/// Queries of postbacks, under four sets of rules.
pub(super) fn query(data: &[u8]) {
    let (rules, data) = super::choice(data, 4);
    let rules = NetworkRules {
        comma_decimals: rules & 1 == 1,
        currency_signs: rules & 1 == 1,
        reversals: rules & 2 == 2,
        ..NetworkRules::default()
    };
    check_query(&String::from_utf8_lossy(data), 1, NOW, &rules);
}

fn check_query(text: &str, workspace: i32, at: Micros, rules: &NetworkRules) {
    for (name, value) in query_pairs(text) {
        let written = format!(
            "{}={}",
            encode_query_value(&name),
            encode_query_value(&value)
        );
        let mut again = query_pairs(&written);
        assert_eq!(again.next(), Some((name, value)), "{written}");
        assert_eq!(again.next(), None, "{written}");
    }
    let key = click_id_of(text);
    match read(text, workspace, at, rules) {
        Ok(postback) => {
            assert_eq!(
                postback.click_id, key,
                "the record is keyed by another click"
            );
            assert!(ids::click_id_is_well_formed(&key) && !is_unsubstituted(&key));
            let texts = [&postback.txid, &postback.external_id, &postback.event];
            for kept in texts.into_iter().flatten() {
                assert!(!ids::has_control(kept) && !kept.is_empty(), "{kept:?}");
            }
        }
        Err(reason) => assert!(!reason.is_empty() && !reason.contains(' '), "{reason}"),
    }
}

/// Payouts.
pub(super) fn payout(data: &[u8]) {
    let (rules, data) = super::choice(data, 4);
    let rules = PayoutRules {
        comma_decimals: rules & 1 == 1,
        currency_signs: rules & 2 == 2,
    };
    let text = String::from_utf8_lossy(data);
    if let Ok(value) = parse_payout(&text, rules) {
        let plain = value.to_string();
        let again = parse_payout(&plain, PayoutRules::default());
        assert_eq!(again.map(|v| v.to_string()), Ok(plain), "{text}");
    }
}

/// Journeys.
pub(super) fn journey(data: &[u8]) {
    let Ok(journey) = serde_json::from_slice::<Journey>(data) else {
        return;
    };
    stable(&journey);
    let attached = journey.pixel_attachments().count();
    assert!(attached <= journey.pixels.len());
    for id in [None, Some(""), Some("1"), Some(" 007 ")] {
        let credited = journey.credit("nw_1", id);
        assert_eq!(credited.is_some(), journey.offer.is_some());
    }
}

/// The member `emit`.
pub(super) fn emit(data: &[u8]) {
    let (n, data) = super::choice(data, 256);
    let source = EmitSource {
        group: String::from_utf8_lossy(data).chars().take(20).collect(),
        partition: i32::try_from(n).unwrap_or(0),
        seq: i64::MAX - 1,
    };
    let _ = EmitSource::of(data);
    let stamped = source.stamp(data);
    assert_eq!(stamped.is_ok(), can_carry(data));
    let object: Option<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_slice(data).ok();
    if let (Some(object), Ok(stamped)) = (object, stamped)
        && !object.contains_key("emit")
    {
        assert_eq!(EmitSource::of(&stamped), Some(source));
    }
}

/// Ids.
pub(super) fn ids(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(id) = ids::decode(&text) {
        assert_eq!(ids::encode(id), text);
    }
    match ClickKey::new(1, &text).minted_text() {
        Some(minted) => assert_eq!(minted, text),
        None => assert_eq!(ClickKey::new(1, &text).key.get_version_num(), 8),
    }
    if let Ok(id) = text.parse::<RecordId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(RecordId::from_uuid(id.to_uuid()), id);
    }
    if ids::is_workspace_slug(&text) {
        assert!(text.len() <= 40 && text.is_ascii());
    }
}

/// Times and waits.
pub(super) fn times(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(time) = Micros::parse_rfc3339(&text) {
        assert_eq!(Micros::parse_rfc3339(&time.rfc3339()), Ok(time), "{text}");
        let _ = (time.day(), time.millis(), time.plus_secs(i64::MAX));
    }
    for now in [
        0,
        NOW.0 / 1_000_000,
        i64::from(i32::MIN),
        i64::MAX,
        i64::MIN,
    ] {
        if let Some(asked) = schedule::retry_after(&text, now) {
            let most = schedule::RETRY_AFTER_AT_MOST;
            let pause = schedule::pause(std::time::Duration::from_secs(1), Some(asked), 1.0);
            assert!(pause <= most.mul_f64(1.25), "{pause:?}");
        }
    }
}

/// Records, one a line, `p` before those of `postbacks`: whatever the doors or another's producer may have put into the log is
/// decided without a panic, and every record has one outcome.
pub(super) fn decide(data: &[u8]) {
    let topics = [topic(1, CLICKS), topic(2, POSTBACKS)];
    let mut batch = Batch::new(0);
    let mut next = [0_i64; 2];
    for line in data.split(|b| *b == b'\n') {
        let (at, payload) = match line.split_first() {
            Some((b'p', rest)) => (1, rest),
            _ => (0, line),
        };
        batch.push(topics[at].no, next[at], b"", payload);
        next[at] += 1;
    }
    let mut actor = actor();
    let mut items = Vec::new();
    let mut stream = Micros(0);
    for (index, raw) in batch.records().iter().enumerate() {
        let topic = &topics[usize::from(raw.topic_no == 2)];
        let Ok(decoded) = actor.decode(topic, batch.payload(raw)) else {
            continue;
        };
        // As the shell does: nobody's clock is that far ahead, and what is replayed moves no time.
        let accepted_at = decoded.accepted_at.min(NOW.plus_secs(300));
        if decoded.replay.is_none() {
            stream = stream.max(accepted_at);
        }
        items.push(Item {
            id: decoded.replay.unwrap_or(RecordId {
                topic_no: raw.topic_no,
                partition: 0,
                offset: raw.offset,
            }),
            index,
            accepted_at,
            stream,
            replayed: decoded.replay.is_some(),
            record: decoded.record,
        });
    }
    thread_local! {
        static IDENTITIES: RefCell<Identities> = RefCell::default();
    }
    IDENTITIES.with_borrow_mut(|identities| {
        identities.clear();
        // Keys that the store would be asked for: it is empty, so nothing is found.
        let _ = actor.learn(&items);
        let (mut draft, mut effects) = (Draft::default(), Effects::default());
        let raw = Raw::of(&batch);
        let mut now = Now { stream, wall: NOW };
        for item in &items {
            now.stream = item.stream;
            actor.decide(&mut draft, &mut effects, item, &raw, now);
        }
        claim(&mut draft, identities);
        actor.settle(&mut draft, &mut effects, now);
        actor.merge(draft);
        // What is replayed moves its first outcome and adds none.
        let fresh = items.iter().filter(|i| !i.replayed).count();
        let counted: i64 = effects.tally.changes().map(|c| c.4).sum();
        let all_fresh = fresh == items.len();
        assert!(
            !all_fresh || counted == i64::try_from(fresh).unwrap_or(-1),
            "{counted} outcomes of {fresh} records"
        );
    });
}
