//! What an endpoint is, when it may be sent to, and what it has earned by its answers: 410 disables it at once, five days without
//! one success disable it too, and both say so.

use super::client::{Connection, GONE};
use super::settings::{self, DISABLED, Endpoint, Webhook};
use crate::delivery::address_guard::AddressGuard;
use crate::delivery::channel::{Answer, Channel, Leased, Sent, Target, Traits, Unready, Verdict};
use crate::delivery::destination::Destination;
use crate::delivery::outbound::ClientError;
use crate::runtime::clock::SharedClock;
use crate::runtime::session::{Session, describe};
use crate::sealing::Seals;
use futures::future::LocalBoxFuture;
use millrace_schemas::time::Micros;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Its name, as in `outbox.channel`.
pub const NAME: &str = "webhook";

/// When a message is tried again, by how often it has failed (spec/delivery.md § Webhooks).
pub const SCHEDULE: [Duration; 7] = [
    Duration::from_secs(5),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 3_600),
    Duration::from_secs(5 * 3_600),
    Duration::from_secs(10 * 3_600),
    Duration::from_secs(10 * 3_600),
];
/// Failing for so long without one success disables an endpoint, in seconds.
pub const DISABLED_AFTER_SECS: i64 = 5 * 86_400;

/// What this process has seen of an endpoint. The store's column is the truth; this keeps successes from costing a statement each.
#[derive(Default)]
struct Seen {
    /// The last success.
    succeeded_at: Cell<Option<Micros>>,
    /// The first failure after it.
    failed_at: Cell<Option<Micros>>,
    /// The store may hold a `failing_since`.
    marked: Cell<bool>,
    /// The version of it that answered 410: as long as the store shows that one, it is yet to learn of it.
    gone: Cell<Option<i64>>,
}

/// The channel `webhook`.
pub struct WebhookChannel {
    traits: Traits,
    connection: Rc<Connection>,
    seals: Arc<Seals>,
    /// By the destination's number.
    seen: RefCell<HashMap<i32, Rc<Seen>>>,
}

impl WebhookChannel {
    /// With a client of its own.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new(
        settings: &Webhook,
        guard: AddressGuard,
        seals: Arc<Seals>,
        clock: SharedClock,
    ) -> Result<WebhookChannel, ClientError> {
        Ok(WebhookChannel {
            traits: Traits {
                idempotent: true,
                batch: 1,
                concurrency: settings.concurrency,
                max_attempts: 1 + SCHEDULE.len() as u16,
                timeout: Duration::from_millis(settings.timeout_ms),
            },
            connection: Rc::new(Connection::new(settings, guard, clock)?),
            seals,
            seen: RefCell::default(),
        })
    }
}

impl Channel for WebhookChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn backoff(&self, attempt: u16) -> Duration {
        let nth = usize::from(attempt.max(1)) - 1;
        let [.., last] = SCHEDULE;
        SCHEDULE.get(nth).copied().unwrap_or(last)
    }

    fn prepare<'a>(
        &'a self,
        session: &'a Session,
        destination: &'a Destination,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>> {
        Box::pin(async move {
            let wall = self.connection.clock.wall();
            let mut endpoint = settings::load(session, destination, &self.seals, wall).await?;
            let seen = Rc::clone(self.seen.borrow_mut().entry(destination.no).or_default());
            if seen.gone.get() == Some(endpoint.version) {
                return Err(Unready::Cancel(DISABLED));
            }
            // Another process marked it, and a success here came after that failure without knowing of the mark.
            if let (Some(since), Some(succeeded)) =
                (endpoint.failing_since, seen.succeeded_at.get())
                && since < succeeded
            {
                settings::clear_failing(session, &endpoint, succeeded)
                    .await
                    .map_err(|e| Unready::Later(describe(&e)))?;
                endpoint.failing_since = None;
            }
            seen.marked.set(endpoint.failing_since.is_some());
            Ok(Rc::new(WebhookTarget {
                endpoint,
                connection: Rc::clone(&self.connection),
                seen,
            }) as Rc<dyn Target>)
        })
    }
}

