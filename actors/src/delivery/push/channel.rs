//! Whom a push goes to, whether it still may, and what its endpoints leave in the store.

use super::answered::{self, Answered, Devices};
use super::client::{Connection, Woken, body};
use super::settings::{self, Endpoint, Origins, Push};
use crate::delivery::address_guard::AddressGuard;
use crate::delivery::channel::{Answer, Channel, Leased, Sent, Target, Traits, Unready, Verdict};
use crate::delivery::destination::Destination;
use crate::delivery::email::settings::unconfigured;
use crate::delivery::outbound::ClientError;
use crate::delivery::recheck::{self, Recheck};
use crate::delivery::schedule;
use crate::runtime::clock::SharedClock;
use crate::runtime::session::{Connect, Session, describe};
use futures::future::LocalBoxFuture;
use millrace_schemas::channel::Channel as Told;
use millrace_schemas::notification::Notification;
use millrace_schemas::time::Micros;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// Its name, as in `outbox.channel`.
pub const NAME: &str = "push";

/// Attempts of one message at most.
const ATTEMPTS: u16 = 6;

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// A setting cannot be read.
    #[error(transparent)]
    Origin(#[from] settings::BadOrigin),
    /// There is no client.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// The channel `push`.
pub struct PushChannel {
    traits: Traits,
    own: Rc<Own>,
}

struct Own {
    connection: Connection,
    recheck: Rc<Recheck>,
    connect: Connect,
    session: RefCell<Option<Rc<Session>>>,
    /// Messages that are just being sent.
    ready: RefCell<HashMap<Uuid, Ready>>,
    /// Endpoints that said they are gone, until the store knows: id and URL.
    gone: RefCell<Vec<(String, String)>>,
}

/// What a message needs to be sent.
#[derive(Default)]
struct Ready {
    /// Whom to wake.
    endpoints: Vec<Endpoint>,
    /// What to say.
    body: String,
    /// Devices that earlier attempts settled.
    before: Devices,
}

impl PushChannel {
    /// With a client of its own.
    ///
    /// # Errors
    /// [`PushError`].
    pub fn new(
        settings: &Push,
        guard: AddressGuard,
        clock: SharedClock,
        connect: Connect,
    ) -> Result<PushChannel, PushError> {
        let origins = Origins::new(&settings.origins)?;
        Ok(PushChannel {
            traits: Traits {
                idempotent: true,
                batch: 1,
                concurrency: settings.concurrency.max(1),
                max_attempts: ATTEMPTS,
                timeout: Duration::from_millis(settings.timeout_ms),
            },
            own: Rc::new(Own {
                connection: Connection::new(settings, origins, guard, clock)?,
                recheck: Recheck::new(Told::Push, connect.clone()),
                connect,
                session: RefCell::new(None),
                ready: RefCell::default(),
                gone: RefCell::default(),
            }),
        })
    }
}

impl Channel for PushChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn waits_for_a_destination(&self) -> bool {
        true
    }

    /// Whoever is asked to wait is one device's server: the devices of others are woken meanwhile.
    fn rests_as_a_whole(&self) -> bool {
        false
    }

    fn backoff(&self, attempt: u16) -> Duration {
        let (first, most) = (Duration::from_secs(10), Duration::from_secs(1_800));
        schedule::exponential(first, attempt, most)
    }

    fn prepare<'a>(
        &'a self,
        _session: &'a Session,
        _destination: &'a Destination,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>> {
        let ready = match self.own.connection.origins.is_empty() {
            true => Err(unconfigured("delivery.push.origins lists none")),
            false => Ok(Rc::new(PushTarget(Rc::clone(&self.own))) as Rc<dyn Target>),
        };
        Box::pin(std::future::ready(ready))
    }
}

struct PushTarget(Rc<Own>);

impl Target for PushTarget {
    fn admit(&self, _message: &Leased, _wall: Micros) -> Option<Answer> {
        None
    }

