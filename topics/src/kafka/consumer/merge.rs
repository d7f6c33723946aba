//! Several topics of one partition, read in the order of their times.
//!
//! A backlog of clicks and postbacks must not be read one topic ahead of the other: postbacks read long before their clicks
//! would all be parked. So the topic whose next record is the oldest goes first, and one that has records to come but none
//! here yet is waited for, for a moment.

use super::source::{Incoming, Polled, Source};
use crate::contract::Batch;
use std::time::{Duration, Instant};

/// How long the other topics wait for one that ran dry before its end, while they keep pace with the log.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long they wait while it works off a backlog: its records are there and will come, unless its broker is away. Going on
/// without them would read the others far ahead.
const PATIENCE_BEHIND: Duration = Duration::from_secs(2);
/// More records than this since the last end: a backlog.
const BEHIND: u64 = 1_000;

/// One topic of the partition.
pub(super) struct Stream<S> {
    topic_no: i32,
    /// `None` while the group has not given this topic's partition to us.
    pub source: Option<S>,
    /// The next record, if it was read already and is younger than another topic's.
    head: Option<(i64, i64)>,
    head_key: Vec<u8>,
    head_payload: Vec<u8>,
    /// The offset after the last one read.
    pub next: i64,
    /// The offset after the last one handed over.
    handed: i64,
    at_end: bool,
    /// Records read since the last end; all there are if none was seen.
    since_end: u64,
    /// Nothing came at the last look.
    dry: bool,
    dry_since: Option<Instant>,
}

impl<S: Source> Stream<S> {
    pub(super) fn new(topic_no: i32) -> Stream<S> {
        Stream {
            topic_no,
            source: None,
            head: None,
            head_key: Vec::new(),
            head_payload: Vec::new(),
            next: 0,
            handed: 0,
            at_end: false,
            since_end: u64::MAX,
            dry: false,
            dry_since: None,
        }
    }

    /// The topic's number.
    pub(super) fn topic_no(&self) -> i32 {
        self.topic_no
    }

    /// Forgets what was read, and begins at `next`.
    pub(super) fn restart(&mut self, next: i64) {
        self.head = None;
        self.next = next;
        self.handed = next;
        self.at_end = false;
        self.since_end = u64::MAX;
        self.dry = false;
        self.dry_since = None;
    }

    /// What was read and is not kept back is handed over now.
    pub(super) fn hand_over(&mut self, batch: &mut Batch) {
        let upto = self.head.map_or(self.next, |(offset, _)| offset);
        if upto > self.handed {
            batch.follow(self.topic_no, self.handed);
            self.handed = upto;
        }
    }

    /// Nobody looks for a while: what is not read is not late.
    pub(super) fn rest(&mut self) {
        self.dry_since = None;
    }

    /// Throws away what the source still holds.
    pub(super) fn drain(&mut self) {
        if let Some(source) = &self.source {
            while !matches!(source.poll(&mut |_| {}), Polled::Empty) {}
        }
    }

    /// Reads on as long as records are not younger than `until` and the batch has room. The first younger one becomes the
    /// head.
    fn pull(&mut self, batch: &mut Batch, until: i64, room: &Room) -> Result<(), String> {
        let Some(source) = &self.source else {
            self.dry = true;
            return Ok(());
        };
        let (topic_no, head, next) = (self.topic_no, &mut self.head, &mut self.next);
        let (head_key, head_payload) = (&mut self.head_key, &mut self.head_payload);
        let mut taken = 0_u64;
        loop {
            if head.is_some() || room.is_full(batch) {
                break;
            }
            let polled = source.poll(&mut |record: Incoming<'_>| {
                *next = record.offset + 1;
                let bytes = record.key.len() + record.payload.len();
                if record.time > until
                    || !room.fits(batch, bytes)
                    || !batch.push(topic_no, record.offset, record.key, record.payload)
                {
                    *head = Some((record.offset, record.time));
                    head_key.clear();
                    head_key.extend_from_slice(record.key);
                    head_payload.clear();
                    head_payload.extend_from_slice(record.payload);
                }
            });
            match polled {
                Polled::Record => taken += 1,
                Polled::Empty => {
                    self.dry = true;
                    break;
                }
                Polled::End => {
                    self.at_end = true;
                    self.since_end = 0;
                    self.dry = true;
                    self.dry_since = None;
                    if !batch.ends.contains(&topic_no) {
                        batch.ends.push(topic_no);
                    }
                    // More may lie behind it already; the next look finds it.
                    return Ok(());
                }
                Polled::Fault(reason) => return Err(reason),
            }
        }
        if taken > 0 {
            self.since_end = self.since_end.saturating_add(taken);
            self.at_end = false;
            self.dry_since = None;
            batch.ends.retain(|t| *t != topic_no);
        }
        Ok(())
    }

    /// Moves the head into the batch; false if it does not fit.
    fn push_head(&mut self, batch: &mut Batch, room: &Room) -> bool {
        let Some((offset, _)) = self.head else {
            return false;
        };
        let fits = room.fits(batch, self.head_key.len() + self.head_payload.len())
            && batch.push(self.topic_no, offset, &self.head_key, &self.head_payload);
        if fits {
            self.head = None;
        }
        fits
    }

    /// Whether others should wait for it: dry, but not at its end, and not for long.
    fn awaited(&mut self, now: Instant) -> bool {
        if self.head.is_some() || self.at_end || self.source.is_none() {
            return false;
        }
        let patience = if self.since_end > BEHIND {
            PATIENCE_BEHIND
        } else {
            PATIENCE
        };
        now.duration_since(*self.dry_since.get_or_insert(now)) < patience
    }
}