struct WebhookTarget {
    endpoint: Endpoint,
    connection: Rc<Connection>,
    seen: Rc<Seen>,
}

impl Target for WebhookTarget {
    fn admit(&self, _message: &Leased, _wall: Micros) -> Option<Answer> {
        // What was claimed together with the message that learned it need not knock once more.
        (self.seen.gone.get() == Some(self.endpoint.version))
            .then(|| Answer::new(Verdict::Cancelled, DISABLED))
    }

    fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent> {
        Box::pin(async move {
            let sent = self.connection.send(&self.endpoint, messages).await;
            let now = self.connection.clock.wall();
            for answer in &sent.answers {
                if answer.verdict == Verdict::Delivered {
                    self.seen.succeeded_at.set(Some(now));
                    self.seen.failed_at.set(None);
                } else {
                    let first = self.seen.failed_at.get().unwrap_or(now);
                    self.seen.failed_at.set(Some(first));
                    if answer.code == GONE {
                        self.seen.gone.set(Some(self.endpoint.version));
                    }
                }
            }
            sent
        })
    }

    fn note<'a>(
        &'a self,
        session: &'a Session,
        sent: &'a Sent,
    ) -> LocalBoxFuture<'a, Result<(), tokio_postgres::Error>> {
        Box::pin(async move {
            // A transaction that failed is noted again: each step does nothing the second time.
            for answer in &sent.answers {
                if answer.verdict == Verdict::Delivered {
                    self.note_success(session).await?;
                } else if answer.code == GONE {
                    self.disable(session, None, "the endpoint answered 410 Gone")
                        .await?;
                } else {
                    self.note_failure(session).await?;
                }
            }
            Ok(())
        })
    }
}

impl WebhookTarget {
    async fn note_success(&self, session: &Session) -> Result<(), tokio_postgres::Error> {
        if let Some(at) = self
            .seen
            .succeeded_at
            .get()
            .filter(|_| self.seen.marked.get())
        {
            settings::clear_failing(session, &self.endpoint, at).await?;
        }
        Ok(())
    }

    async fn note_failure(&self, session: &Session) -> Result<(), tokio_postgres::Error> {
        // None: a success came after it, and that is what counts.
        let Some(first) = self.seen.failed_at.get() else {
            return Ok(());
        };
        if !self.seen.marked.get() || self.endpoint.failing_since.is_none() {
            self.seen.marked.set(true);
            settings::set_failing(session, &self.endpoint, first).await?;
            return Ok(());
        }
        let before = self.connection.clock.wall().plus_secs(-DISABLED_AFTER_SECS);
        if self
            .endpoint
            .failing_since
            .is_some_and(|since| since <= before)
        {
            let reason = "every delivery has failed for five days";
            self.disable(session, Some(before), reason).await?;
        }
        Ok(())
    }

    async fn disable(
        &self,
        session: &Session,
        failing_before: Option<Micros>,
        reason: &str,
    ) -> Result<(), tokio_postgres::Error> {
        if settings::disable(session, &self.endpoint, failing_before, reason).await? {
            tracing::warn!(webhook = self.endpoint.id, reason, "endpoint disabled");
            metrics::counter!("endpoints_disabled_total").increment(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_is_the_specification_s() {
        let settings = Webhook::default();
        let clock = Arc::new(crate::runtime::clock::SystemClock);
        let made = WebhookChannel::new(&settings, AddressGuard::default(), Arc::default(), clock);
        let channel = made.expect("a client");
        let traits = channel.traits();
        assert!(traits.idempotent);
        assert_eq!(
            (traits.batch, traits.concurrency, traits.max_attempts),
            (1, 64, 8)
        );
        let minutes: Vec<f64> = (1..traits.max_attempts)
            .map(|attempt| channel.backoff(attempt).as_secs_f64() / 60.0)
            .collect();
        assert_eq!(minutes, [5.0 / 60.0, 5.0, 30.0, 120.0, 300.0, 600.0, 600.0]);
        assert_eq!(channel.backoff(0), SCHEDULE[0]);
        assert_eq!(channel.backoff(99), SCHEDULE[6]);
    }
}
