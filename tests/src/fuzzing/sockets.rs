//! Frames of a peer's WebSocket, cut before the library behind reads them.

use millrace::ingress::feed::cutter::{Cutter, Was};
use millrace_schemas::frame::MAX_FRAME_BYTES;

/// The longest header of a frame (RFC 6455 § 5.2).
const HEADER: usize = 14;
/// The longest control frame (§ 5.5).
const CONTROL: u64 = 125;

/// What goes on is the same in whatever pieces it came, no more than came is kept for it, and no message of it is one that the
/// library would gather beyond the feed's bound.
///
/// The first four bytes say how long the pieces are, where among the others zeros stand, and how many of them: so a message that
/// is longer than a frame may be needs no long input.
pub(super) fn cut(data: &[u8]) {
    let Some((&[one, other, place, zeros], bytes)) = data.split_first_chunk::<4>() else {
        return;
    };
    let sizes = [usize::from(one) + 1, usize::from(other) + 1];
    let (head, tail) = bytes.split_at(bytes.len() * usize::from(place) / 256);
    let zeros = vec![0; usize::from(zeros) * 2_048];
    let (few, many) = zeros.split_at(zeros.len().min(1));
    let mut pieces = Vec::new();
    into_pieces(head, sizes, &mut pieces);
    pieces.extend([few, many]);
    into_pieces(tail, sizes, &mut pieces);
    let whole = pieces.concat();

    let passed = through(&pieces);
    assert!(
        passed == through(&[&whole]),
        "in pieces it is not what it is at once"
    );
    if let Some((out, was)) = passed {
        assert!(out.len() <= whole.len(), "more goes on than came");
        assert_eq!(messages(&out), was.len());
    }
}

/// Cuts a part into pieces of one and the other size in turns.
fn into_pieces<'a>(mut part: &'a [u8], sizes: [usize; 2], pieces: &mut Vec<&'a [u8]>) {
    while !part.is_empty() {
        let size = sizes[pieces.len() % 2].min(part.len());
        let (piece, rest) = part.split_at(size);
        pieces.push(piece);
        part = rest;
    }
}

/// What goes on of the pieces, and what each of its messages was; nothing, if the peer breaks the protocol.
fn through(pieces: &[&[u8]]) -> Option<(Vec<u8>, Vec<Was>)> {
    let mut cutter = Cutter::default();
    let mut out = Vec::new();
    for piece in pieces {
        let passed = cutter.push(piece).ok()?;
        assert!(cutter.held() < HEADER, "{} bytes are held", cutter.held());
        assert!(passed.len() < piece.len() + HEADER);
        out.extend_from_slice(&passed);
    }
    let was = std::iter::from_fn(|| cutter.was()).collect();
    Some((out, was))
}

/// How many data messages begin in what goes on, of which none is longer than a frame of the feed.
fn messages(mut out: &[u8]) -> usize {
    let (mut begun, mut gathered) = (0, 0_u64);
    while let [first, second, rest @ ..] = out {
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let (length, rest) = rest.split_at(extended);
        let length = match length {
            [] => u64::from(second & 0x7f),
            _ => length.iter().fold(0, |n, b| (n << 8) | u64::from(*b)),
        };
        let payload = &rest[if second & 0x80 == 0 { 0 } else { 4 }..];
        match first & 0x0f {
            2 => (begun, gathered) = (begun + 1, length),
            0 => gathered += length,
            1 => panic!("a text goes on as a text"),
            _ => assert!(length <= CONTROL, "a control frame of {length} bytes"),
        }
        let most = MAX_FRAME_BYTES as u64;
        assert!(gathered <= most, "{gathered} bytes would be gathered");
        let there = usize::try_from(length).map_or(payload.len(), |l| l.min(payload.len()));
        out = &payload[there..];
    }
    assert!(out.is_empty(), "half a header goes on");
    begun
}
