//! What is said over a feed, in both directions: pure reading and writing, one JSON object a message.
//!
//! A sidecar says `{"type":"hello","protocol":5,"boot":"b1","seq":0}` and then frames
//! `{"seq":1,"kind":"thing.changed","body":{…}}`; further members pass. What the door answers is [`Answer`].

use crate::ingress::body::{check_raw_object, complaint};
use millrace_schemas::frame::{MAX_FRAME_BYTES, is_name};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::cell::Cell;

/// The greatest sequence: the store keeps it in 63 bits.
const MAX_SEQ: u64 = i64::MAX as u64;

/// What a sidecar said, as far as its form goes.
#[derive(Debug)]
pub(in crate::ingress) enum Said<'a> {
    /// It begins, or its shard has another boot.
    Hello(Hello),
    /// A frame.
    Frame(Given<'a>),
}

/// The beginning of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ingress) struct Hello {
    /// The number of the frames' protocol.
    pub protocol: u32,
    /// The run of the shard.
    pub boot: String,
    /// The last sequence that the sidecar will not send again: acknowledged, or given up.
    pub seq: u64,
}

/// A frame as sent.
#[derive(Debug)]
pub(in crate::ingress) struct Given<'a> {
    /// Its number.
    pub seq: u64,
    /// Its kind.
    pub kind: Cow<'a, str>,
    /// Its own object.
    pub body: &'a RawValue,
    /// The protocol that it says it is of, if it does.
    pub protocol: Option<u32>,
}

/// Why something was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ingress) struct Fault {
    /// The number that the sender gave it, where that could be read.
    pub seq: Option<u64>,
    /// A code for programs; also the metric's `reason`.
    pub code: &'static str,
    /// A sentence for people, without the sender's own words.
    pub detail: Cow<'static, str>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default, borrow, rename = "type")]
    type_: Option<Cow<'a, str>>,
    #[serde(default)]
    seq: Option<u64>,
    #[serde(default, borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    body: Option<&'a RawValue>,
    #[serde(default)]
    protocol: Option<u32>,
    #[serde(default, borrow)]
    boot: Option<Cow<'a, str>>,
}

/// Reads one message.
///
/// # Errors
/// What is wrong with its form.
pub(in crate::ingress) fn read(text: &[u8]) -> Result<Said<'_>, Fault> {
    if text.len() > MAX_FRAME_BYTES {
        return Err(too_large(text, text.len()));
    }
    let fault = |code, detail: Cow<'static, str>| Fault {
        seq: seq_of(text),
        code,
        detail,
    };
    check_raw_object(text).map_err(|refusal| fault(refusal.code, refusal.detail))?;
    let line: Line<'_> = serde_json::from_slice(text).map_err(|error| {
        if error.is_data() {
            fault("invalid", complaint(&error).into())
        } else {
            fault("not_json", "it is no JSON".into())
        }
    })?;
    let seq = line.seq.unwrap_or(0);
    if seq > MAX_SEQ {
        return Err(fault("seq_malformed", "a sequence has 63 bits".into()));
    }
    match line.type_.as_deref() {
        Some("hello") => {
            let protocol = line
                .protocol
                .ok_or_else(|| fault("protocol_missing", "a hello names its protocol".into()))?;
            let boot = line
                .boot
                .filter(|b| is_name(b))
                .ok_or_else(|| fault("boot_malformed", NAME.into()))?;
            Ok(Said::Hello(Hello {
                protocol,
                boot: boot.into_owned(),
                seq,
            }))
        }
        None | Some("frame") => {
            if seq == 0 {
                return Err(fault(
                    "seq_missing",
                    "a frame has a sequence, from 1".into(),
                ));
            }
            let kind = line
                .kind
                .filter(|k| is_name(k))
                .ok_or_else(|| fault("kind_malformed", NAME.into()))?;
            let body = line
                .body
                .filter(|b| b.get().starts_with('{'))
                .ok_or_else(|| fault("body_malformed", "a frame's body is an object".into()))?;
            Ok(Said::Frame(Given {
                seq,
                kind,
                body,
                protocol: line.protocol,
            }))
        }
        Some(_) => Err(fault(
            "type_unknown",
            "a message is a `hello` or a `frame`".into(),
        )),
    }
}

