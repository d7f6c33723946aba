//! Whom a row goes to, whether it still may, and what became of it.

use super::client::Inboxes;
use super::settings::Inapp;
use crate::delivery::channel::{Answer, Channel, Leased, Sent, Target, Traits, Unready, Verdict};
use crate::delivery::destination::Destination;
use crate::delivery::recheck::{self, Recheck};
use crate::delivery::schedule;
use crate::runtime::clock::SharedClock;
use crate::runtime::session::{Connect, Session};
use futures::future::LocalBoxFuture;
use millrace_schemas::notification::Notification;
use millrace_schemas::time::Micros;
use std::rc::Rc;
use std::time::Duration;

/// Its name, as in `outbox.channel`.
pub const NAME: &str = "inapp";

/// The channel `inapp`.
pub struct InappChannel {
    traits: Traits,
    target: Rc<InappTarget>,
}

impl InappChannel {
    /// Over connections of its own.
    #[must_use]
    pub fn new(settings: &Inapp, clock: SharedClock, connect: Connect) -> InappChannel {
        InappChannel {
            traits: Traits {
                idempotent: true,
                batch: settings.batch.max(1),
                concurrency: 2,
                max_attempts: 1_000,
                timeout: Duration::from_millis(settings.timeout_ms),
            },
            target: Rc::new(InappTarget {
                inboxes: Inboxes::new(connect.clone()),
                recheck: Recheck::new(millrace_schemas::channel::Channel::Inapp, connect),
                clock,
            }),
        }
    }
}

impl Channel for InappChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn waits_for_a_destination(&self) -> bool {
        true
    }

    fn backoff(&self, attempt: u16) -> Duration {
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(60));
        schedule::exponential(first, attempt, most)
    }

    fn prepare<'a>(
        &'a self,
        _session: &'a Session,
        _destination: &'a Destination,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>> {
        let target = Rc::clone(&self.target) as Rc<dyn Target>;
        Box::pin(std::future::ready(Ok(target)))
    }
}

struct InappTarget {
    inboxes: Inboxes,
    recheck: Rc<Recheck>,
    clock: SharedClock,
}

impl Target for InappTarget {
    fn admit(&self, _message: &Leased, _wall: Micros) -> Option<Answer> {
        None
    }

    fn ask<'a>(
        &'a self,
        messages: &'a [Leased],
        wall: Micros,
    ) -> LocalBoxFuture<'a, Result<Vec<Option<Answer>>, String>> {
        Box::pin(recheck::ask_all(&self.recheck, messages, wall))
    }

    fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent> {
        Box::pin(async move {
            let read = |message: Leased| {
                let notice: Notification = recheck::payload(&message).unwrap_or_default();
                (message, notice)
            };
            let all: Vec<(Leased, Notification)> = messages.into_iter().map(read).collect();
            let wall = self.clock.wall();
            let (answers, dead) = match self.inboxes.write(&all, wall).await {
                Ok(ours) => {
                    let answers = all.iter().map(|(message, _)| {
                        let code = match ours.contains(&message.id) {
                            true => "written",
                            // Another message told the same event: nothing was written a second time.
                            false => "duplicate",
                        };
                        Answer::new(Verdict::Delivered, code)
                    });
                    (answers.collect(), false)
                }
                Err(error) => {
                    let again = Verdict::RetryAt {
                        after: None,
                        unsure: false,
                    };
                    let answer = Answer::new(again, "store").said(error);
                    (vec![answer; all.len()], true)
                }
            };
            Sent { answers, dead }
        })
    }
}
