//! The channel: what may still go, and how many events of one request are told apart when Meta refuses all for one.

use super::answer::Meaning;
use super::client::{Client, ClientError, Reply};
use super::event::{FUTURE_SKEW_SECS, refused};
use super::settings::{self, Meta, Pixel, code};
use crate::delivery::channel::{Answer, Channel, Leased, Sent, Target, Traits, Unready, Verdict};
use crate::delivery::destination::Destination;
use crate::delivery::schedule;
use crate::runtime::clock::SharedClock;
use crate::runtime::session::Session;
use crate::sealing::Seals;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use millrace_schemas::time::Micros;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The channel's name.
pub const NAME: &str = "meta";
/// Attempts of one event at most.
const MAX_ATTEMPTS: u16 = 8;
/// Older events fail the whole request.
const OLDEST_SECS: i64 = 7 * 86_400;
/// How long Meta knows an event id again: what may have arrived longer ago would be counted twice.
const DEDUP_SECS: i64 = 48 * 3_600;
/// Parts of one refused request that are tried at once.
const PARTS_AT_ONCE: usize = 4;
/// What one request and the parts that it is taken into may take, in timeouts.
const TIMEOUTS: u32 = 3;
/// The event is too old; also said when it would be before the answer comes.
pub const EVENT_TOO_OLD: &str = "event_too_old";
/// It may have arrived, and Meta would no longer know it again: ended `failed` rather than counted twice.
pub const DEDUP_WINDOW_PASSED: &str = "dedup_window_passed";
/// It was refused together with others, and the time was up before it was clear which of them was bad.
pub const PARTS_LEFT: &str = "refused_with_others";
/// The frozen payload cannot be read.
pub const PAYLOAD_UNREADABLE: &str = "payload_unreadable";

/// The channel `meta`.
pub struct MetaChannel {
    settings: Meta,
    seals: Arc<Seals>,
    client: Client,
}

impl MetaChannel {
    /// As the settings say.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(
        settings: &Meta,
        seals: Arc<Seals>,
        clock: SharedClock,
    ) -> Result<MetaChannel, ClientError> {
        Ok(MetaChannel {
            client: Client::new(settings, clock)?,
            settings: settings.clone(),
            seals,
        })
    }
}

impl Channel for MetaChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traits(&self) -> Traits {
        Traits {
            idempotent: true,
            batch: self.settings.batch.clamp(1, 1_000),
            concurrency: self.settings.concurrency.max(1),
            max_attempts: MAX_ATTEMPTS,
            timeout: self.settings.timeout() * TIMEOUTS,
        }
    }

    fn backoff(&self, attempt: u16) -> Duration {
        let of = |ms: u64| Duration::from_millis(ms.max(1));
        let settings = &self.settings;
        schedule::exponential(
            of(settings.retry_first_ms),
            attempt,
            of(settings.retry_most_ms),
        )
    }

    fn prepare<'a>(
        &'a self,
        session: &'a Session,
        destination: &'a Destination,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>> {
        Box::pin(async move {
            let pixel = settings::current(session, &self.seals, destination).await?;
            let target: Rc<dyn Target> = Rc::new(Dataset {
                pixel,
                client: self.client.clone(),
                reference: destination.reference.clone(),
            });
            Ok(target)
        })
    }
}

/// A pixel's dataset, as of now.
struct Dataset {
    pixel: Pixel,
    client: Client,
    reference: String,
}

/// A payload as `event::freeze` left it.
#[derive(Deserialize)]
struct Frozen<'a> {
    #[serde(borrow)]
    dataset: Cow<'a, str>,
    #[serde(borrow)]
    event: &'a RawValue,
}

#[derive(Deserialize)]
struct When {
    event_time: i64,
}

fn read(payload: &str) -> Option<(Frozen<'_>, i64)> {
    let frozen: Frozen<'_> = serde_json::from_str(payload).ok()?;
    let when: When = serde_json::from_str(frozen.event.get()).ok()?;
    Some((frozen, when.event_time))
}