const NAME: &str = "it has 1 to 128 visible ASCII characters, no quotes, no backslash";

/// The fault of a message of `bytes` bytes, of which `head` is the beginning.
pub(in crate::ingress) fn too_large(head: &[u8], bytes: usize) -> Fault {
    Fault {
        seq: seq_of(head),
        code: "frame_too_large",
        detail: format!("it has {bytes} bytes or more; a frame has at most {MAX_FRAME_BYTES}")
            .into(),
    }
}

/// The member `seq` of an object, as far as the text can be read: it may be cut off, or be no JSON further on.
pub(in crate::ingress) fn seq_of(text: &[u8]) -> Option<u64> {
    struct Seek<'a>(&'a Cell<Option<u64>>);
    impl<'de> Visitor<'de> for Seek<'_> {
        type Value = ();
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(name) = map.next_key_seed(Name)? {
                if name {
                    self.0.set(Some(map.next_value()?));
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(())
        }
    }
    struct Name;
    impl<'de> DeserializeSeed<'de> for Name {
        type Value = bool;
        fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<bool, D::Error> {
            d.deserialize_str(self)
        }
    }
    impl Visitor<'_> for Name {
        type Value = bool;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a name")
        }
        fn visit_str<E>(self, name: &str) -> Result<bool, E> {
            Ok(name == "seq")
        }
    }
    let found = Cell::new(None);
    // Whatever it says in the end: what was found before counts.
    let _ = serde_json::Deserializer::from_slice(text).deserialize_map(Seek(&found));
    found.get().filter(|seq| (1..=MAX_SEQ).contains(seq))
}

/// What the door says.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::ingress) enum Answer<'a> {
    /// The feed has begun: send what follows `seq`.
    Welcome {
        /// The protocol of both.
        protocol: u32,
        /// The boot of the hello.
        boot: &'a str,
        /// Everything up to it is settled.
        seq: u64,
        /// How many frames may be unacknowledged; more wait unread.
        max_in_flight: u64,
        /// The longest message.
        max_frame_bytes: usize,
    },
    /// Everything up to it is settled: in the log, of a kind that nobody maps, or refused before.
    Ack {
        /// The greatest settled sequence.
        seq: u64,
    },
    /// A message was not taken; the feed goes on.
    Refused {
        /// Its sequence: as it says, else the one that was to come.
        seq: u64,
        /// Why.
        code: &'static str,
        /// For people.
        detail: &'a str,
        /// The sequence that is to come, where this one is out of order.
        #[serde(skip_serializing_if = "Option::is_none")]
        expected: Option<u64>,
        /// The shard's protocol, where this one is of another.
        #[serde(skip_serializing_if = "Option::is_none")]
        want: Option<u32>,
        /// The other one.
        #[serde(skip_serializing_if = "Option::is_none")]
        got: Option<u32>,
    },
    /// The door cannot take frames now; it closes. Come back later and go on after `seq`.
    Unavailable {
        /// The greatest settled sequence.
        seq: u64,
        /// Why.
        code: &'static str,
        /// For people.
        detail: &'a str,
        /// When to try again, in seconds.
        retry_after_s: u32,
    },
    /// The feed ends; it closes.
    Bye {
        /// The greatest settled sequence.
        seq: u64,
        /// Why.
        code: &'static str,
        /// For people.
        detail: &'a str,
    },
}