    fn ask<'a>(
        &'a self,
        messages: &'a [Leased],
        wall: Micros,
    ) -> LocalBoxFuture<'a, Result<Vec<Option<Answer>>, String>> {
        Box::pin(async move {
            let asked = recheck::ask_standings(&self.0.recheck, messages).await?;
            let mut answers = Vec::with_capacity(messages.len());
            for (message, asked) in messages.iter().zip(asked) {
                answers.push(match asked {
                    Err(answer) => Some(answer),
                    Ok((notice, standing)) => {
                        match recheck::refuse(Told::Push, &notice, &standing, wall) {
                            Some(answer) => Some(answer),
                            None => {
                                self.furnish(message, &notice, standing.notification)
                                    .await?
                            }
                        }
                    }
                });
            }
            Ok(answers)
        })
    }

    fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(messages.len());
            for message in messages {
                let ready = self.0.ready.borrow_mut().remove(&message.id);
                let Ready {
                    endpoints,
                    body,
                    before,
                } = ready.unwrap_or_default();
                let waking = endpoints.iter().map(|e| self.0.connection.wake(e, &body));
                let woken = futures::future::join_all(waking).await;
                let mut devices = Devices::new();
                for (endpoint, woken) in endpoints.iter().zip(&woken) {
                    if let Some(took) = settled(woken) {
                        devices.insert(endpoint.id.clone(), took);
                    }
                    if matches!(woken, Woken::Gone(_)) {
                        let gone = (endpoint.id.clone(), endpoint.url.clone());
                        self.0.gone.borrow_mut().push(gone);
                    }
                }
                let mut answer = sum_up(woken, &before, message.attempt >= ATTEMPTS);
                if matches!(answer.verdict, Verdict::RetryAt { .. }) && !devices.is_empty() {
                    answer.answered = Some(Box::new(Answered {
                        message: message.id,
                        created_at: message.created_at,
                        devices,
                    }));
                }
                answers.push(answer);
            }
            // Endpoints of many servers stand behind one destination: none of them speaks for all.
            Sent {
                answers,
                dead: false,
            }
        })
    }

    fn note<'a>(
        &'a self,
        session: &'a Session,
        sent: &'a Sent,
    ) -> LocalBoxFuture<'a, Result<(), tokio_postgres::Error>> {
        Box::pin(async move {
            for answered in sent.answers.iter().filter_map(|a| a.answered.as_deref()) {
                answered::remember(session, answered).await?;
            }
            // Kept until the transaction is known to be written: removing what is removed does nothing.
            let gone: Vec<(String, String)> = self.0.gone.borrow().clone();
            if gone.is_empty() {
                return Ok(());
            }
            let removed = settings::remove(session, &gone).await?;
            metrics::counter!("push_endpoints_removed_total").increment(removed);
            // One whose transaction is rolled back answers the same the next time.
            self.0.gone.borrow_mut().retain(|one| !gone.contains(one));
            Ok(())
        })
    }
}

impl PushTarget {
    /// Reads a user's endpoints, and makes ready what to say to them.
    async fn furnish(
        &self,
        message: &Leased,
        notice: &Notification,
        notification: Option<i64>,
    ) -> Result<Option<Answer>, String> {
        let live = self.session().await?;
        let found = settings::endpoints(&live, &[message.workspace], &[&notice.user]).await;
        let mut endpoints = found.map_err(|e| describe(&e))?;
        let before = match message.attempt {
            0 | 1 => Devices::new(),
            _ => answered::recall(&live, message.id, message.created_at)
                .await
                .map_err(|e| describe(&e))?,
        };
        endpoints.retain(|endpoint| !before.contains_key(&endpoint.id));
        // Where others were settled before, what came of them is the message's end.
        if endpoints.is_empty() && before.is_empty() {
            return Ok(Some(Answer::new(Verdict::Suppressed, "no_endpoint")));
        }
        let stream = notice.stream.as_deref().unwrap_or(&notice.trigger);
        let body = body(stream, notification);
        let ready = Ready {
            endpoints,
            body,
            before,
        };
        self.0.ready.borrow_mut().insert(message.id, ready);
        Ok(None)
    }

    async fn session(&self) -> Result<Rc<Session>, String> {
        let known = self.0.session.borrow().clone();
        if let Some(session) = known.filter(|s| !s.client().is_closed()) {
            return Ok(session);
        }
        let fresh = Rc::new(Session::new((self.0.connect)().await?));
        self.0.session.replace(Some(Rc::clone(&fresh)));
        Ok(fresh)
    }
}