impl Target for Dataset {
    fn admit(&self, message: &Leased, wall: Micros) -> Option<Answer> {
        let end = |verdict, code: &'static str| Some(Answer::new(verdict, code));
        let Some((frozen, event_time)) = read(&message.payload) else {
            return end(Verdict::Rejected, PAYLOAD_UNREADABLE);
        };
        if frozen.dataset != self.pixel.dataset {
            return end(Verdict::Cancelled, code::REPOINTED);
        }
        let now = wall.0.div_euclid(1_000_000);
        // What is sent now must not be too old when it is answered.
        let margin = i64::try_from((self.client.timeout() * TIMEOUTS).as_secs()).unwrap_or(0) + 1;
        if event_time <= now - OLDEST_SECS + margin {
            return end(Verdict::Rejected, EVENT_TOO_OLD);
        }
        // The clock that booked it runs ahead of this one: it waits until Meta would take it, and is not lost to a clock.
        let early = event_time.saturating_sub(now + FUTURE_SKEW_SECS);
        if let Some(after) = u64::try_from(early).ok().filter(|s| *s > 0) {
            let after = Some(Duration::from_secs(after));
            let unsure = false;
            return end(Verdict::RetryAt { after, unsure }, refused::FUTURE);
        }
        if message
            .unsure_since
            .is_some_and(|since| since.plus_secs(DEDUP_SECS - margin) <= wall)
        {
            return end(Verdict::Rejected, DEDUP_WINDOW_PASSED);
        }
        None
    }

    fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent> {
        Box::pin(async move {
            let events: Vec<Option<&RawValue>> = messages
                .iter()
                .map(|m| serde_json::from_str::<Frozen<'_>>(&m.payload).ok())
                .map(|f| f.map(|f| f.event))
                .collect();
            self.deliver(&events).await
        })
    }
}

/// The state of one sending.
struct Sending {
    answers: Vec<Option<Answer>>,
    /// Nothing more is sent: what is left is answered like this.
    halted: Option<Answer>,
    /// Somebody answered.
    alive: bool,
    dead: bool,
}

impl Sending {
    fn all(&mut self, part: &[usize], answer: &Answer) {
        for at in part {
            if let Some(slot) = self.answers.get_mut(*at) {
                *slot = Some(answer.clone());
            }
        }
    }
}

impl Dataset {
    /// Sends all in one request; what is refused for one bad event is sent again without it, or in halves until it is found.
    async fn deliver(&self, events: &[Option<&RawValue>]) -> Sent {
        let until = Instant::now() + self.client.timeout() * TIMEOUTS;
        let mut sending = Sending {
            answers: vec![None; events.len()],
            halted: None,
            alive: false,
            dead: false,
        };
        let whole: Vec<usize> = (0..events.len())
            .filter(|at| matches!(events.get(*at), Some(Some(_))))
            .collect();
        let mut waiting = vec![whole];
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < PARTS_AT_ONCE
                && let Some(part) = waiting.pop()
            {
                if part.is_empty() {
                    continue;
                }
                if let Some(answer) = sending.halted.clone() {
                    sending.all(&part, &answer);
                    continue;
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    sending.all(&part, &self.answer(retry(None, false), PARTS_LEFT, None));
                    continue;
                }
                let raw: Vec<&RawValue> = part
                    .iter()
                    .filter_map(|at| events.get(*at).copied().flatten())
                    .collect();
                under_way.push(async move {
                    let reply = self.client.post(&self.pixel, &raw, left).await;
                    (part, reply)
                });
            }
            let Some((part, reply)) = under_way.next().await else {
                break;
            };
            waiting.extend(self.settle(&mut sending, part, reply));
        }
        let unread = self.answer(Verdict::Rejected, PAYLOAD_UNREADABLE, None);
        Sent {
            answers: sending
                .answers
                .into_iter()
                .map(|a| a.unwrap_or_else(|| unread.clone()))
                .collect(),
            dead: sending.dead && !sending.alive,
        }
    }