impl Answer<'_> {
    /// As sent.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> (Option<u64>, &'static str) {
        let fault = read(text.as_bytes()).expect_err(text);
        (fault.seq, fault.code)
    }

    #[test]
    fn hellos_and_frames_are_read_and_unknown_members_pass() {
        let Ok(Said::Hello(hello)) =
            read(br#"{"type":"hello","protocol":5,"boot":"b1","seq":7,"sidecar":"2.1.0"}"#)
        else {
            panic!("no hello");
        };
        assert_eq!(
            hello,
            Hello {
                protocol: 5,
                boot: "b1".into(),
                seq: 7
            }
        );
        let Ok(Said::Frame(frame)) =
            read(br#" {"seq":8,"at":"x","kind":"thing.changed","body":{"to":1.0}}"#)
        else {
            panic!("no frame");
        };
        assert_eq!(
            (frame.seq, &*frame.kind, frame.body.get(), frame.protocol),
            (8, "thing.changed", r#"{"to":1.0}"#, None)
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_sequence_where_it_has_one() {
        for (text, want) in [
            ("", (None, "not_json")),
            ("hello", (None, "not_json")),
            (r#"{"seq":3,"kind":"a","body":{"#, (Some(3), "not_json")),
            (r#"[{"seq":3}]"#, (None, "not_an_object")),
            (r#"{"kind":"a","body":{}}"#, (None, "seq_missing")),
            (r#"{"seq":0,"kind":"a","body":{}}"#, (None, "seq_missing")),
            (r#"{"seq":-1,"kind":"a","body":{}}"#, (None, "invalid")),
            (r#"{"seq":"3","kind":"a","body":{}}"#, (None, "invalid")),
            (
                r#"{"seq":9223372036854775808,"kind":"a","body":{}}"#,
                (None, "seq_malformed"),
            ),
            (r#"{"seq":3,"body":{}}"#, (Some(3), "kind_malformed")),
            (r#"{"seq":3,"kind":7,"body":{}}"#, (Some(3), "invalid")),
            (
                r#"{"seq":3,"kind":"a b","body":{}}"#,
                (Some(3), "kind_malformed"),
            ),
            (r#"{"seq":3,"kind":"a"}"#, (Some(3), "body_malformed")),
            (
                r#"{"seq":3,"kind":"a","body":[]}"#,
                (Some(3), "body_malformed"),
            ),
            (
                r#"{"seq":3,"kind":"a","body":{"x":"\u0000"}}"#,
                (Some(3), "nul"),
            ),
            (r#"{"type":"bye","seq":3}"#, (Some(3), "type_unknown")),
            (r#"{"type":"hello","boot":"b"}"#, (None, "protocol_missing")),
            (r#"{"type":"hello","protocol":5}"#, (None, "boot_malformed")),
        ] {
            assert_eq!(fault(text), want, "{text}");
        }
        let deep = format!(
            r#"{{"seq":3,"kind":"a","body":{}1{}}}"#,
            "{\"a\":".repeat(40),
            "}".repeat(40)
        );
        assert_eq!(fault(&deep), (Some(3), "too_deep"));
    }

    #[test]
    fn a_frame_that_is_too_large_is_answered_with_its_sequence() {
        let long = format!(
            r#"{{"seq":4,"kind":"a","body":{{"x":"{}"}}}}"#,
            "x".repeat(MAX_FRAME_BYTES)
        );
        assert_eq!(fault(&long), (Some(4), "frame_too_large"));
        let last = format!(r#"{{"body":"{}","seq":4}}"#, "x".repeat(MAX_FRAME_BYTES));
        assert_eq!(fault(&last), (Some(4), "frame_too_large"));
        assert_eq!(too_large(&last.as_bytes()[..1000], last.len()).seq, None);
    }

    #[test]
    fn answers_are_plain_objects() {
        let refused = Answer::Refused {
            seq: 3,
            code: "protocol_mismatch",
            detail: "x",
            expected: None,
            want: Some(5),
            got: Some(4),
        };
        assert_eq!(
            refused.text(),
            r#"{"type":"refused","seq":3,"code":"protocol_mismatch","detail":"x","want":5,"got":4}"#
        );
        assert_eq!(Answer::Ack { seq: 9 }.text(), r#"{"type":"ack","seq":9}"#);
    }
}
