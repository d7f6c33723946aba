//! The dispatcher's loop.

use super::claiming::Claiming;
use super::finish::{Finished, Finisher};
use super::lane::Lane;
use super::request;
use crate::delivery::channel::Channel;
use crate::delivery::destination::Destination;
use crate::delivery::holds;
use crate::delivery::janitor;
use crate::delivery::lease::{self, End};
use crate::runtime::clock::SharedClock;
use crate::runtime::session::{Connect, Session, describe};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};

/// Messages of one claim at most.
pub(super) const CLAIM_AT_MOST: usize = 1_000;
/// Messages sent and not yet written down, at most, before more is claimed.
pub(super) const UNWRITTEN_AT_MOST: usize = 10_000;
/// A lease lasts this much longer than two requests: one that is waited for, and its own.
pub(super) const LEASE_MARGIN: Duration = Duration::from_secs(30);
/// A request is not begun when its lease has less than this left beyond the request's own time.
pub(super) const LEASE_REST: Duration = Duration::from_secs(10);
/// How often destinations that were paused for an unreadable secret, or a channel that is not configured, are looked at again.
const LOOK_AT_SECRETS: Duration = Duration::from_secs(5);

/// How often it is looked whether channels that wait for a destination have one by now.
const LOOK_FOR_DESTINATIONS: Duration = Duration::from_millis(500);

/// What the loop and the requests share.
pub(super) struct Shared {
    pub(super) channel: Rc<dyn Channel>,
    pub(super) clock: SharedClock,
    pub(super) lanes: RefCell<HashMap<i32, Lane>>,
    finished: RefCell<Option<UnboundedSender<Finished>>>,
    pub(super) unwritten: Cell<usize>,
    in_flight: Cell<usize>,
    ended: Cell<u64>,
    /// A slot is free, or something was written down.
    freed: Notify,
    pub(super) stop: Cell<bool>,
}

impl Shared {
    pub(super) fn stop(&self) {
        self.stop.set(true);
        self.freed.notify_one();
    }

    pub(super) fn finish(&self, finished: Finished) {
        self.unwritten
            .set(self.unwritten.get() + finished.ended.len());
        if let Some(to) = &*self.finished.borrow() {
            let _ = to.send(finished);
        }
    }

    /// Gives back what is claimed for a destination and not yet sent.
    fn give_back(&self, lane: &mut Lane) {
        if lane.ready.is_empty() {
            return;
        }
        let no = lane.destination.no;
        let ended = lane.ready.drain(..);
        let ended = ended.map(|h| request::ended(&h, no, End::Back)).collect();
        self.finish(Finished {
            ended,
            ..Finished::default()
        });
    }

    /// Begins as many requests as the lane allows.
    pub(super) fn pump(self: &Rc<Shared>, no: i32) {
        let traits = self.channel.traits();
        loop {
            let next = {
                let mut lanes = self.lanes.borrow_mut();
                let Some(lane) = lanes.get_mut(&no) else {
                    return;
                };
                if self.stop.get() || lane.paused {
                    self.give_back(lane);
                    return;
                }
                lane.next(&traits, Instant::now())
                    .map(|(target, held)| (target, held, lane.destination.clone()))
            };
            let Some((target, held, destination)) = next else {
                return;
            };
            self.in_flight.set(self.in_flight.get() + 1);
            let shared = Rc::clone(self);
            actix_rt::spawn(async move {
                let (channel, clock) = (Rc::clone(&shared.channel), shared.clock.clone());
                let done = request::run(channel, clock, destination, target, held).await;
                shared.done(no, done);
            });
        }
    }

