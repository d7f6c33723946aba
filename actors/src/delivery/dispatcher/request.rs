//! One request: admitted at the last moment, sent within its time, and what its answers mean for the messages.

use super::finish::Finished;
use super::lane::Held;
use crate::delivery::channel::{Answer, Channel, Leased, Sent, Target, Traits, Verdict};
use crate::delivery::destination::Destination;
use crate::delivery::lease::{Attempt, End, Ended};
use crate::delivery::schedule;
use crate::runtime::clock::SharedClock;
use crate::runtime::failpoint;
use futures::FutureExt;
use millrace_schemas::time::Micros;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long the store may take to be asked. Less than what a lease has left beyond a request's own time.
const ASK_AT_MOST: Duration = Duration::from_secs(5);
/// How long a lane rests when the store could not be asked about its messages.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long after the channel's own timeout a request is given up for it.
const GRACE: Duration = Duration::from_secs(2);

/// What an answer means for a message, and the result's name in the send log.
#[must_use]
pub fn end_of(
    answer: &Answer,
    attempt: u16,
    traits: &Traits,
    backoff: Duration,
    wall: Micros,
    dice: f64,
) -> (End, &'static str) {
    let fin = |status: &'static str| End::Final(status, Some(answer.code.clone()));
    match &answer.verdict {
        Verdict::Delivered => (End::Final("sent", None), "delivered"),
        Verdict::Rejected => (fin("failed"), "rejected"),
        Verdict::Bounced => (fin("bounced"), "bounced"),
        Verdict::Suppressed => (fin("suppressed"), "suppressed"),
        Verdict::Cancelled => (fin("cancelled"), "cancelled"),
        Verdict::PauseDestination => (End::Back, "paused"),
        // It may have arrived and would be taken for a second one.
        Verdict::RetryAt { unsure: true, .. } if !traits.idempotent => (fin("unknown"), "unknown"),
        Verdict::RetryAt { .. } if attempt >= traits.max_attempts => (fin("failed"), "rejected"),
        Verdict::RetryAt { after, unsure } => {
            let pause = schedule::pause(backoff, *after, dice);
            let micros = i64::try_from(pause.as_micros()).unwrap_or(i64::MAX);
            let again = End::Again {
                due_at: Micros(wall.0.saturating_add(micros)),
                unsure: *unsure,
            };
            (again, "retry")
        }
    }
}

/// What a request leaves behind.
pub(super) struct Done {
    pub finished: Finished,
    /// Whether the destination seemed dead; none if nothing was sent.
    pub dead: Option<bool>,
    /// It is being paused.
    pub pause: bool,
    /// It asks to be left alone for so long.
    pub rest: Option<Duration>,
}

/// Runs one request.
pub(super) async fn run(
    channel: Rc<dyn Channel>,
    clock: SharedClock,
    destination: Destination,
    target: Rc<dyn Target>,
    held: Vec<Held>,
) -> Done {
    let traits = channel.traits();
    let begun = Instant::now();
    let wall = clock.wall();
    let mut settling = Settling {
        channel: &*channel,
        destination: &destination,
        finished: Finished::default(),
        results: Vec::new(),
        pause: false,
        rest: None,
    };
    let mut asked: Vec<(Held, Leased)> = Vec::with_capacity(held.len());
    for one in held {
        if begun >= one.send_before {
            settling.back(&one);
        } else if let Some(answer) = target.admit(&one.message, wall) {
            settling.answered(&one, &answer, wall, Duration::ZERO, false);
        } else {
            let mut bare = one;
            let payload = std::mem::take(&mut bare.message.payload);
            let message = Leased {
                payload,
                ..bare.message.clone()
            };
            asked.push((bare, message));
        }
    }
    let asked = may_go(&*target, asked, &mut settling, wall).await;
    let mut dead = None;
    if !asked.is_empty() {
        let (held, messages): (Vec<Held>, Vec<Leased>) = asked.into_iter().unzip();
        let n = messages.len();
        let sent = send(&*target, messages, traits.timeout + GRACE, n).await;
        let _ = failpoint::hit("delivery.answered");
        let wall = clock.wall();
        let took = begun.elapsed();
        for (one, answer) in held.iter().zip(&sent.answers) {
            settling.answered(one, answer, wall, took, true);
        }
        dead = Some(sent.dead);
        settling.finished.note = Some((target, sent));
    }
    settling.count();
    Done {
        pause: settling.pause,
        rest: settling.rest,
        finished: settling.finished,
        dead,
    }
}

