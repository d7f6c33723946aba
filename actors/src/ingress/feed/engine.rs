//! One feed from its first message to its last, whatever carries it: reads, hands over, and acknowledges what the log has.
//!
//! Nothing waits for a single frame: up to [`MAX_IN_FLIGHT`](millrace_schemas::frame::MAX_IN_FLIGHT) are under way, and one
//! `ack` answers for all that are settled by then. With no room, or with the log slow, the feed reads no further and the
//! connection itself holds the sidecar back.

use super::admission::Admitted;
use super::kinds::Mapped;
use super::live::{Feeds, Key, KindCounts, Seat};
use super::order::{Order, Turn};
use super::wire::{self, Answer, Fault, Given, Hello, Said};
use crate::ingress::errors::Refusal;
use crate::ingress::state::{Door, acknowledged};
use crate::runtime::failpoint;
use actix_web::http::StatusCode;
use actix_ws::CloseCode;
use bytes::Bytes;
use futures::FutureExt;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::frame::{Frame, MAX_FRAME_BYTES, MAX_IN_FLIGHT, MAX_KEY_BYTES};
use millrace_topics::contract::Acknowledgement;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Bytes of frames that may be under way.
const MAX_BYTES: usize = 8 << 20;
/// Settled sequences that are acknowledged at once though more could be read.
const ACK_EVERY: u64 = 256;
/// How often a quiet feed looks around.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Seconds after which a sidecar may come back.
const RETRY_AFTER_S: u32 = 2;

/// What a connection brought.
pub(super) enum Got {
    /// A message.
    Text(Bytes),
    /// One that is longer than a frame may be: its beginning and its length so far.
    TooLarge(Bytes, usize),
    /// One that is no text.
    NotText,
    /// A sign of life.
    Heard,
    /// The sender is done.
    End,
    /// The connection broke.
    Broken,
}