    fn done(self: &Rc<Shared>, no: i32, done: request::Done) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
        self.finish(done.finished);
        {
            let mut lanes = self.lanes.borrow_mut();
            if let Some(lane) = lanes.get_mut(&no) {
                lane.in_flight = lane.in_flight.saturating_sub(1);
                lane.paused |= done.pause;
                if let Some(rest) = done.rest {
                    let until = Instant::now() + rest;
                    lane.rests_until = Some(lane.rests_until.map_or(until, |u| u.max(until)));
                    self.give_back(lane);
                }
                match done.dead {
                    Some(false) => lane.breaker.alive(),
                    Some(true) => {
                        if lane.breaker.dead(Instant::now()) {
                            tracing::warn!(
                                channel = self.channel.name(),
                                destination = no,
                                "breaker open"
                            );
                            metrics::counter!("breakers_opened_total", "channel" => self.channel.name())
                                .increment(1);
                            self.give_back(lane);
                        }
                    }
                    None => lane.breaker.untried(),
                }
            }
        }
        self.pump(no);
        let traits = self.channel.traits();
        let hungry = self
            .lanes
            .borrow()
            .get(&no)
            .is_none_or(|lane| lane.room(&traits, Instant::now()) > 0);
        if hungry || self.stop.get() {
            self.freed.notify_one();
        }
    }

    fn written(&self, n: usize) {
        let before = self.unwritten.get();
        self.unwritten.set(before.saturating_sub(n));
        self.ended.set(self.ended.get() + n as u64);
        if before >= UNWRITTEN_AT_MOST {
            self.freed.notify_one();
        }
    }
}

/// How the loop works.
pub(super) struct Loop {
    pub connect: Connect,
    pub poll: Duration,
    /// How long what is under way may take when it ends.
    pub drain: Duration,
}

pub(super) fn shared(channel: Rc<dyn Channel>, clock: SharedClock) -> Rc<Shared> {
    Rc::new(Shared {
        channel,
        clock,
        lanes: RefCell::default(),
        finished: RefCell::default(),
        unwritten: Cell::new(0),
        in_flight: Cell::new(0),
        ended: Cell::new(0),
        freed: Notify::new(),
        stop: Cell::new(false),
    })
}

/// Channels that have a destination, as [`watch_destinations`] sees them.
pub(super) type Destined = watch::Receiver<BTreeSet<String>>;

/// Waits until there is anything that its channel could do. False: it was told to stop before.
pub(super) async fn has_work(shared: &Shared, destined: Option<Destined>) -> bool {
    let Some(mut destined) = destined else {
        return true;
    };
    while !shared.stop.get() {
        if destined.borrow().contains(shared.channel.name()) {
            break;
        }
        tokio::select! {
            // Nobody looks any more: it looks for itself.
            looked = destined.changed() => if looked.is_err() { break },
            () = shared.freed.notified() => {}
        }
    }
    !shared.stop.get()
}

/// Channels of destinations, found by one step along the index for each channel there is.
const CHANNELS: &str = "
WITH RECURSIVE c(channel) AS (
    (SELECT channel FROM destinations ORDER BY channel LIMIT 1)
    UNION ALL
    SELECT (SELECT d.channel FROM destinations d WHERE d.channel > c.channel ORDER BY d.channel LIMIT 1)
    FROM c WHERE c.channel IS NOT NULL
)
SELECT channel FROM c WHERE channel IS NOT NULL";

/// Looks for all channels that wait for a destination, over one connection, as long as any does.
pub(super) async fn watch_destinations(connect: Connect, tell: watch::Sender<BTreeSet<String>>) {
    let mut session: Option<Session> = None;
    loop {
        tokio::time::sleep(LOOK_FOR_DESTINATIONS).await;
        if tell.receiver_count() == 0 {
            return;
        }
        let live = match session.take() {
            Some(live) if !live.client().is_closed() => live,
            _ => match lease::session(&connect).await {
                Ok(live) => live,
                Err(_) => continue,
            },
        };
        match live.query(CHANNELS, &[]).await {
            Ok(rows) => {
                let found: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
                tell.send_if_modified(|known| {
                    let new = *known != found;
                    *known = found;
                    new
                });
                session = Some(live);
            }
            Err(error) => {
                tracing::debug!(error = %describe(&error), "not known which channels have destinations");
            }
        }
    }
}