/// Those of the messages that the store lets go. Where it cannot be asked, none does, and the lane rests a while.
async fn may_go(
    target: &dyn Target,
    asked: Vec<(Held, Leased)>,
    settling: &mut Settling<'_>,
    wall: Micros,
) -> Vec<(Held, Leased)> {
    if asked.is_empty() {
        return asked;
    }
    let (held, messages): (Vec<Held>, Vec<Leased>) = asked.into_iter().unzip();
    let asking = AssertUnwindSafe(target.ask(&messages, wall)).catch_unwind();
    let answers = match tokio::time::timeout(ASK_AT_MOST, asking).await {
        Ok(Ok(Ok(answers))) if answers.len() == messages.len() => answers,
        outcome => {
            if let Ok(Ok(Err(error))) = outcome {
                tracing::debug!(%error, "messages go back: the store cannot be asked about them");
            } else {
                tracing::warn!("messages go back: no answer of the store about them");
            }
            for one in &held {
                settling.back(one);
            }
            settling.rest = Some(ASK_AGAIN);
            return Vec::new();
        }
    };
    let all = held.into_iter().zip(messages).zip(answers);
    all.filter_map(|((one, message), answer)| match answer {
        None => Some((one, message)),
        Some(answer) => {
            settling.answered(&one, &answer, wall, Duration::ZERO, false);
            None
        }
    })
    .collect()
}

async fn send(target: &dyn Target, messages: Vec<Leased>, limit: Duration, n: usize) -> Sent {
    let all = |code: &'static str| {
        let answer = Answer::new(
            Verdict::RetryAt {
                after: None,
                unsure: true,
            },
            code,
        );
        Sent {
            answers: vec![answer; n],
            dead: true,
        }
    };
    let sending = AssertUnwindSafe(target.send(messages)).catch_unwind();
    match tokio::time::timeout(limit, sending).await {
        Ok(Ok(sent)) if sent.answers.len() == n => sent,
        Ok(Ok(sent)) => {
            tracing::error!(
                answers = sent.answers.len(),
                messages = n,
                "a channel lost count"
            );
            all("miscounted")
        }
        Ok(Err(_)) => {
            tracing::error!("a channel panicked while sending");
            all("panicked")
        }
        Err(_) => all("timeout"),
    }
}

struct Settling<'a> {
    channel: &'a dyn Channel,
    destination: &'a Destination,
    finished: Finished,
    /// How many messages came to each result: a request has few kinds of them.
    results: Vec<(&'static str, u64)>,
    pause: bool,
    rest: Option<Duration>,
}

impl Settling<'_> {
    fn count(&self) {
        for (result, n) in &self.results {
            metrics::counter!("sends_total", "channel" => self.channel.name(), "result" => *result)
                .increment(*n);
        }
    }

    fn back(&mut self, one: &Held) {
        self.finished
            .ended
            .push(ended(one, self.destination.no, End::Back));
    }

    fn answered(&mut self, one: &Held, answer: &Answer, wall: Micros, took: Duration, sent: bool) {
        let traits = self.channel.traits();
        let attempt = one.message.attempt;
        let backoff = self.channel.backoff(attempt);
        let (end, result) = end_of(answer, attempt, &traits, backoff, wall, dice(&one.message));
        // A receiver that was asked speaks for its destination, where all of it is one receiver; what was postponed unsent says
        // nothing of other messages.
        if sent
            && self.channel.rests_as_a_whole()
            && let Verdict::RetryAt {
                after: Some(after), ..
            } = answer.verdict
        {
            let within = schedule::within_bounds(after);
            self.rest = Some(self.rest.map_or(within, |r| r.max(within)));
        }
        if answer.verdict == Verdict::PauseDestination {
            self.pause = true;
            self.finished.pause.get_or_insert_with(|| {
                let reason = answer.excerpt.clone().unwrap_or_default();
                let code = answer.code.clone().into_owned();
                (self.destination.no, code, reason, took)
            });
        }
        match self.results.iter_mut().find(|(r, _)| *r == result) {
            Some((_, n)) => *n += 1,
            None => self.results.push((result, 1)),
        }
        self.finished.attempts.push(Attempt {
            at: wall,
            id: one.message.id,
            workspace: one.message.workspace,
            channel: self.channel.name(),
            destination: self.destination.no,
            attempt: if sent { attempt } else { 0 },
            result,
            code: answer.code.clone(),
            took,
            target: answer.target.clone(),
            excerpt: answer.excerpt.clone(),
        });
        self.finished
            .ended
            .push(ended(one, self.destination.no, end));
    }
}