    /// What an answer means for the events of its request; what is left of them to be sent again.
    fn settle(&self, sending: &mut Sending, part: Vec<usize>, reply: Reply) -> Vec<Vec<usize>> {
        let excerpt = reply.excerpt;
        match reply.meaning {
            Meaning::Again {
                code,
                after,
                unsure,
                dead,
            } => {
                sending.dead |= dead;
                sending.alive |= !dead;
                let answer = self.answer(retry(after, unsure), code, excerpt);
                sending.all(&part, &answer);
                // What was not sent with it cannot have arrived with it.
                let mut rest = answer;
                rest.verdict = retry(after, false);
                sending.halted.get_or_insert(rest);
                return Vec::new();
            }
            other => {
                sending.alive = true;
                match other {
                    Meaning::Received(n) => {
                        self.compare(n, part.len());
                        sending.all(&part, &self.answer(Verdict::Delivered, "ok", None));
                    }
                    Meaning::Pause(code) => {
                        let answer = self.answer(Verdict::PauseDestination, code, excerpt);
                        sending.all(&part, &answer);
                        sending.halted = Some(answer);
                    }
                    Meaning::Refused(code) => {
                        sending.all(&part, &self.answer(Verdict::Rejected, code, excerpt));
                    }
                    Meaning::OneIsBad { code, index } => {
                        return self.take_apart(sending, part, index, code, excerpt);
                    }
                    Meaning::Again { .. } => {}
                }
            }
        }
        Vec::new()
    }

    fn take_apart(
        &self,
        sending: &mut Sending,
        mut part: Vec<usize>,
        index: Option<usize>,
        code: Cow<'static, str>,
        excerpt: Option<String>,
    ) -> Vec<Vec<usize>> {
        let bad = match index {
            Some(at) if at < part.len() => Some(part.remove(at)),
            _ if part.len() == 1 => part.pop(),
            _ => None,
        };
        if let Some(at) = bad {
            sending.all(&[at], &self.answer(Verdict::Rejected, code, excerpt));
            return vec![part];
        }
        let half = part.split_off(part.len() / 2);
        vec![half, part]
    }

    /// A count that is not ours is an alarm, and no reason to send anything again: nobody says which one is missing.
    fn compare(&self, received: u64, sent: usize) {
        if u64::try_from(sent).ok() != Some(received) {
            metrics::counter!("meta_events_received_mismatch_total").increment(1);
            tracing::warn!(
                pixel = self.reference,
                received,
                sent,
                "Meta counts other events than it was sent"
            );
        }
    }

    fn answer(
        &self,
        verdict: Verdict,
        code: impl Into<Cow<'static, str>>,
        excerpt: Option<String>,
    ) -> Answer {
        let mut answer = Answer::new(verdict, code);
        if let Some(text) = excerpt {
            answer = answer.said(text);
        }
        answer.target = Some(self.pixel.dataset.clone());
        answer
    }
}

fn retry(after: Option<Duration>, unsure: bool) -> Verdict {
    Verdict::RetryAt { after, unsure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;

    #[test]
    fn another_count_is_an_alarm() {
        let clock = Arc::new(crate::runtime::clock::SystemClock);
        let dataset = Dataset {
            pixel: Pixel {
                dataset: "1".into(),
                test_event_code: None,
                token: "t".into(),
                app_secret: None,
            },
            client: Client::new(&Meta::default(), clock).unwrap(),
            reference: "px_1".into(),
        };
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            dataset.compare(3, 3);
            assert_eq!(handle.render(), "");
            dataset.compare(2, 3);
            dataset.compare(0, 3);
        });
        let text = handle.render();
        assert!(
            text.contains("meta_events_received_mismatch_total 2"),
            "{text}"
        );
    }
}
