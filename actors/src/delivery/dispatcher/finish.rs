//! Ends leases and writes the send log, many requests in one transaction. Never gives up: what was sent must be known.

use crate::delivery::channel::{Sent, Target};
use crate::delivery::lease::{self, Attempt, Ended};
use crate::delivery::{destination, outbox};
use crate::runtime::clock::SharedClock;
use crate::runtime::days;
use crate::runtime::failpoint;
use crate::runtime::session::{Connect, Session, describe};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Messages of one transaction at most.
const AT_MOST: usize = 2_000;
/// How long after a failure it is tried again, doubled up to [`AGAIN_AT_MOST`].
const AGAIN: Duration = Duration::from_millis(50);
/// See [`AGAIN`].
const AGAIN_AT_MOST: Duration = Duration::from_secs(2);

/// What a request leaves to be written.
#[derive(Default)]
pub struct Finished {
    /// Messages whose lease ends.
    pub ended: Vec<Ended>,
    /// Rows of the send log.
    pub attempts: Vec<Attempt>,
    /// Pause this destination: number, code, reason, and how long the request took that says so.
    pub pause: Option<(i32, String, String, Duration)>,
    /// Whom to let note how the request went.
    pub note: Option<(Rc<dyn Target>, Sent)>,
}

/// The finisher's connection and what it knows of it.
pub(super) struct Finisher {
    connect: Connect,
    clock: SharedClock,
    session: Option<Session>,
    /// The day (since 1970) whose partitions are known to exist.
    day: Option<i64>,
}

impl Finisher {
    pub fn new(connect: Connect, clock: SharedClock) -> Finisher {
        Finisher {
            connect,
            clock,
            session: None,
            day: None,
        }
    }

    /// Writes what comes until nobody is left to send; `written` hears how many messages each transaction ended.
    pub async fn keep(mut self, mut from: UnboundedReceiver<Finished>, written: impl Fn(usize)) {
        while let Some(first) = from.recv().await {
            let mut all = vec![first];
            let mut n = all.iter().map(|f| f.ended.len()).sum::<usize>();
            while n < AT_MOST
                && let Ok(next) = from.try_recv()
            {
                n += next.ended.len();
                all.push(next);
            }
            let mut pause = AGAIN;
            let mut again = false;
            while let Err(error) = self.write(&all, again).await {
                again = true;
                tracing::warn!(%error, messages = n, "what was sent cannot be written down yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN_AT_MOST);
            }
            let _ = failpoint::hit("delivery.finished");
            written(n);
        }
    }

    async fn write(&mut self, all: &[Finished], again: bool) -> Result<(), String> {
        let session = match self.session.take() {
            Some(s) if !s.client().is_closed() => s,
            _ => lease::session(&self.connect).await?,
        };
        let wall = self.clock.wall();
        let day = wall.day();
        // Attempts carry their own moments, which a slow store may leave a day behind.
        let mut wanted: Vec<i64> = all
            .iter()
            .flat_map(|f| &f.attempts)
            .map(|a| a.at.day())
            .chain([day])
            .filter(|d| self.day != Some(*d))
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        if !wanted.is_empty() {
            days::make(&session, outbox::TABLES, &wanted)
                .await
                .map_err(|f| format!("{f:?}"))?;
            self.day = Some(day);
        }
        if let Err(error) = finish(&session, all, wall, again).await {
            if !session.client().is_closed() {
                let _ = session.batch("ROLLBACK").await;
            }
            return Err(describe(&error));
        }
        self.session = Some(session);
        Ok(())
    }
}

/// One transaction: leases ended, the log written, destinations paused, notes taken.
///
/// # Errors
/// The store's. It may be run `again`, also after a COMMIT whose reply was lost: leases that are gone are left alone, and attempts
/// that stand in the log are not written a second time.
pub async fn finish(
    session: &Session,
    all: &[Finished],
    wall: millrace_schemas::time::Micros,
    again: bool,
) -> Result<u64, tokio_postgres::Error> {
    session.batch("BEGIN").await?;
    let held = lease::end(session, all.iter().flat_map(|f| &f.ended), wall).await?;
    let mut attempts: Vec<&Attempt> = all.iter().flat_map(|f| &f.attempts).collect();
    if again {
        let logged = lease::logged(session, &attempts).await?;
        attempts.retain(|a| !logged.contains(&(a.id, a.attempt, a.at)));
    }
    lease::log(session, attempts).await?;
    for f in all {
        if let Some((no, code, reason, took)) = &f.pause
            && destination::pause(session, *no, code, reason, *took).await?
        {
            tracing::warn!(destination = no, code, reason, "destination paused");
            metrics::counter!("destinations_paused_total", "code" => code.clone()).increment(1);
        }
        if let Some((target, sent)) = &f.note {
            target.note(session, sent).await?;
        }
    }
    session.batch("COMMIT").await?;
    Ok(held)
}
