//! The wire record of topic `frames`: what a shard's sidecar sent over the feed, as the door accepted it; and the window by
//! which a reader tells a replayed frame from a new one.
//!
//! The feed (spec: engagement § Sidecar feed) acknowledges a sequence after the log has it, keeps at most
//! [`MAX_IN_FLIGHT`] frames unacknowledged, and a reconnecting sidecar replays from the last acknowledged one. So whatever
//! lies [`MAX_IN_FLIGHT`] or more below the highest sequence that the log shows has surely been there before, and what lies
//! above that may stand in the log in any order (one append fails, the next one does not). [`ReplayWindow`] is that
//! sentence in code: the highest sequence alone would drop a frame that failed, was overtaken and then replayed.

use crate::postback::Replay;
use crate::time::Micros;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Frames of one feed that may be unacknowledged at a time, and with it the reach of a [`ReplayWindow`].
pub const MAX_IN_FLIGHT: u64 = 1024;

/// The longest frame that the feed takes, in bytes, as sent.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;

/// The longest boot id, kind or shard id, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// The longest partition key that a frame may name, in bytes; the feed refuses a longer one.
pub const MAX_KEY_BYTES: usize = 512;

/// A record of topic `frames`, keyed by [`Frame::log_key`]. Only kinds that an enabled module maps come here.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Frame {
    /// Wire version, [`crate::WIRE_VERSION`].
    pub v: u16,
    /// The workspace's number.
    pub ws: i32,
    /// The shard's id, unique in its workspace.
    pub shard: String,
    /// The run of the shard that numbered the frame; a restarted shard has another.
    pub boot: String,
    /// Its number in that run, from 1, ascending, without gaps over all frames of the shard (not of a partition).
    pub seq: u64,
    /// Its kind, such as `thing.changed`.
    pub kind: String,
    /// The text at the key path of its kind; the shard's id where the kind has none or the frame does not carry it.
    pub key: String,
    /// When the door accepted it: stream time.
    pub accepted_at: Micros,
    /// The frame's own JSON object, verbatim.
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub body: Box<RawValue>,
    /// Set by `dlq replay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

impl Frame {
    /// The key under which the log keeps it: all frames of one key of one shard are in one partition.
    #[must_use]
    pub fn log_key(&self) -> String {
        log_key(self.ws, &self.shard, &self.key)
    }
}

/// `{ws}:{shard}:{key}`. A shard's id holds no colon, so that no two (shard, key) share it.
#[must_use]
pub fn log_key(ws: i32, shard: &str, key: &str) -> String {
    format!("{ws}:{shard}:{key}")
}

/// Whether a text may be a shard's id: a letter or digit, then up to 62 of `a-z 0-9 - _ .`.
#[must_use]
pub fn is_shard_id(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= 63
        && text.bytes().next().is_some_and(plain)
        && text
            .bytes()
            .all(|b| plain(b) || matches!(b, b'-' | b'_' | b'.'))
}

/// Whether a text may be a boot id or a frame's kind: 1 to [`MAX_NAME_BYTES`] visible ASCII characters without quotes and
/// backslashes.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'\''))
}

/// 64-bit words of one boot's window.
const WORDS: usize = (MAX_IN_FLIGHT / 64) as usize;

/// Boots of a shard that are remembered: the running one and those whose last frames may still be on their way.
const BOOTS: usize = 4;

/// Which frames of one shard a reader of one partition has seen. It is small, of bounded size, and to be stored with the
/// effects of the frames ([`ReplayWindow::to_bytes`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayWindow {
    /// The one that was met last comes last.
    boots: Vec<BootWindow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct BootWindow {
    boot: String,
    highest: u64,
    /// Bit `seq % MAX_IN_FLIGHT` for each of the last [`MAX_IN_FLIGHT`] sequences up to the highest.
    seen: [u64; WORDS],
}

impl ReplayWindow {
    /// Takes a frame in. False: it has been here before, and must change nothing.
    pub fn admit(&mut self, boot: &str, seq: u64) -> bool {
        if seq == 0 {
            return false;
        }
        if let Some(last) = self.boots.last_mut()
            && last.boot == boot
        {
            return last.admit(seq);
        }
        let mut window = match self.boots.iter().position(|b| b.boot == boot) {
            Some(at) => self.boots.remove(at),
            None => BootWindow {
                boot: boot.to_owned(),
                highest: 0,
                seen: [0; WORDS],
            },
        };
        let new = window.admit(seq);
        if self.boots.len() >= BOOTS {
            self.boots.remove(0);
        }
        self.boots.push(window);
        new
    }