/// What is remembered of a device for the next attempt of its message: whether it took it, or refused for good. Not of one that is
/// gone, which is removed, nor of one that was never asked.
fn settled(woken: &Woken) -> Option<bool> {
    match woken {
        Woken::Yes(_) => Some(true),
        Woken::Never(answer) if answer.verdict == Verdict::Rejected => Some(false),
        Woken::Never(_) | Woken::Gone(_) | Woken::Later(_) => None,
    }
}

/// What came of a message out of what came of its endpoints, now and at earlier attempts (`before`): while one may be woken later
/// it is tried again, unless this is its `last` attempt; else one that was woken is enough.
///
/// The next attempt wakes only those that have not settled it. A device may still be woken twice: when the sender dies, or loses
/// its lease, between the push and the transaction that says so, when its answer was lost, or when a person releases the message.
/// Nothing is sent by which a push server would make one of the two (RFC 8030's `Topic` is not a part of what UnifiedPush and ntfy
/// promise). A second waking says nothing but that there is something to be fetched.
fn sum_up(woken: Vec<Woken>, before: &Devices, last: bool) -> Answer {
    let mut end = match before.is_empty() {
        true => Answer::new(Verdict::Suppressed, "no_endpoint"),
        false => Answer::new(Verdict::Rejected, "refused_before"),
    };
    let took = before.values().any(|took| *took);
    let mut yes = took.then(|| Answer::new(Verdict::Delivered, "taken_before"));
    let mut later = None;
    for one in woken {
        match one {
            Woken::Yes(answer) => yes = Some(answer),
            Woken::Later(answer) => later = Some(answer),
            Woken::Gone(answer) | Woken::Never(answer) => end = answer,
        }
    }
    let first = match last {
        true => yes.or(later),
        false => later.or(yes),
    };
    first.unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_to_come_is_waited_for_and_at_last_one_that_was_woken_is_enough() {
        let of = |verdict| Answer::new(verdict, "x");
        let again = Verdict::RetryAt {
            after: None,
            unsure: false,
        };
        let yes = || Woken::Yes(of(Verdict::Delivered));
        let later = || Woken::Later(of(again.clone()));
        let gone = || Woken::Gone(of(Verdict::Rejected));
        for (woken, last, verdict) in [
            (vec![gone(), later(), yes()], false, again.clone()),
            (vec![yes(), later()], false, again.clone()),
            (vec![yes(), later()], true, Verdict::Delivered),
            (vec![yes(), gone()], false, Verdict::Delivered),
            (vec![later(), gone()], false, again.clone()),
            (vec![later(), gone()], true, again.clone()),
            (vec![gone()], false, Verdict::Rejected),
            (vec![], false, Verdict::Suppressed),
        ] {
            assert_eq!(sum_up(woken, &Devices::new(), last).verdict, verdict);
        }
        // What earlier attempts settled counts.
        let took = Devices::from([("ps_1".to_owned(), true), ("ps_2".to_owned(), false)]);
        let refused = Devices::from([("ps_2".to_owned(), false)]);
        for (woken, before, last, verdict) in [
            (vec![], &took, false, Verdict::Delivered),
            (vec![gone()], &took, false, Verdict::Delivered),
            (vec![later()], &took, false, again.clone()),
            (vec![later()], &took, true, Verdict::Delivered),
            (vec![], &refused, false, Verdict::Rejected),
            (vec![later()], &refused, true, again.clone()),
            (vec![yes()], &refused, false, Verdict::Delivered),
        ] {
            assert_eq!(sum_up(woken, before, last).verdict, verdict);
        }
    }

    #[test]
    fn what_a_device_said_for_good_is_remembered_and_nothing_else() {
        let of = |verdict| Answer::new(verdict, "x");
        let again = Verdict::RetryAt {
            after: None,
            unsure: true,
        };
        for (woken, remembered) in [
            (Woken::Yes(of(Verdict::Delivered)), Some(true)),
            (Woken::Never(of(Verdict::Rejected)), Some(false)),
            (Woken::Never(of(Verdict::Suppressed)), None),
            (Woken::Gone(of(Verdict::Rejected)), None),
            (Woken::Later(of(again)), None),
        ] {
            assert_eq!(settled(&woken), remembered, "{woken:?}");
        }
    }
}
