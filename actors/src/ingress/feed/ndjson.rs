//! A feed as lines of a request, answered by lines of its response.

use super::engine::{Carrier, Got};
use actix_web::web::{Bytes, BytesMut, Payload};
use actix_ws::CloseCode;
use futures::StreamExt;
use millrace_schemas::frame::MAX_FRAME_BYTES;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a peer may take to accept an answer.
const SLOWEST: Duration = Duration::from_secs(10);
/// How much of a line that is too long is kept, for its sequence.
const HEAD: usize = 4 << 10;

/// Lines of a stream of bytes, of bounded memory.
#[derive(Default)]
pub(super) struct Splitter {
    buffer: BytesMut,
    /// Bytes of the buffer in which no line ends.
    searched: usize,
    /// Of a line that is too long: its beginning, and its length so far.
    skipping: Option<(Bytes, usize)>,
}

impl Splitter {
    /// Takes bytes in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next line, blanks around it cut off, blank lines left out; none: more bytes are needed.
    pub fn line(&mut self) -> Option<Got> {
        loop {
            let tail = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', tail) else {
                self.searched = self.buffer.len();
                if self.searched > MAX_FRAME_BYTES || self.skipping.is_some() {
                    self.skip();
                }
                return None;
            };
            let line = self.buffer.split_to(self.searched + at + 1).freeze();
            self.searched = 0;
            if let Some((head, bytes)) = self.skipping.take() {
                return Some(Got::TooLarge(head, bytes + line.len()));
            }
            let line = line.slice_ref(line.trim_ascii());
            if !line.is_empty() {
                return Some(Got::Text(line));
            }
        }
    }

    /// What stands behind the last line, once nothing more comes.
    pub fn rest(&mut self) -> Option<Got> {
        self.push(b"\n");
        self.line()
    }

    fn skip(&mut self) {
        let (_, bytes) = self.skipping.get_or_insert_with(|| {
            let head = self.buffer.get(..HEAD).unwrap_or_default();
            (Bytes::copy_from_slice(head), 0)
        });
        *bytes += self.buffer.len();
        self.buffer.clear();
        self.searched = 0;
    }
}

pub(super) struct Lines {
    payload: Payload,
    splitter: Splitter,
    answers: mpsc::Sender<Bytes>,
    ended: bool,
}

impl Lines {
    pub fn new(payload: Payload, answers: mpsc::Sender<Bytes>) -> Lines {
        Lines {
            payload,
            splitter: Splitter::default(),
            answers,
            ended: false,
        }
    }
}

impl Carrier for Lines {
    async fn next(&mut self) -> Got {
        loop {
            if let Some(got) = self.splitter.line() {
                return got;
            }
            if self.ended {
                return Got::End;
            }
            match self.payload.next().await {
                Some(Ok(bytes)) => self.splitter.push(&bytes),
                Some(Err(_)) => return Got::Broken,
                None => {
                    self.ended = true;
                    if let Some(got) = self.splitter.rest() {
                        return got;
                    }
                }
            }
        }
    }

    async fn say(&mut self, mut text: String) -> bool {
        text.push('\n');
        let sent = self.answers.send(Bytes::from(text));
        matches!(tokio::time::timeout(SLOWEST, sent).await, Ok(Ok(())))
    }

    async fn ping(&mut self) -> bool {
        !self.answers.is_closed()
    }

    async fn close(self, _: CloseCode, _: &'static str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(parts: &[&[u8]]) -> Vec<Result<String, usize>> {
        let mut splitter = Splitter::default();
        let mut out = Vec::new();
        let mut keep = |got: Got| match got {
            Got::Text(line) => out.push(Ok(String::from_utf8_lossy(&line).into_owned())),
            Got::TooLarge(_, bytes) => out.push(Err(bytes)),
            _ => panic!("neither"),
        };
        for part in parts {
            splitter.push(part);
            while let Some(got) = splitter.line() {
                keep(got);
            }
        }
        if let Some(got) = splitter.rest() {
            keep(got);
        }
        out
    }

    #[test]
    fn lines_end_where_they_end_and_long_ones_are_skipped() {
        let text = |s: &str| Ok(s.to_owned());
        assert_eq!(
            all(&[b"a\n\n  b \r\nc", b"d\n", b"e"]),
            [text("a"), text("b"), text("cd"), text("e")]
        );
        let long = vec![b'x'; MAX_FRAME_BYTES];
        let got = all(&[&long, b"yy", &long, b"y\nb\n"]);
        assert_eq!(got, [Err(2 * MAX_FRAME_BYTES + 4), text("b")]);
        assert_eq!(all(&[&long, b"yy"]), [Err(MAX_FRAME_BYTES + 3)]);
    }

    proptest! {
        #[test]
        fn however_it_is_cut(text in "[ab \\n]{0,40}", cuts in prop::collection::vec(0usize..40, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|w| &text.as_bytes()[w[0]..w[1]]).collect();
            let want: Vec<Result<String, usize>> =
                text.split('\n').map(str::trim).filter(|l| !l.is_empty()).map(|l| Ok(l.to_owned())).collect();
            prop_assert_eq!(all(&parts), want);
        }
    }
}