/// A message's end under its token.
pub(super) fn ended(one: &Held, destination: i32, end: End) -> Ended {
    // An attempt that does not count is not told as one.
    let attempts = match end {
        End::Back => one.message.attempt.saturating_sub(1),
        _ => one.message.attempt,
    };
    Ended {
        id: one.message.id,
        created_at: one.message.created_at,
        due_at: one.message.due_at,
        destination,
        token: one.token,
        attempts,
        end,
    }
}

/// Spread over 0..1 by the message and its attempt: jitter that needs no source of randomness.
fn dice(message: &Leased) -> f64 {
    let low = message.id.as_u128() as u32;
    let mixed = low
        .wrapping_add(u32::from(message.attempt))
        .wrapping_mul(0x9e37_79b1);
    f64::from(mixed) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::channel::Unready;
    use crate::runtime::clock::ManualClock;
    use crate::runtime::session::Session;
    use futures::future::LocalBoxFuture;
    use uuid::Uuid;

    /// A channel whose messages come a minute too early.
    struct Early;

    impl Channel for Early {
        fn name(&self) -> &'static str {
            "early"
        }

        fn traits(&self) -> Traits {
            traits(true)
        }

        fn backoff(&self, _: u16) -> Duration {
            Duration::from_secs(1)
        }

        fn prepare<'a>(
            &'a self,
            _: &'a Session,
            _: &'a Destination,
        ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>> {
            Box::pin(std::future::ready(Err(Unready::Cancel("unused"))))
        }
    }

    impl Target for Early {
        fn admit(&self, _: &Leased, _: Micros) -> Option<Answer> {
            let after = Some(Duration::from_secs(60));
            let unsure = false;
            Some(Answer::new(Verdict::RetryAt { after, unsure }, "early"))
        }

        fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent> {
            let answers = vec![Answer::new(Verdict::Delivered, "200"); messages.len()];
            let dead = false;
            Box::pin(std::future::ready(Sent { answers, dead }))
        }
    }

    #[tokio::test]
    async fn a_message_that_is_too_early_does_not_stop_its_destination() {
        let message = Leased {
            id: Uuid::from_u128(1),
            created_at: Micros(0),
            due_at: Micros(0),
            attempt: 1,
            unsure_since: None,
            workspace: 1,
            payload: "{}".to_owned(),
        };
        let held = Held {
            message,
            token: Uuid::from_u128(2),
            send_before: Instant::now() + Duration::from_secs(60),
        };
        let destination = Destination {
            no: 1,
            workspace: 1,
            channel: "early".to_owned(),
            reference: "x".to_owned(),
        };
        let clock = ManualClock::at(Micros(0));
        let done = run(
            Rc::new(Early),
            clock,
            destination,
            Rc::new(Early),
            vec![held],
        )
        .await;
        let ends: Vec<&End> = done.finished.ended.iter().map(|e| &e.end).collect();
        assert!(
            matches!(ends[..], [End::Again { due_at, unsure: false }] if due_at.0 >= 60_000_000),
            "{ends:?}"
        );
        assert_eq!(done.rest, None);
    }

    fn traits(idempotent: bool) -> Traits {
        Traits {
            idempotent,
            batch: 1,
            concurrency: 1,
            max_attempts: 3,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn answers_end_messages_as_their_channel_is() {
        let backoff = Duration::from_secs(10);
        let end = |verdict, attempt, idempotent| {
            let answer = Answer::new(verdict, "code");
            end_of(
                &answer,
                attempt,
                &traits(idempotent),
                backoff,
                Micros(0),
                0.0,
            )
        };
        let why = || Some("code".into());
        let retry = |after, unsure| Verdict::RetryAt { after, unsure };
        let again = |secs: i64, unsure| End::Again {
            due_at: Micros(secs * 1_000_000),
            unsure,
        };
        assert_eq!(
            end(Verdict::Delivered, 1, true),
            (End::Final("sent", None), "delivered")
        );
        assert_eq!(end(retry(None, true), 1, true), (again(10, true), "retry"));
        let asked = Some(Duration::from_secs(60));
        assert_eq!(
            end(retry(asked, false), 2, true),
            (again(60, false), "retry")
        );
        assert_eq!(
            end(retry(None, false), 3, true),
            (End::Final("failed", why()), "rejected")
        );
        // A second one would be a second one: unknown is the end, a plain refusal is not.
        assert_eq!(
            end(retry(None, true), 1, false),
            (End::Final("unknown", why()), "unknown")
        );
        assert_eq!(
            end(retry(None, false), 1, false),
            (again(10, false), "retry")
        );
        assert_eq!(
            end(Verdict::PauseDestination, 3, true),
            (End::Back, "paused")
        );
        assert_eq!(
            end(Verdict::Suppressed, 1, true),
            (End::Final("suppressed", why()), "suppressed")
        );
    }
}
