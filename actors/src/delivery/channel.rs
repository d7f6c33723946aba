//! What a channel must say of itself: the questions of every channel, and what its answers mean.

use super::destination::Destination;
use super::email::suppression::DeadAddress;
use super::push::answered::Answered;
use crate::runtime::session::Session;
use futures::future::LocalBoxFuture;
use millrace_schemas::time::Micros;
use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// What holds for all of a channel's destinations.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// A second sending of the same message does no harm: the receiver knows its id. If not, a message is claimed before the
    /// request and never sent twice; an attempt whose outcome is unknown ends it `unknown`.
    pub idempotent: bool,
    /// Messages of one request at most.
    pub batch: usize,
    /// Requests to one destination at once, at most.
    pub concurrency: usize,
    /// Attempts of one message at most.
    pub max_attempts: u16,
    /// How long one request may take; a lease outlasts it.
    pub timeout: Duration,
}

/// A message under lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// Its id: the same through all attempts.
    pub id: Uuid,
    /// Its partition in time.
    pub created_at: Micros,
    /// When it was due.
    pub due_at: Micros,
    /// Which attempt this is, from 1.
    pub attempt: u16,
    /// Since when an earlier attempt may have arrived, if so.
    pub unsure_since: Option<Micros>,
    /// Its workspace.
    pub workspace: i32,
    /// The frozen payload: JSON text, byte for byte as it was written.
    pub payload: String,
}

/// What came of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It arrived.
    Delivered,
    /// Again later; `after` as the receiver asked (`Retry-After`), else by the channel's schedule.
    RetryAt {
        /// How long the receiver asks to be left alone.
        after: Option<Duration>,
        /// It may have arrived: the request was sent and no answer came.
        unsure: bool,
    },
    /// It never will: refused for good.
    Rejected,
    /// The address is dead.
    Bounced,
    /// It must not be sent (consent, suppression, ceiling), asked at the last moment.
    Suppressed,
    /// Its destination is archived, points elsewhere now, or it was called off.
    Cancelled,
    /// Nothing may go to this destination until a person, or a new credential, says so. The message waits and no attempt is
    /// counted.
    PauseDestination,
}

/// The answer to one message of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What came of it.
    pub verdict: Verdict,
    /// A short code: an HTTP status, a provider's error code, or a reason's name.
    pub code: Cow<'static, str>,
    /// What the receiver said, for people: redacted and short.
    pub excerpt: Option<String>,
    /// Whom it was sent to: hashed or masked.
    pub target: Option<String>,
    /// Of [`Verdict::Bounced`]: the address that must get nothing any more, written down with the message's end.
    pub dead_address: Option<Box<DeadAddress>>,
    /// Of a push that is tried again: the devices that need not be woken again, written down with the attempt's end.
    pub answered: Option<Box<Answered>>,
}

impl Answer {
    /// An answer with its code.
    #[must_use]
    pub fn new(verdict: Verdict, code: impl Into<Cow<'static, str>>) -> Answer {
        Answer {
            verdict,
            code: code.into(),
            excerpt: None,
            target: None,
            dead_address: None,
            answered: None,
        }
    }

    /// With what the receiver said, cut to 500 characters.
    #[must_use]
    pub fn said(mut self, text: impl Into<String>) -> Answer {
        let text: String = text.into();
        self.excerpt = Some(text.chars().filter(|c| *c != '\0').take(500).collect());
        self
    }
}

/// What came of a request: an answer for each message, in the order in which they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// One a message, in order.
    pub answers: Vec<Answer>,
    /// Whether the destination itself seemed dead (no connection, no answer, 5xx): the breaker counts these.
    pub dead: bool,
}

/// Why a destination cannot be sent to at all now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unready {
    /// It is gone or off: what waits for it ends `cancelled` with this code.
    Cancel(&'static str),
    /// A person must look: it is paused with code and reason; no row ends.
    Pause {
        /// A name from the channel's closed list, such as `secret_unreadable`.
        code: &'static str,
        /// For people; no secret in it.
        reason: String,
    },
    /// The store failed: soon again.
    Later(String),
}

/// Codes of pauses of every channel that end by themselves: the key is right again, or the channel is configured.
pub const MENDED_BY_LOOKING: &[&str] = &["secret_unreadable", "unconfigured"];

/// A channel. It lives on its actor's thread.
pub trait Channel: 'static {
    /// Its name, as in `outbox.channel`.
    fn name(&self) -> &'static str;

    /// What holds for all its destinations.
    fn traits(&self) -> Traits;

    /// Whether nothing is done for it before there is a destination of it: a deployment that does without it is asked no more than
    /// that.
    fn waits_for_a_destination(&self) -> bool {
        false
    }

    /// Codes of pauses that end by themselves once the destination can be prepared again.
    fn resumes(&self) -> &'static [&'static str] {
        MENDED_BY_LOOKING
    }

    /// Whether a receiver that asks to be left alone (`Retry-After`) speaks for the whole destination. False: many receivers of
    /// no concern to each other stand behind it, and only the message waits.
    fn rests_as_a_whole(&self) -> bool {
        true
    }

    /// When a message is tried again after its `attempt`th attempt failed (from 1), before jitter.
    fn backoff(&self, attempt: u16) -> Duration;

    /// Reads the destination's current settings and credentials; asked again at every claim, so that what changed while a
    /// message waited counts.
    fn prepare<'a>(
        &'a self,
        session: &'a Session,
        destination: &'a Destination,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>>;
}

/// A destination that may be sent to, with its settings as of now.
pub trait Target: 'static {
    /// Whether this one message may still go; asked right before it is sent. An answer ends or postpones it unsent.
    fn admit(&self, message: &Leased, wall: Micros) -> Option<Answer>;

    /// Asks the store of messages that were admitted, right before they are sent: one answer each, in order; some: it ends or
    /// postpones that message unsent.
    ///
    /// # Errors
    /// The store cannot be asked: nothing is sent, the messages go back, and no attempt is counted.
    fn ask<'a>(
        &'a self,
        messages: &'a [Leased],
        _wall: Micros,
    ) -> LocalBoxFuture<'a, Result<Vec<Option<Answer>>, String>> {
        Box::pin(std::future::ready(Ok(vec![None; messages.len()])))
    }

    /// Sends the messages in one request. One answer each, in order; never panics for what a receiver says.
    fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent>;

    /// What the store must learn of how requests went, beside the messages' own ends (a webhook's first failure, a disabled
    /// endpoint). Called with each finished request, within the transaction that ends its messages.
    fn note<'a>(
        &'a self,
        _session: &'a Session,
        _sent: &'a Sent,
    ) -> LocalBoxFuture<'a, Result<(), tokio_postgres::Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