    /// Takes in a frame that was set aside and is given to the log once more. Its boot is not met by that: which one was met
    /// last stays as it is.
    pub fn admit_again(&mut self, boot: &str, seq: u64) {
        if seq == 0 {
            return;
        }
        if let Some(known) = self.boots.iter_mut().find(|b| b.boot == boot) {
            known.admit(seq);
            return;
        }
        if self.boots.len() < BOOTS {
            let mut window = BootWindow {
                boot: boot.to_owned(),
                highest: 0,
                seen: [0; WORDS],
            };
            window.admit(seq);
            self.boots.insert(0, window);
        }
    }

    /// Whether surely no later frame was taken in: the boot that was met last is this one, and got no further than `seq`. False
    /// where that cannot be told.
    #[must_use]
    pub fn is_latest(&self, boot: &str, seq: u64) -> bool {
        self.latest()
            .is_some_and(|(last, highest)| last == boot && highest <= seq)
    }

    /// Whether a later frame may have been taken in: its boot is known, and got further than `seq` or is not the one that was met
    /// last. A boot that is not known begins with this frame.
    #[must_use]
    pub fn is_passed(&self, boot: &str, seq: u64) -> bool {
        self.boots.iter().any(|b| b.boot == boot) && !self.is_latest(boot, seq)
    }

    /// The boot that was met last and its highest sequence.
    #[must_use]
    pub fn latest(&self) -> Option<(&str, u64)> {
        self.boots.last().map(|b| (b.boot.as_str(), b.highest))
    }

    /// For the store. Fixed layout: for each boot one byte of length, the boot id, the highest sequence and the bits, all
    /// little endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.boots.len() * (WORDS * 8 + 48));
        for b in &self.boots {
            // A door lets no longer one in.
            let name = b
                .boot
                .as_bytes()
                .get(..b.boot.len().min(255))
                .unwrap_or_default();
            out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            out.extend_from_slice(name);
            out.extend_from_slice(&b.highest.to_le_bytes());
            for word in b.seen {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        out
    }

    /// What [`ReplayWindow::to_bytes`] wrote; None: it is something else.
    #[must_use]
    pub fn from_bytes(mut bytes: &[u8]) -> Option<ReplayWindow> {
        fn word(bytes: &mut &[u8]) -> Option<u64> {
            let (head, tail) = bytes.split_first_chunk::<8>()?;
            *bytes = tail;
            Some(u64::from_le_bytes(*head))
        }
        let mut boots = Vec::new();
        while let Some((len, rest)) = bytes.split_first() {
            let (name, rest) = rest.split_at_checked(usize::from(*len))?;
            bytes = rest;
            let highest = word(&mut bytes)?;
            let mut seen = [0; WORDS];
            for at in &mut seen {
                *at = word(&mut bytes)?;
            }
            boots.push(BootWindow {
                boot: std::str::from_utf8(name).ok()?.to_owned(),
                highest,
                seen,
            });
        }
        (boots.len() <= BOOTS).then_some(ReplayWindow { boots })
    }
}

impl BootWindow {
    fn admit(&mut self, seq: u64) -> bool {
        if seq > self.highest {
            // Whatever the window leaves behind or jumps over is free for what comes.
            if seq - self.highest >= MAX_IN_FLIGHT {
                self.seen = [0; WORDS];
            } else {
                for free in self.highest + 1..=seq {
                    self.set(free, false);
                }
            }
            self.highest = seq;
            self.set(seq, true);
            return true;
        }
        if self.highest - seq >= MAX_IN_FLIGHT || self.is_set(seq) {
            return false;
        }
        self.set(seq, true);
        true
    }

    fn place(seq: u64) -> (usize, u64) {
        let bit = seq % MAX_IN_FLIGHT;
        // Below WORDS, whatever the sequence is.
        (usize::try_from(bit / 64).unwrap_or(0), 1 << (bit % 64))
    }

    fn is_set(&self, seq: u64) -> bool {
        let (word, mask) = BootWindow::place(seq);
        self.seen.get(word).is_some_and(|w| w & mask != 0)
    }