/// What carries a feed. `next` may be dropped while it waits.
pub(super) trait Carrier {
    /// What comes next.
    async fn next(&mut self) -> Got;
    /// Sends a message; false: nobody takes it.
    async fn say(&mut self, text: String) -> bool;
    /// Asks for a sign of life.
    async fn ping(&mut self) -> bool;
    /// Closes.
    async fn close(self, code: CloseCode, reason: &'static str);
}

/// Why a feed ends.
enum End {
    /// The sender is done.
    Done,
    /// Nobody is there any more.
    Broken,
    /// Nothing can be taken now: the log is away, its disk is full, the configuration too old.
    Away(Refusal),
    /// For a reason of ours.
    Bye(&'static str, &'static str, CloseCode),
}

enum State {
    /// Handed to the log, and when.
    Log(Acknowledgement, Instant),
    /// Nothing to wait for.
    Done,
}

struct Pending {
    seq: u64,
    bytes: usize,
    state: State,
}

struct Feed {
    door: Rc<Door>,
    feeds: Arc<Feeds>,
    admitted: Admitted,
    key: Key,
    /// Set by the hello.
    boot: Option<String>,
    seat: Option<Seat>,
    order: Order,
    pending: VecDeque<Pending>,
    bytes: usize,
    said: u64,
    kinds: KindCounts,
    /// How long the log may take for one frame.
    patience: Duration,
}

type Flow = Result<(), End>;

/// Runs a feed until it ends.
pub(super) async fn run<C: Carrier>(
    door: Rc<Door>,
    feeds: Arc<Feeds>,
    admitted: Admitted,
    mut carrier: C,
) {
    let patience = door.shared.setup.ack_timeout + Duration::from_secs(1);
    let key = (admitted.shard.workspace, admitted.shard.id.clone());
    let mut feed = Feed {
        door,
        feeds,
        admitted,
        key,
        boot: None,
        seat: None,
        order: Order::default(),
        pending: VecDeque::new(),
        bytes: 0,
        said: 0,
        kinds: KindCounts::default(),
        patience,
    };
    let end = match feed.work(&mut carrier).await {
        Ok(()) => End::Done,
        Err(end) => end,
    };
    feed.leave(carrier, end).await;
}

async fn front(pending: &mut VecDeque<Pending>, patience: Duration) -> Result<(), Refusal> {
    match pending.front_mut().map(|p| &mut p.state) {
        Some(State::Log(acknowledgement, since)) => {
            match tokio::time::timeout_at(*since + patience, acknowledgement).await {
                Ok(answer) => acknowledged(answer),
                Err(_) => Err(Refusal::log_away()),
            }
        }
        _ => std::future::pending().await,
    }
}

async fn told(seat: &mut Option<Seat>) {
    match seat {
        Some(seat) => turns_true(&mut seat.told).await,
        None => std::future::pending().await,
    }
}

async fn turns_true(what: &mut watch::Receiver<bool>) {
    if what.wait_for(|e| *e).await.is_err() {
        std::future::pending().await
    }
}

impl Feed {
    async fn work(&mut self, carrier: &mut impl Carrier) -> Flow {
        let mut ending = self.feeds.ending();
        let idle = self.door.shared.setup.feed.idle;
        let mut heard = Instant::now();
        let mut pinged = heard;
        let mut look = tokio::time::interval(LOOK_EVERY.min(idle / 4));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.settle_ready(carrier).await?;
            let room = self.order.has_room() && self.bytes < MAX_BYTES;
            if !room {
                // It is this side that does not listen.
                heard = Instant::now();
            }
            let due = self.order.settled().saturating_sub(self.said);
            if due > 0 {
                // One answer for many: as long as more can be read at once, it may wait.
                if room
                    && due < ACK_EVERY
                    && !*ending.borrow()
                    && let Some(got) = carrier.next().now_or_never()
                {
                    heard = Instant::now();
                    self.take(carrier, got).await?;
                    continue;
                }
                self.acknowledge(carrier).await?;
            }
            tokio::select! {
                biased;
                () = turns_true(&mut ending) => {
                    return Err(End::Bye("shutdown", "the door closes; connect again", CloseCode::Away));
                }
                () = told(&mut self.seat) => {
                    return Err(End::Bye("taken_over", "another feed of this shard has begun", CloseCode::Other(4409)));
                }
                answer = front(&mut self.pending, self.patience) => self.settle_front(carrier, answer).await?,
                _ = look.tick() => {
                    self.look_around()?;
                    let asked = pinged > heard && pinged.elapsed() >= idle / 3;
                    if heard.elapsed() >= idle && asked {
                        // It may be this process that slept: what lies there unread was said in time.
                        let Some(got) = carrier.next().now_or_never() else {
                            return Err(End::Bye("idle", "nothing was heard for too long", CloseCode::Other(4408)));
                        };
                        heard = Instant::now();
                        self.take(carrier, got).await?;
                    } else if heard.elapsed() >= idle / 3 && pinged.elapsed() >= idle / 3 {
                        pinged = Instant::now();
                        if !carrier.ping().await {
                            return Err(End::Broken);
                        }
                    }
                }
                got = carrier.next(), if room => {
                    heard = Instant::now();
                    self.take(carrier, got).await?;
                }
            }
        }
    }

    /// Whether the feed may go on at all, and how far it is.
    fn look_around(&mut self) -> Flow {
        let now = self.door.now();
        let open = self.door.open().map_err(End::Away)?;
        let still = open.as_ref().map(|s| self.admitted.still(s, now));
        match still {
            Some(Err(refusal)) => Err(End::Bye(
                refusal.code,
                "the feed is not open any more",
                CloseCode::Other(if refusal.status == StatusCode::UNAUTHORIZED {
                    4401
                } else {
                    4403
                }),
            )),
            _ => {
                self.stand();
                Ok(())
            }
        }
    }