/// How much a batch takes.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub records: usize,
    pub bytes: usize,
}

impl Room {
    fn is_full(&self, batch: &Batch) -> bool {
        batch.len() >= self.records || batch.bytes() >= self.bytes
    }

    /// Whether a record of `bytes` bytes fits; a larger one than all the room makes a batch of its own.
    fn fits(&self, batch: &Batch, bytes: usize) -> bool {
        batch.records().is_empty() || batch.bytes() + bytes <= self.bytes
    }
}

/// Fills a batch from the topics of its partition until it is full (true) or nothing more is to be had now.
///
/// # Errors
/// Which topic cannot go on, and why.
pub(super) fn fill<S: Source>(
    streams: &mut [Stream<S>],
    batch: &mut Batch,
    room: &Room,
    now: Instant,
) -> Result<bool, (i32, String)> {
    for stream in streams.iter_mut() {
        stream.dry = false;
    }
    while !room.is_full(batch) {
        // Look at every topic that has no head; one alone without a head may run up to the oldest of the others.
        let open = streams
            .iter()
            .filter(|s| s.head.is_none() && !s.dry)
            .count();
        let oldest = streams
            .iter()
            .enumerate()
            .filter_map(|(place, s)| Some((s.head?.1, place)))
            .min();
        let awaited = streams
            .iter_mut()
            .any(|s| s.head.is_none() && s.dry && s.awaited(now));
        let mut looked = false;
        let without_head = streams.iter_mut().enumerate();
        for (place, stream) in without_head.filter(|(_, s)| s.head.is_none() && !s.dry) {
            looked = true;
            let until = match oldest {
                _ if open > 1 || awaited => i64::MIN,
                None => i64::MAX,
                // Of records of one time, that of the earlier topic goes first.
                Some((time, head)) => time.saturating_sub(i64::from(place > head)),
            };
            stream
                .pull(batch, until, room)
                .map_err(|reason| (stream.topic_no, reason))?;
        }
        if looked {
            continue;
        }
        if awaited {
            return Ok(false);
        }
        // All looked at: the oldest head goes, of equals that of the earlier topic.
        let Some(stream) = streams
            .iter_mut()
            .filter(|s| s.head.is_some())
            .min_by_key(|s| s.head.map(|h| h.1))
        else {
            return Ok(false);
        };
        if !stream.push_head(batch, room) {
            return Ok(true);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;

    enum Step {
        Record(i64, i64),
        End,
        Gap,
    }

    struct Script(RefCell<VecDeque<Step>>);

    impl Source for Script {
        fn poll(&self, take: &mut dyn FnMut(Incoming<'_>)) -> Polled {
            match self.0.borrow_mut().pop_front() {
                None | Some(Step::Gap) => Polled::Empty,
                Some(Step::End) => Polled::End,
                Some(Step::Record(offset, time)) => {
                    take(Incoming {
                        offset,
                        time,
                        key: b"k",
                        payload: b"p",
                    });
                    Polled::Record
                }
            }
        }
    }

    fn stream(topic_no: i32, steps: Vec<Step>) -> Stream<Script> {
        let mut stream = Stream::new(topic_no);
        stream.source = Some(Script(RefCell::new(steps.into())));
        stream
    }

    fn read(
        streams: &mut [Stream<Script>],
        records: usize,
        now: Instant,
    ) -> (Vec<(i32, i64)>, Vec<i32>) {
        let mut batch = Batch::new(0);
        let room = Room {
            records,
            bytes: 1 << 20,
        };
        fill(streams, &mut batch, &room, now).unwrap();
        let got = batch
            .records()
            .iter()
            .map(|r| (r.topic_no, r.offset))
            .collect();
        (got, batch.ends.clone())
    }

    use Step::{End, Gap, Record};

    #[test]
    fn the_oldest_goes_first() {
        let mut s = [
            stream(1, vec![Record(0, 10), Record(1, 30), Record(2, 50), End]),
            stream(2, vec![Record(7, 20), Record(8, 30), Record(9, 60), End]),
        ];
        let (got, ends) = read(&mut s, 100, Instant::now());
        assert_eq!(got, [(1, 0), (2, 7), (1, 1), (2, 8), (1, 2), (2, 9)]);
        assert_eq!(ends, [1, 2]);
    }

    #[test]
    fn a_full_batch_keeps_the_rest_for_the_next() {
        let mut s = [
            stream(1, (0..10).map(|i| Record(i, i * 10)).chain([End]).collect()),
            stream(2, vec![Record(0, 35), End]),
        ];
        let now = Instant::now();
        let mut all = Vec::new();
        for _ in 0..4 {
            all.extend(read(&mut s, 3, now).0);
        }
        assert_eq!(
            all.iter()
                .filter(|r| r.0 == 1)
                .map(|r| r.1)
                .collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        assert_eq!(all.iter().position(|r| r.0 == 2), Some(4));
    }

    #[test]
    fn a_topic_that_ran_dry_before_its_end_is_waited_for_a_moment() {
        let mut s = [
            stream(1, vec![Record(0, 10), Gap, Gap, Record(1, 15), End]),
            stream(2, vec![Record(0, 20), End]),
        ];
        let now = Instant::now();
        assert_eq!(read(&mut s, 100, now).0, [(1, 0)]);
        assert_eq!(read(&mut s, 100, now).0, []);
        assert_eq!(read(&mut s, 100, now).0, [(1, 1), (2, 0)]);

        let mut s = [stream(1, vec![]), stream(2, vec![Record(0, 20), End])];
        assert_eq!(read(&mut s, 100, now).0, []);
        assert_eq!(read(&mut s, 100, now + PATIENCE).0, []);
        assert_eq!(read(&mut s, 100, now + PATIENCE_BEHIND).0, [(2, 0)]);
    }

    #[test]
    fn who_keeps_pace_is_not_held_up_for_long_and_resting_is_no_lateness() {
        let steps = vec![End, Record(0, 10), Gap, Gap, Gap, Gap];
        let mut s = [stream(1, steps), stream(2, vec![Gap, Record(0, 20), End])];
        let now = Instant::now();
        assert_eq!(read(&mut s, 100, now).0, []);
        assert_eq!(read(&mut s, 100, now).0, [(1, 0)]);
        for stream in &mut s {
            stream.rest();
        }
        let later = now + PATIENCE_BEHIND;
        assert_eq!(read(&mut s, 100, later).0, []);
        assert_eq!(read(&mut s, 100, later + PATIENCE).0, [(2, 0)]);
    }

    #[test]
    fn a_batch_keeps_within_its_bytes_but_for_a_single_larger_record() {
        // Key and payload of a scripted record have two bytes.
        let steps = || (0..5).map(|i| Record(i, i)).chain([End]).collect();
        for (bytes, want) in [(1, vec![1, 1, 1, 1, 1]), (5, vec![2, 2, 1])] {
            let mut s = [stream(1, steps()), stream(2, vec![End])];
            let room = Room { records: 9, bytes };
            let mut got = Vec::new();
            for _ in &want {
                let mut batch = Batch::new(0);
                fill(&mut s, &mut batch, &room, Instant::now()).unwrap();
                got.push(batch.len());
            }
            assert_eq!(got, want);
        }
    }

    #[test]
    fn an_end_is_withdrawn_by_a_later_record() {
        let mut s = [stream(1, vec![Record(0, 1), End, Record(1, 2)])];
        let mut batch = Batch::new(0);
        let room = Room {
            records: 10,
            bytes: 1 << 20,
        };
        let now = Instant::now();
        fill(&mut s, &mut batch, &room, now).unwrap();
        assert_eq!(batch.ends, [1]);
        fill(&mut s, &mut batch, &room, now).unwrap();
        assert_eq!((batch.len(), batch.ends.len()), (2, 0));
    }
}