    fn set(&mut self, seq: u64, on: bool) {
        let (word, mask) = BootWindow::place(seq);
        if let Some(w) = self.seen.get_mut(word) {
            *w = if on { *w | mask } else { *w & !mask };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_frame_keeps_its_body_verbatim_and_unknown_members_pass() {
        let text = r#"{"v":1,"ws":3,"shard":"atlantic","boot":"b1","seq":7,"kind":"thing.changed","key":"0x4001","accepted_at":5,"body":{"to":"Late","x":1.0},"later":true}"#;
        let frame: Frame = serde_json::from_str(text).expect("decodes");
        assert_eq!(frame.body.get(), r#"{"to":"Late","x":1.0}"#);
        assert_eq!(frame.log_key(), "3:atlantic:0x4001");
    }

    #[test]
    fn names_and_ids() {
        for good in ["atlantic", "a", "0.b-c_d"] {
            assert!(is_shard_id(good), "{good}");
        }
        for bad in ["", "Atlantic", "-a", "a:b", "a b", "a/b", &"a".repeat(64)] {
            assert!(!is_shard_id(bad), "{bad}");
        }
        assert!(is_name("thing.changed") && is_name("2026-11-30T10:00:00Z#1"));
        for bad in ["", "a b", "a\"b", "é", "a\0", &"a".repeat(129)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn what_failed_and_was_overtaken_is_taken_in_when_it_is_replayed() {
        let mut w = ReplayWindow::default();
        assert!(w.admit("a", 1));
        // 2 failed; 3 stands in the log.
        assert!(w.admit("a", 3));
        assert!(w.admit("a", 2));
        assert!(!w.admit("a", 2) && !w.admit("a", 3) && !w.admit("a", 1));
        // Another boot starts over, and the last of the former one is still known.
        assert!(w.admit("b", 1));
        assert!(!w.admit("a", 3) && w.admit("a", 4));
        assert!(!w.admit("b", 1));
        assert_eq!(w.latest(), Some(("b", 1)));
    }

    #[test]
    fn what_comes_again_later_is_known_and_is_the_latest_only_where_nothing_came_behind_it() {
        let mut w = ReplayWindow::default();
        assert!(!w.is_latest("a", 1), "nothing is known");
        // 2 and 5 are set aside.
        assert!(w.admit("a", 1) && w.admit("a", 3) && w.admit("a", 4));
        assert!(!w.is_latest("a", 2) && w.is_latest("a", 5));
        w.admit_again("a", 2);
        assert!(!w.admit("a", 2));
        assert!(w.admit("b", 1));
        assert!(!w.is_latest("a", 5), "another boot came behind it");
        w.admit_again("a", 5);
        assert_eq!(w.latest(), Some(("b", 1)), "b was met last");
        assert!(!w.is_latest("a", 6) && w.is_latest("b", 1));
        w.admit_again("c", 7);
        assert_eq!(w.latest(), Some(("b", 1)));
        assert!(!w.admit("c", 7));
        for boot in ["d", "e", "f", "g", "h"] {
            w.admit_again(boot, 1);
        }
        assert_eq!(ReplayWindow::from_bytes(&w.to_bytes()), Some(w));
    }

    #[test]
    fn a_frame_is_passed_by_what_came_behind_it_and_a_new_boot_s_first_is_not() {
        let mut w = ReplayWindow::default();
        assert!(!w.is_passed("a", 1), "nothing is known");
        assert!(w.admit("a", 3));
        assert!(w.is_passed("a", 2) && !w.is_passed("a", 3) && !w.is_passed("a", 4));
        assert!(!w.is_passed("b", 1), "a new boot begins");
        assert!(w.admit("b", 1));
        assert!(w.is_passed("a", 4), "another boot came behind it");
        assert!(!w.is_passed("b", 2));
    }

    #[test]
    fn what_lies_below_the_window_has_been_there() {
        let mut w = ReplayWindow::default();
        assert!(w.admit("a", 5 * MAX_IN_FLIGHT));
        assert!(!w.admit("a", 4 * MAX_IN_FLIGHT));
        assert!(w.admit("a", 4 * MAX_IN_FLIGHT + 1));
        assert!(!w.admit("a", 0), "no frame has number 0");
    }

    proptest! {
        /// Against a set that forgets nothing: as long as nothing new lies a window or more below the highest, they agree.
        #[test]
        fn the_window_is_the_set(steps in prop::collection::vec((0u64..3, 0u64..MAX_IN_FLIGHT, any::<bool>()), 1..400)) {
            let mut window = ReplayWindow::default();
            let mut all: HashSet<(String, u64)> = HashSet::new();
            let mut highest = [0u64; 3];
            for (boot, back, ahead) in steps {
                let at = boot as usize;
                let seq = if ahead { highest[at] + 1 + back % 700 } else { highest[at].saturating_sub(back) };
                let name = format!("boot{boot}");
                let new = seq != 0 && all.insert((name.clone(), seq));
                if seq != 0 {
                    highest[at] = highest[at].max(seq);
                    prop_assert_eq!(window.admit(&name, seq), new);
                }
                let back = ReplayWindow::from_bytes(&window.to_bytes());
                prop_assert_eq!(back.as_ref(), Some(&window));
            }
        }

        #[test]
        fn bytes_of_any_kind_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = ReplayWindow::from_bytes(&bytes);
        }
    }
}
