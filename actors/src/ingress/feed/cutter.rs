//! Cuts the messages of a WebSocket that are longer than a frame of the feed, before anything keeps them: the library behind it
//! gathers what a peer announces, and a peer may announce gigabytes.
//!
//! Every data message goes on as a binary one, a text cut in the middle of a letter being none; what it was is kept beside it, in
//! order ([`Was`]).

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use millrace_schemas::frame::MAX_FRAME_BYTES;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// How much of a message that is too long goes on, for its sequence.
const HEAD: u64 = 4 << 10;
/// The longest message that goes on whole.
const WHOLE: u64 = MAX_FRAME_BYTES as u64;
/// The longest control frame (RFC 6455 § 5.5).
const CONTROL: u64 = 125;

/// What a data message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// Text, whole.
    Text,
    /// No text.
    NotText,
    /// Longer than a frame may be: its length, so far.
    TooLong(u64),
}

/// The peer breaks the protocol in a way that would be gathered before it is refused.
#[derive(Debug, thiserror::Error)]
#[error("a control frame is longer than the protocol allows")]
pub struct Violation;

/// Frames of a peer, of bounded memory.
#[derive(Debug, Default)]
pub struct Cutter {
    /// The header of the frame that begins.
    header: Vec<u8>,
    /// Of the frame under way: bytes to come, and how many of them go on.
    left: u64,
    keep: u64,
    /// Bytes of the message under way, as announced so far.
    total: u64,
    was: VecDeque<Was>,
}

impl Cutter {
    /// Takes bytes in; answers what goes on of them.
    ///
    /// # Errors
    /// A control frame is announced that is longer than 125 bytes. Nothing can be read of the connection after that.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<BytesMut, Violation> {
        let mut out = BytesMut::with_capacity(bytes.len().min(2 * MAX_FRAME_BYTES));
        while !bytes.is_empty() {
            if self.left > 0 {
                let now = usize::try_from(self.left).map_or(bytes.len(), |l| l.min(bytes.len()));
                let (here, rest) = bytes.split_at(now);
                let kept = usize::try_from(self.keep).map_or(now, |k| k.min(now));
                out.put_slice(here.get(..kept).unwrap_or_default());
                self.left -= now as u64;
                self.keep -= kept as u64;
                bytes = rest;
                continue;
            }
            let (here, rest) = bytes.split_at(self.missing().min(bytes.len()));
            self.header.extend_from_slice(here);
            bytes = rest;
            if self.missing() == 0 {
                self.begin(&mut out)?;
            }
        }
        Ok(out)
    }

    /// What the next message that comes out was.
    pub fn was(&mut self) -> Option<Was> {
        self.was.pop_front()
    }

    /// Bytes that were taken in and neither went on nor were left out: of a header that is not whole yet, 13 at most.
    #[must_use]
    pub fn held(&self) -> usize {
        self.header.len()
    }

    /// How many bytes of the header are still to come.
    fn missing(&self) -> usize {
        let wanted = match self.header.get(1) {
            None => 2,
            Some(second) => {
                let mask = if second & 0x80 == 0 { 0 } else { 4 };
                2 + mask
                    + match second & 0x7f {
                        126 => 2,
                        127 => 8,
                        _ => 0,
                    }
            }
        };
        wanted - self.header.len()
    }

    /// The header is whole: its frame begins.
    fn begin(&mut self, out: &mut BytesMut) -> Result<(), Violation> {
        let header = std::mem::take(&mut self.header);
        let [first, second, rest @ ..] = header.as_slice() else {
            return Err(Violation);
        };
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let (length, mask) = rest.split_at(extended);
        let length = match length {
            [] => u64::from(second & 0x7f),
            _ => length.iter().fold(0, |n, b| (n << 8) | u64::from(*b)),
        };
        let opcode = first & 0x0f;
        let mut first = *first;
        self.left = length;
        self.keep = length;
        match opcode {
            0..=2 => {
                if opcode > 0 {
                    self.total = 0;
                    self.was.push_back(match opcode {
                        1 => Was::Text,
                        _ => Was::NotText,
                    });
                    first = (first & 0xf0) | 2;
                }
                let before = self.total;
                self.total = before.saturating_add(length);
                if self.total > WHOLE {
                    self.keep = HEAD.saturating_sub(before).min(length);
                    if let Some(was) = self.was.back_mut() {
                        *was = Was::TooLong(self.total);
                    }
                }
            }
            _ if length > CONTROL => return Err(Violation),
            _ => {}
        }
        out.put_u8(first);
        let masked = second & 0x80;
        match u16::try_from(self.keep) {
            Ok(short) if short <= 125 => out.put_u8(masked | self.keep as u8),
            Ok(short) => {
                out.put_u8(masked | 126);
                out.put_u16(short);
            }
            Err(_) => {
                out.put_u8(masked | 127);
                out.put_u64(self.keep);
            }
        }
        out.put_slice(mask);
        Ok(())
    }
}

/// The bytes of a connection, cut.
pub(super) struct Cut {
    payload: Payload,
    cutter: Rc<RefCell<Cutter>>,
}

impl Cut {
    /// The cut bytes of a payload, as a payload again, and who cuts them.
    pub fn payload(payload: Payload) -> (Payload, Rc<RefCell<Cutter>>) {
        let cutter = Rc::new(RefCell::default());
        let cut = Cut {
            payload,
            cutter: Rc::clone(&cutter),
        };
        let stream: Pin<Box<dyn Stream<Item = Result<Bytes, PayloadError>>>> = Box::pin(cut);
        let payload = Payload::Stream { payload: stream };
        (payload, cutter)
    }
}

