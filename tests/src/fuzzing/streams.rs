//! Records of every topic by the actors that read them, and what thresholds make of the bodies of frames.

use super::records::{NOW, actor, stable, topic};
use millrace::directory::actor::Directory;
use millrace::engagement::actor::Engagement;
use millrace::modules::{Modules, shipped};
use millrace::recipients::actor::Recipients;
use millrace::runtime::vertical::{DecodeError, Effects, Item, Raw, Start, Vertical};
use millrace::settings;
use millrace::thresholds::actor::Thresholds;
use millrace::thresholds::draft::Draft;
use millrace_schemas::directory::DirectoryRecord;
use millrace_schemas::firing::Firing;
use millrace_schemas::frame::Frame;
use millrace_schemas::ids::RecordId;
use millrace_schemas::notice::Notice;
use millrace_schemas::time::Now;
use millrace_schemas::{WIRE_VERSION, directory, notice};
use millrace_topics::catalogue::{
    CLICKS, DIRECTORY_TOPIC, FRAMES, NOTICES, POSTBACKS, TRIGGERS, topic_names,
};
use millrace_topics::contract::{Batch, TopicRef};
use serde_json::value::RawValue;
use std::sync::{Arc, OnceLock};

/// Number of topic `triggers`.
const TRIGGERS_NO: i32 = 4;

/// Every module that is shipped.
pub(super) fn modules() -> Arc<Modules> {
    static ALL: OnceLock<Arc<Modules>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let ids = shipped::ids(None).expect("the list of them");
        Arc::new(shipped::load(&ids, None).expect("they compile"))
    });
    Arc::clone(all)
}

fn thresholds() -> Thresholds {
    let settings = settings::Thresholds {
        slice_keys: usize::MAX,
    };
    let mut thresholds = Thresholds::new(modules().into(), settings, TRIGGERS_NO);
    thresholds.reset(&Start {
        partition: 0,
        partitions: 8,
        mark: 0,
    });
    thresholds
}

/// What the actor that reads a topic says of a record. None: no actor of this table reads it, which a test forbids.
#[must_use]
pub fn decode(name: &str, payload: &[u8]) -> Option<Result<(), DecodeError>> {
    fn by(vertical: &impl Vertical, topic: &TopicRef, payload: &[u8]) -> Result<(), DecodeError> {
        vertical.decode(topic, payload).map(drop)
    }
    let topic = topic(1, name);
    Some(match name {
        CLICKS | POSTBACKS => by(&actor(), &topic, payload),
        FRAMES => by(&thresholds(), &topic, payload),
        TRIGGERS => by(&Engagement::new(modules().into(), 5), &topic, payload),
        NOTICES => by(&Recipients::default(), &topic, payload),
        DIRECTORY_TOPIC => by(&Directory, &topic, payload),
        _ => return None,
    })
}

fn read(name: &str, payload: &[u8]) -> Result<(), DecodeError> {
    decode(name, payload).unwrap_or_else(|| panic!("nobody reads `{name}`"))
}

/// Records of `triggers`: what is read is written as it was read, and what its form shows wrong has a name.
pub(super) fn firing(data: &[u8]) {
    let decoded = read(TRIGGERS, data);
    let Ok(record) = serde_json::from_slice::<Firing>(data) else {
        assert!(decoded.is_err(), "the actor read what is no record");
        return;
    };
    assert_eq!(decoded.is_ok(), record.v <= WIRE_VERSION);
    stable(&record);
    match record.fault() {
        Some(why) => assert!(!why.is_empty() && !why.contains(' '), "{why}"),
        // Its key names its shard and its subject: nothing in them moves the border.
        None => {
            let key = record.log_key();
            let mut parts = key.splitn(3, ':').skip(1);
            assert_eq!(parts.next(), Some(&*record.shard), "{key}");
            assert_eq!(parts.next(), Some(&*record.subject), "{key}");
        }
    }
}

/// Records of `notices`.
pub(super) fn notice(data: &[u8]) {
    let decoded = read(NOTICES, data);
    let Ok(record) = serde_json::from_slice::<Notice>(data) else {
        assert!(decoded.is_err(), "the actor read what is no record");
        return;
    };
    assert_eq!(decoded.is_ok(), record.v <= WIRE_VERSION);
    stable(&record);
    assert_eq!(record.log_key(), notice::log_key(record.ws, &record.user));
    let at = RecordId::from(record.firing_pos);
    assert_eq!(at, RecordId::from(notice::FiringPos::from(at)));
}

