//! What a destination of this channel is, and when it may be sent to.

use super::client::{self, Connection};
use super::settings::Stub;
use crate::delivery::address_guard::AddressGuard;
use crate::delivery::channel::{Answer, Channel, Leased, Sent, Target, Traits, Unready};
use crate::delivery::destination::Destination;
use crate::delivery::outbound::ClientError;
use crate::delivery::schedule;
use crate::runtime::clock::SharedClock;
use crate::runtime::session::Session;
use futures::future::LocalBoxFuture;
use millrace_schemas::time::Micros;
use std::rc::Rc;
use std::time::Duration;
use url::Url;

/// Its name, as in `outbox.channel`.
pub const NAME: &str = "stub";

/// The channel `stub`.
pub struct StubChannel {
    traits: Traits,
    connection: Rc<Connection>,
}

impl StubChannel {
    /// With a client of its own; whoever mounts channels asks `settings.enabled` first.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new(
        settings: &Stub,
        guard: AddressGuard,
        clock: SharedClock,
    ) -> Result<StubChannel, ClientError> {
        let timeout = Duration::from_millis(settings.timeout_ms);
        Ok(StubChannel {
            traits: Traits {
                idempotent: false,
                batch: 1,
                concurrency: settings.concurrency,
                max_attempts: 8,
                timeout,
            },
            connection: Rc::new(Connection::new(timeout, guard, clock)?),
        })
    }
}

impl Channel for StubChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn backoff(&self, attempt: u16) -> Duration {
        schedule::exponential(Duration::from_secs(1), attempt, Duration::from_secs(300))
    }

    fn prepare<'a>(
        &'a self,
        _session: &'a Session,
        destination: &'a Destination,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>> {
        let ready = match Url::parse(&destination.reference) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(Rc::new(StubTarget {
                url,
                connection: self.connection.clone(),
            })
                as Rc<dyn Target>),
            _ => Err(Unready::Cancel("destination_url_invalid")),
        };
        Box::pin(std::future::ready(ready))
    }
}

struct StubTarget {
    url: Url,
    connection: Rc<Connection>,
}

impl Target for StubTarget {
    fn admit(&self, _message: &Leased, _wall: Micros) -> Option<Answer> {
        // Nothing of this channel can be called off: no consent, no ceiling, no archived endpoint.
        None
    }

    fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent> {
        Box::pin(client::send(&self.connection, &self.url, messages))
    }
}