    fn stand(&mut self) {
        if let Some(seat) = &self.seat {
            seat.stand(self.order.settled(), &mut self.kinds);
        }
    }

    async fn say(&self, carrier: &mut impl Carrier, answer: &Answer<'_>) -> Flow {
        if carrier.say(answer.text()).await {
            Ok(())
        } else {
            Err(End::Broken)
        }
    }

    async fn acknowledge(&mut self, carrier: &mut impl Carrier) -> Flow {
        if failpoint::hit("feed_door.produced") {
            return Err(End::Broken);
        }
        let seq = self.order.settled();
        self.say(carrier, &Answer::Ack { seq }).await?;
        self.said = seq;
        Ok(())
    }

    async fn refuse(
        &mut self,
        carrier: &mut impl Carrier,
        seq: u64,
        kind: &str,
        refused: (&'static str, &str),
    ) -> Flow {
        let (code, detail) = refused;
        self.door.counts.refused(code, 1);
        self.kinds.of(kind).refused += 1;
        let answer = Answer::Refused {
            seq,
            code,
            detail,
            expected: None,
            want: None,
            got: None,
        };
        self.say(carrier, &answer).await
    }

    async fn take(&mut self, carrier: &mut impl Carrier, got: Got) -> Flow {
        match got {
            Got::Text(text) => match wire::read(&text) {
                Ok(Said::Frame(given)) => self.frame(carrier, given, text.len()).await,
                Ok(Said::Hello(hello)) => self.hello(carrier, hello).await,
                Err(fault) => self.fault(carrier, fault).await,
            },
            Got::TooLarge(head, bytes) => self.fault(carrier, wire::too_large(&head, bytes)).await,
            Got::NotText => {
                let fault = Fault {
                    seq: None,
                    code: "not_text",
                    detail: "a message is text".into(),
                };
                self.fault(carrier, fault).await
            }
            Got::Heard => Ok(()),
            Got::End => Err(End::Done),
            Got::Broken => Err(End::Broken),
        }
    }

    /// A message whose form is wrong: it is answered, and stands for its sequence if it was its turn.
    async fn fault(&mut self, carrier: &mut impl Carrier, fault: Fault) -> Flow {
        let seq = match fault.seq {
            _ if self.boot.is_none() => fault.seq.unwrap_or(0),
            None => self.order.unread(),
            Some(seq) => {
                if self.order.take(seq) == Turn::Its {
                    self.wait_for(seq, 0, State::Done);
                }
                seq
            }
        };
        self.refuse(carrier, seq, "", (fault.code, &fault.detail))
            .await
    }

    fn wait_for(&mut self, seq: u64, bytes: usize, state: State) {
        self.bytes += bytes;
        self.pending.push_back(Pending { seq, bytes, state });
    }

    async fn hello(&mut self, carrier: &mut impl Carrier, hello: Hello) -> Flow {
        let want = self.admitted.shard.protocol;
        if hello.protocol != want {
            return self.mismatch(carrier, hello.seq, hello.protocol).await;
        }
        // What is under way belongs to the former boot, or to the former feed.
        self.drain(carrier).await?;
        if self.order.settled() > self.said {
            self.acknowledge(carrier).await?;
        }
        self.stand();
        if self.seat.is_none() {
            let mut ending = self.feeds.ending();
            let seat = self.feeds.seat(&self.key, self.patience * 2);
            self.seat = Some(tokio::select! {
                biased;
                () = turns_true(&mut ending) => {
                    return Err(End::Bye("shutdown", "the door closes; connect again", CloseCode::Away));
                }
                seat = seat => seat,
            });
        }
        let Some(seat) = &self.seat else {
            return Err(End::Broken);
        };
        let seq = self.feeds.begin(seat, &hello.boot, hello.seq).await;
        self.order = Order::after(seq);
        self.said = seq;
        let answer = Answer::Welcome {
            protocol: want,
            boot: &hello.boot,
            seq,
            max_in_flight: MAX_IN_FLIGHT,
            max_frame_bytes: MAX_FRAME_BYTES,
        };
        let said = carrier.say(answer.text()).await;
        self.boot = Some(hello.boot);
        if said { Ok(()) } else { Err(End::Broken) }
    }

    async fn mismatch(&mut self, carrier: &mut impl Carrier, seq: u64, got: u32) -> Flow {
        let want = self.admitted.shard.protocol;
        self.door.counts.refused("protocol_mismatch", 1);
        let detail = format!("it is of protocol {got}, the shard of {want}");
        let answer = Answer::Refused {
            seq,
            code: "protocol_mismatch",
            detail: &detail,
            expected: None,
            want: Some(want),
            got: Some(got),
        };
        self.say(carrier, &answer).await
    }

    async fn frame(&mut self, carrier: &mut impl Carrier, given: Given<'_>, bytes: usize) -> Flow {
        let (seq, kind) = (given.seq, &*given.kind);
        let Some(boot) = self.boot.clone() else {
            return self
                .refuse(
                    carrier,
                    seq,
                    kind,
                    ("hello_first", "a feed begins with a hello"),
                )
                .await;
        };
        let code = match self.order.take(seq) {
            Turn::Its => None,
            Turn::Repeated => Some(("repeated", "it came before")),
            Turn::Early => Some(("out_of_sequence", "something before it is missing")),
        };
        if let Some((code, detail)) = code {
            self.door.counts.refused(code, 1);
            self.kinds.of(kind).refused += 1;
            let answer = Answer::Refused {
                seq,
                code,
                detail,
                expected: Some(self.order.next()),
                want: None,
                got: None,
            };
            return self.say(carrier, &answer).await;
        }
        if let Some(got) = given
            .protocol
            .filter(|p| *p != self.admitted.shard.protocol)
        {
            self.wait_for(seq, 0, State::Done);
            self.kinds.of(kind).refused += 1;
            return self.mismatch(carrier, seq, got).await;
        }
        let shard = &self.admitted.shard;
        let mapped = (self.door.shared.setup.feed.kinds)(&shard.module, kind, given.body.get());
        let key = match mapped {
            Mapped::No => {
                self.kinds.of(kind).unmapped += 1;
                metrics::counter!("feed_unmapped_total").increment(1);
                self.wait_for(seq, 0, State::Done);
                return Ok(());
            }
            Mapped::OfShard => String::from(&*shard.id),
            Mapped::Under(key) => key,
        };
        if key.len() > MAX_KEY_BYTES || key.contains('\0') {
            self.wait_for(seq, 0, State::Done);
            let refused = ("key_malformed", "its key is too long, or holds a NUL");
            return self.refuse(carrier, seq, kind, refused).await;
        }
        let frame = Frame {
            v: WIRE_VERSION,
            ws: shard.workspace,
            shard: String::from(&*shard.id),
            boot,
            seq,
            kind: kind.to_owned(),
            key,
            accepted_at: self.door.now(),
            replay: None,
            body: given.body.to_owned(),
        };
        let open = self.door.open().map(drop).map_err(End::Away);
        let payload = serde_json::to_vec(&frame)
            .map_err(|_| End::Away(Refusal::bad("internal", "it cannot be written")));
        let (payload, topic) = match (open, payload, &self.door.shared.setup.feed.frames) {
            (Ok(()), Ok(payload), Some(topic)) => (payload, topic.no),
            (Err(end), ..) | (_, Err(end), _) => return Err(end),
            (.., None) => return Err(End::Away(Refusal::log_away())),
        };
        if failpoint::hit("feed_door.before_produce") {
            return Err(End::Away(Refusal::log_away()));
        }
        self.kinds.of(kind).mapped += 1;
        let acknowledgement =
            self.door
                .produce(topic, Bytes::from(frame.log_key()), Bytes::from(payload));
        self.wait_for(seq, bytes, State::Log(acknowledgement, Instant::now()));
        Ok(())
    }

    /// Settles what stands first, given the log's answer, and what is ready behind it.
    async fn settle_front(
        &mut self,
        carrier: &mut impl Carrier,
        answer: Result<(), Refusal>,
    ) -> Flow {
        let Some(pending) = self.pending.pop_front() else {
            return Ok(());
        };
        self.bytes = self.bytes.saturating_sub(pending.bytes);
        match answer {
            Ok(()) => self.door.counts.accepted(1),
            // The log will never take it: its sender is told, and it is settled.
            Err(refusal) if refusal.status == StatusCode::PAYLOAD_TOO_LARGE => {
                self.refuse(carrier, pending.seq, "", (refusal.code, &refusal.detail))
                    .await?;
            }
            Err(refusal) => {
                self.order.hold();
                return Err(End::Away(refusal));
            }
        }
        self.order.settle(pending.seq);
        Ok(())
    }

    /// Settles what needs no waiting.
    async fn settle_ready(&mut self, carrier: &mut impl Carrier) -> Flow {
        loop {
            match self.pending.front_mut().map(|p| &mut p.state) {
                None => return Ok(()),
                Some(State::Done) => {
                    if let Some(pending) = self.pending.pop_front() {
                        self.order.settle(pending.seq);
                    }
                }
                Some(State::Log(..)) => {
                    let Some(answer) = front(&mut self.pending, self.patience).now_or_never()
                    else {
                        return Ok(());
                    };
                    self.settle_front(carrier, answer).await?;
                }
            }
        }
    }

    /// Waits for everything that is under way, each at most as long as the log may take.
    async fn drain(&mut self, carrier: &mut impl Carrier) -> Flow {
        loop {
            self.settle_ready(carrier).await?;
            if self.pending.is_empty() {
                return Ok(());
            }
            let answer = front(&mut self.pending, self.patience).await;
            self.settle_front(carrier, answer).await?;
        }
    }

    /// Waits for what is under way, so that the next feed of the shard begins at the right place; says why it ends; leaves.
    async fn leave(mut self, mut carrier: impl Carrier, end: End) {
        let end = match (self.drain(&mut carrier).await, end) {
            // The first failure is the reason; what comes behind it is waited for and not settled.
            (Err(End::Away(refusal)), End::Done | End::Bye(..)) => End::Away(refusal),
            (_, end) => end,
        };
        while let Some(mut pending) = self.pending.pop_front() {
            if let State::Log(acknowledgement, since) = &mut pending.state {
                let _ = tokio::time::timeout_at(*since + self.patience, acknowledgement).await;
            }
        }
        let seq = self.order.settled();
        let gone = matches!(end, End::Broken);
        if !gone && seq > self.said {
            let _ = self.acknowledge(&mut carrier).await;
        }
        self.stand();
        // From here on another may have the place.
        self.seat = None;
        let (answer, code, reason) = match &end {
            End::Broken => return carrier.close(CloseCode::Abnormal, "").await,
            End::Done => (
                Answer::Bye {
                    seq,
                    code: "end",
                    detail: "everything that was sent is settled",
                },
                CloseCode::Normal,
                "end",
            ),
            End::Away(refusal) => {
                self.door.counts.refused(refusal.code, 1);
                let unavailable = Answer::Unavailable {
                    seq,
                    code: refusal.code,
                    detail: &refusal.detail,
                    retry_after_s: RETRY_AFTER_S,
                };
                (unavailable, CloseCode::Again, refusal.code)
            }
            End::Bye(code, detail, close) => (Answer::Bye { seq, code, detail }, *close, *code),
        };
        if carrier.say(answer.text()).await {
            carrier.close(code, reason).await;
        }
    }
}

#[cfg(test)]
mod tests;