/// Records of `directory`: what passes is bounded text.
pub(super) fn directory_record(data: &[u8]) {
    let decoded = read(DIRECTORY_TOPIC, data);
    let Ok(record) = serde_json::from_slice::<DirectoryRecord>(data) else {
        assert!(decoded.is_err(), "the actor read what is no record");
        return;
    };
    assert_eq!(decoded.is_ok(), record.v <= WIRE_VERSION);
    stable(&record);
    let again: DirectoryRecord =
        serde_json::from_slice(&serde_json::to_vec(&record).expect("it can be written"))
            .expect("it reads");
    assert_eq!(again, record);
    assert_eq!(record.check(), again.check());
    if record.check().is_ok() {
        assert!(directory::is_text(&record.user, directory::LONGEST));
        let mail = record.email.as_deref();
        let is_user = record.change == directory::Change::User;
        assert!(!is_user || mail.is_none_or(|m| m.len() <= directory::LONGEST_EMAIL));
    }
}

/// A record of a newer version stops its partition whatever else stands in it; it is never undecodable. Of every topic.
pub(super) fn version(data: &[u8]) {
    let object: Option<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_slice(data).ok();
    let newer = object
        .as_ref()
        .and_then(|o| o.get("v"))
        .and_then(serde_json::Value::as_u64)
        .filter(|v| *v > u64::from(WIRE_VERSION));
    for name in topic_names() {
        match read(name, data) {
            Err(DecodeError::Newer(v)) => assert!(v > u64::from(WIRE_VERSION)),
            Err(DecodeError::Undecodable(why)) => {
                // Members that come twice make `v` mean nothing; then it may be either.
                let once = data.windows(3).filter(|w| *w == b"\"v\"").count() == 1;
                assert!(newer.is_none() || !once, "{name}: dead-lettered: {why}");
            }
            Ok(()) => assert!(newer.is_none(), "{name}: booked"),
        }
    }
}

/// Frames, one a line: a kind, a blank, the body. The first byte of all says whether they are of one key or of their own. Whatever
/// a shard says is decided without a panic, each frame has one outcome, and what fires is a firing that the next actor reads.
pub(super) fn decide(data: &[u8]) {
    let (own, data) = super::choice(data, 2);
    let modules = modules();
    let topic = topic(3, FRAMES);
    let mut batch = Batch::new(0);
    let mut seq = 0;
    for line in data.split(|b| *b == b'\n').take(64) {
        let text = String::from_utf8_lossy(line);
        let Some((kind, body)) = text.split_once(' ') else {
            continue;
        };
        // The feed takes objects alone.
        let body = body.trim();
        let Ok(body) = RawValue::from_string(body.to_owned()) else {
            continue;
        };
        if !body.get().starts_with('{') {
            continue;
        }
        let known = modules.games().find_map(|m| m.kind(kind));
        let key = known.and_then(|k| k.key_of("shard", body.get()).ok().flatten());
        seq += 1;
        let frame = Frame {
            v: WIRE_VERSION,
            ws: 1,
            shard: "shard".to_owned(),
            boot: "b".to_owned(),
            seq,
            kind: kind.to_owned(),
            key: key
                .filter(|_| own == 1)
                .unwrap_or_else(|| "shard".to_owned()),
            accepted_at: NOW,
            body,
            replay: None,
        };
        let payload = serde_json::to_vec(&frame).expect("a frame can be written");
        let offset = i64::try_from(seq).unwrap_or(i64::MAX);
        batch.push(topic.no, offset, frame.log_key().as_bytes(), &payload);
    }
    let mut actor = thresholds();
    let mut items = Vec::new();
    for (index, raw) in batch.records().iter().enumerate() {
        let decoded = actor
            .decode(&topic, batch.payload(raw))
            .expect("the door's own frames are read");
        items.push(Item {
            id: RecordId {
                topic_no: raw.topic_no,
                partition: 0,
                offset: raw.offset,
            },
            index,
            accepted_at: decoded.accepted_at,
            stream: NOW,
            replayed: false,
            record: decoded.record,
        });
    }
    // Nothing is stored yet, and nobody is linked.
    let cold = actor.cold(&items);
    actor.learn_nothing(cold);
    let (mut draft, mut effects) = (Draft::default(), Effects::default());
    let raw = Raw::of(&batch);
    let now = Now {
        stream: NOW,
        wall: NOW,
    };
    for item in &items {
        actor.decide(&mut draft, &mut effects, item, &raw, now);
    }
    actor.settle(&mut draft, &mut effects, now);
    actor.merge(draft);
    let counted: i64 = effects.tally.changes().map(|c| c.4).sum();
    assert_eq!(counted, i64::try_from(items.len()).unwrap_or(-1));
    for emit in &effects.emits {
        assert_eq!(emit.topic_no, TRIGGERS_NO);
        let firing: Firing = serde_json::from_slice(&emit.payload).expect("a firing");
        assert_eq!(firing.fault(), None);
        assert_eq!(emit.key, firing.log_key().as_bytes());
        assert_eq!(read(TRIGGERS, &emit.payload), Ok(()));
        let trigger = modules.trigger(&firing.trigger).expect("it is declared");
        let vars: serde_json::Map<_, _> = firing.vars.into_iter().collect();
        assert!(trigger.check(&vars).is_ok(), "{vars:?}");
    }
}