/// Runs until told to stop; then gives back what it holds and waits for what is under way.
pub(super) async fn run(shared: Rc<Shared>, how: Loop) {
    let (to, from) = unbounded_channel();
    shared.finished.replace(Some(to));
    let finisher = Finisher::new(how.connect.clone(), shared.clock.clone());
    let writing = {
        let shared = Rc::clone(&shared);
        actix_rt::spawn(finisher.keep(from, move |n| shared.written(n)))
    };
    let cleaning = actix_rt::spawn(clean(Rc::clone(&shared), how.connect.clone()));
    let mut claiming = Claiming {
        shared: Rc::clone(&shared),
        connect: how.connect,
        session: None,
        turn: 0,
    };
    let mut away = false;
    while !shared.stop.get() {
        let turned = claiming.turn().await;
        // Said once each time the store goes away, not at every try.
        if away != turned.is_err() {
            away = turned.is_err();
            match &turned {
                Err(error) => {
                    tracing::warn!(channel = shared.channel.name(), %error, "nothing can be claimed now");
                }
                Ok(_) => tracing::info!(channel = shared.channel.name(), "claiming again"),
            }
        }
        let wait = match turned {
            Ok(true) => Duration::ZERO,
            Ok(false) => how.poll,
            Err(_) => {
                claiming.session = None;
                how.poll.max(Duration::from_millis(500))
            }
        };
        if !wait.is_zero() {
            let _ = tokio::time::timeout(wait, shared.freed.notified()).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    cleaning.abort();
    let numbers: Vec<i32> = shared.lanes.borrow().keys().copied().collect();
    for no in numbers {
        shared.pump(no);
    }
    let deadline = Instant::now() + how.drain;
    while shared.in_flight.get() > 0 && Instant::now() < deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        let _ = tokio::time::timeout(left, shared.freed.notified()).await;
    }
    // The finisher ends when nobody is left to tell it anything.
    shared.finished.replace(None);
    let left = deadline.saturating_duration_since(Instant::now());
    if tokio::time::timeout(left.max(Duration::from_secs(1)), writing)
        .await
        .is_err()
    {
        tracing::warn!(
            channel = shared.channel.name(),
            "what was sent last could not be written down; its leases run out"
        );
    }
}

/// Expired leases, what was ended, and secrets that open again.
async fn clean(shared: Rc<Shared>, connect: Connect) {
    let mut session: Option<Session> = None;
    let mut looked: Option<Instant> = None;
    let mut vacuumed = 0;
    let mut last: Option<Instant> = None;
    loop {
        let live = match session.take() {
            Some(s) if !s.client().is_closed() => s,
            _ => match lease::session(&connect).await {
                Ok(session) => session,
                Err(_) => {
                    tokio::time::sleep(janitor::EVERY).await;
                    continue;
                }
            },
        };
        let result = async {
            if last.is_none_or(|at| at.elapsed() >= janitor::EVERY) {
                last = Some(Instant::now());
                let wall = shared.clock.wall();
                let traits = shared.channel.traits();
                janitor::sweep(&live, shared.channel.name(), &traits, wall).await?;
            }
            let ended = shared.ended.get();
            if janitor::is_worth_a_vacuum(&live, ended - vacuumed).await? {
                vacuumed = ended;
                janitor::vacuum(&live).await?;
            }
            if looked.is_none_or(|at| at.elapsed() >= LOOK_AT_SECRETS) {
                looked = Some(Instant::now());
                look_at_secrets(&shared, &live).await?;
            }
            Ok::<(), tokio_postgres::Error>(())
        };
        match result.await {
            Ok(()) => session = Some(live),
            Err(error) => {
                tracing::debug!(channel = shared.channel.name(), error = %describe(&error), "cannot clean up now");
            }
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Lets destinations go on that could not be used as they were set and now can ([`Channel::resumes`]).
async fn look_at_secrets(shared: &Shared, session: &Session) -> Result<(), tokio_postgres::Error> {
    let rows = session
        .query(
            "SELECT destination_no, workspace_id, channel, ref FROM destinations
             WHERE channel = $1 AND paused_code = ANY($2) ORDER BY destination_no LIMIT 1000",
            &[&shared.channel.name(), &shared.channel.resumes()],
        )
        .await?;
    for row in &rows {
        let found = destination_of(row);
        if shared.channel.prepare(session, &found).await.is_ok()
            && holds::resume(session.client(), found.no).await?
        {
            tracing::info!(destination = found.no, "it can be used again: resumed");
        }
    }
    Ok(())
}

pub(super) fn destination_of(row: &tokio_postgres::Row) -> Destination {
    Destination {
        no: row.get(0),
        workspace: row.get(1),
        channel: row.get(2),
        reference: row.get(3),
    }
}