impl Stream for Cut {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let Some(bytes) = ready!(Pin::new(&mut this.payload).poll_next(context)?) else {
                return Poll::Ready(None);
            };
            match this.cutter.borrow_mut().push(&bytes) {
                Ok(out) if out.is_empty() => {}
                Ok(out) => return Poll::Ready(Some(Ok(out.freeze()))),
                Err(Violation) => return Poll::Ready(Some(Err(PayloadError::Overflow))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_http::ws::{OpCode, Parser};
    use proptest::prelude::*;

    const MASK: [u8; 4] = [0x11, 0x22, 0x33, 0x44];

    /// A header as a peer sends it.
    fn header(first: u8, length: u64) -> Vec<u8> {
        let mut frame = vec![first];
        match length {
            0..=125 => frame.push(0x80 | length as u8),
            126..=0xffff => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend(length.to_be_bytes());
            }
        }
        frame.extend(MASK);
        frame
    }

    fn sent(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = header(first, payload.len() as u64);
        let masked = payload.iter().zip(MASK.iter().cycle());
        frame.extend(masked.map(|(byte, mask)| byte ^ mask));
        frame
    }

    /// What comes out behind the library's own reading, each message with what it was.
    fn read(parts: &[&[u8]]) -> Vec<(Vec<u8>, Option<Was>)> {
        let (mut cutter, mut buffer) = (Cutter::default(), BytesMut::new());
        let (mut out, mut message) = (Vec::new(), Vec::new());
        for part in parts {
            buffer.extend_from_slice(&cutter.push(part).expect("no violation"));
            while let Some((whole, opcode, bytes)) =
                Parser::parse(&mut buffer, true, MAX_FRAME_BYTES).expect("a frame")
            {
                let bytes = bytes.unwrap_or_default();
                match opcode {
                    OpCode::Ping => out.push((bytes.to_vec(), None)),
                    OpCode::Binary | OpCode::Continue => {
                        message.extend_from_slice(&bytes);
                        if whole {
                            out.push((std::mem::take(&mut message), cutter.was()));
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(cutter.was.is_empty());
        out
    }

    #[test]
    fn what_is_whole_goes_on_and_what_is_too_long_is_cut() {
        let long = vec![b'x'; MAX_FRAME_BYTES + 1];
        let head = long[..HEAD as usize].to_vec();
        let most = &long[1..];
        let half = &long[..MAX_FRAME_BYTES / 2 + 1];
        let all = [
            sent(0x81, b"a"),
            sent(0x82, &[0xff]),
            sent(0x81, most),
            sent(0x81, &long),
            // In parts, with a sign of life between them; the last part is too much.
            sent(0x01, half),
            sent(0x89, b"alive"),
            sent(0x80, half),
            // The first part is small, the second is not.
            sent(0x01, b"{"),
            sent(0x00, &long),
            sent(0x80, b"}"),
            sent(0x81, b"b"),
        ]
        .concat();
        let too_long = |n: usize| Some(Was::TooLong(n as u64));
        let second = [b"{".as_slice(), &long[..HEAD as usize - 1]].concat();
        let want = [
            (b"a".to_vec(), Some(Was::Text)),
            (vec![0xff], Some(Was::NotText)),
            (most.to_vec(), Some(Was::Text)),
            (head, too_long(long.len())),
            (b"alive".to_vec(), None),
            (half.to_vec(), too_long(2 * half.len())),
            (second, too_long(long.len() + 2)),
            (b"b".to_vec(), Some(Was::Text)),
        ];
        let got = read(&[&all]);
        assert_eq!(got.len(), want.len());
        for (n, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(got == want, "{n}: {:?} of {} bytes", got.1, got.0.len());
        }
        for size in [1, 3, 1_000, 65_536] {
            let parts: Vec<&[u8]> = all.chunks(size).collect();
            assert!(read(&parts) == want, "in parts of {size}");
        }
    }

    /// A gigabyte goes by, and nothing of it is kept.
    #[test]
    fn what_is_announced_takes_no_memory() {
        let mut cutter = Cutter::default();
        let mut passed = cutter.push(&header(0x81, 1 << 30)).expect("begun").len();
        let piece = vec![0; 1 << 20];
        for _ in 0..1 << 10 {
            let out = cutter.push(&piece).expect("goes by");
            passed += out.len();
            assert!(out.capacity() <= 2 * MAX_FRAME_BYTES);
        }
        assert!(passed <= HEAD as usize + 14, "{passed}");
        assert_eq!(cutter.left, 0);
        assert_eq!(cutter.was(), Some(Was::TooLong(1 << 30)));
        // A length that no peer may announce is one that is too long.
        cutter.push(&header(0x81, u64::MAX)).expect("begun");
        cutter.push(&piece).expect("goes by");
        assert_eq!(cutter.was(), Some(Was::TooLong(u64::MAX)));
    }

    #[test]
    fn a_long_sign_of_life_is_a_violation() {
        assert!(Cutter::default().push(&header(0x89, 126)).is_err());
        assert!(Cutter::default().push(&header(0x88, 1 << 40)).is_err());
        assert!(Cutter::default().push(&header(0x8a, 125)).is_ok());
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_it_goes_on(bytes in prop::collection::vec(any::<u8>(), 0..300), cuts in prop::collection::vec(0usize..300, 0..4)) {
            let whole = Cutter::default().push(&bytes).map(|b| b.to_vec()).ok();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut cutter = Cutter::default();
            let mut parts = Some(Vec::new());
            for window in cuts.windows(2) {
                let out = cutter.push(&bytes[window[0]..window[1]]).ok();
                parts = parts.zip(out).map(|(mut all, out)| { all.extend_from_slice(&out); all });
                if parts.is_none() { break; }
            }
            prop_assert_eq!(parts, whole);
        }
    }
}
