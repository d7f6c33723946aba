//! Claiming: one round after the other over the destinations that have something due and room for it.

use super::finish::Finished;
use super::lane::{Held, Lane};
use super::request;
use super::run::{
    CLAIM_AT_MOST, LEASE_MARGIN, LEASE_REST, Shared, UNWRITTEN_AT_MOST, destination_of,
};
use crate::delivery::channel::{Leased, Traits, Unready};
use crate::delivery::destination::{self, Destination};
use crate::delivery::lease::{self, Attempt, End};
use crate::postgres::types::Tz;
use crate::runtime::failpoint;
use crate::runtime::session::{Connect, Session, describe};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Destinations of a channel with something due, found by one step along the index for each destination there is. Those in `$3`
/// are known to have more: looking for it would pass over all that is claimed of them. A subquery with a limit, since EXISTS beside
/// OR may be planned as a hash of everything that is due.
pub const DUE: &str = "
WITH RECURSIVE d(no) AS (
    (SELECT destination_no FROM outbox_due ORDER BY destination_no LIMIT 1)
    UNION ALL
    SELECT (SELECT o.destination_no FROM outbox_due o WHERE o.destination_no > d.no ORDER BY o.destination_no LIMIT 1)
    FROM d WHERE d.no IS NOT NULL
)
SELECT t.destination_no, t.workspace_id, t.channel, t.ref
FROM d JOIN destinations t ON t.destination_no = d.no
WHERE t.channel = $1 AND t.paused_code IS NULL
  AND NOT EXISTS (SELECT FROM paused_channels p WHERE p.channel IN (t.channel, '*'))
  AND (d.no = ANY($3)
       OR (SELECT true FROM outbox_due o WHERE o.destination_no = d.no AND o.due_at <= $2 AND o.lease_token IS NULL LIMIT 1))
ORDER BY t.destination_no";

pub(super) struct Claiming {
    pub shared: Rc<Shared>,
    pub connect: Connect,
    pub session: Option<Session>,
    /// Where the round begins: nobody is always first.
    pub turn: usize,
}

impl Claiming {
    /// One round over all destinations that have something due and room for it. True: there may be more at once.
    pub async fn turn(&mut self) -> Result<bool, String> {
        if self.shared.unwritten.get() >= UNWRITTEN_AT_MOST {
            return Ok(false);
        }
        let live = match self.session.take() {
            Some(s) if !s.client().is_closed() => s,
            _ => lease::session(&self.connect).await?,
        };
        let now = self.shared.clock.wall();
        let rows = live
            .query(DUE, &[&self.shared.channel.name(), &Tz(now), &self.deep()])
            .await
            .map_err(|e| describe(&e))?;
        let mut due: Vec<Destination> = rows.iter().map(destination_of).collect();
        self.forget_idle(&due);
        if !due.is_empty() {
            self.turn = self.turn.wrapping_add(1);
            let first = self.turn % due.len();
            due.rotate_left(first);
        }
        let mut more = false;
        for one in due {
            if self.shared.stop.get() {
                break;
            }
            more |= self.visit(&live, one).await?;
        }
        self.session = Some(live);
        Ok(more)
    }

    /// Destinations whose last claim did not come to the end of what is due.
    fn deep(&self) -> Vec<i32> {
        let lanes = self.shared.lanes.borrow();
        let deep = lanes
            .iter()
            .filter(|(_, lane)| lane.goes_on_at(Instant::now()).is_some());
        deep.map(|(no, _)| *no).collect()
    }

    /// Lanes of destinations with nothing due and nothing under way.
    fn forget_idle(&self, due: &[Destination]) {
        self.shared
            .lanes
            .borrow_mut()
            .retain(|no, lane| !lane.is_idle() || due.iter().any(|d| d.no == *no));
    }

    async fn visit(&self, session: &Session, destination: Destination) -> Result<bool, String> {
        let (shared, no) = (&self.shared, destination.no);
        let traits = shared.channel.traits();
        let limit = {
            let mut lanes = shared.lanes.borrow_mut();
            let lane = lanes
                .entry(no)
                .or_insert_with(|| Lane::new(destination.clone()));
            // It stands among the due ones, so nobody keeps it paused any more.
            if lane.paused && lane.in_flight == 0 && lane.ready.is_empty() {
                lane.paused = false;
            }
            lane.room(&traits, Instant::now())
        };
        if limit == 0 {
            return Ok(false);
        }
        match shared.channel.prepare(session, &destination).await {
            Ok(target) => {
                if let Some(lane) = shared.lanes.borrow_mut().get_mut(&no) {
                    lane.target = Some(target);
                }
            }
            Err(Unready::Later(why)) => return Err(why),
            Err(Unready::Pause { code, reason }) => {
                let paused = destination::pause(session, no, code, &reason, Duration::ZERO).await;
                if paused.map_err(|e| describe(&e))? {
                    tracing::warn!(destination = no, code, reason, "destination paused");
                    metrics::counter!("destinations_paused_total", "code" => code).increment(1);
                }
                return Ok(false);
            }
            Err(Unready::Cancel(code)) => {
                let (claim, more) = self.claim(session, no, CLAIM_AT_MOST, &traits).await?;
                let held = hold(claim, Instant::now());
                self.end_unsent(&held, no, "cancelled", code);
                return Ok(more);
            }
        }
        let begun = Instant::now();
        let (mut claim, more) = self.claim(session, no, limit, &traits).await?;
        let _ = failpoint::hit("delivery.claimed");
        if !claim.bodiless.is_empty() {
            let lost = std::mem::take(&mut claim.bodiless);
            let lost: Vec<Held> = lost
                .into_iter()
                .map(|message| Held {
                    message,
                    token: claim.token,
                    send_before: begun,
                })
                .collect();
            self.end_unsent(&lost, no, "cancelled", "body_gone");
        }
        let send_before = begun + lease_of(&traits).saturating_sub(traits.timeout + LEASE_REST);
        if let Some(lane) = shared.lanes.borrow_mut().get_mut(&no) {
            lane.ready.extend(hold(claim, send_before));
        }
        shared.pump(no);
        Ok(more)
    }

    /// Claims for a lane, from where its last claim ended if that was not the end of what is due. Whether there may be more.
    async fn claim(
        &self,
        session: &Session,
        no: i32,
        limit: usize,
        traits: &Traits,
    ) -> Result<(lease::Claim, bool), String> {
        let (now, at) = (self.shared.clock.wall(), Instant::now());
        let from = {
            let lanes = self.shared.lanes.borrow();
            lanes.get(&no).and_then(|lane| lane.goes_on_at(at))
        };
        let claim = lease::claim(session, no, now, from, limit, lease_of(traits))
            .await
            .map_err(|e| describe(&e))?;
        let full = claim.messages.len() + claim.bodiless.len() == limit;
        if let Some(lane) = self.shared.lanes.borrow_mut().get_mut(&no) {
            lane.claimed(full.then(|| claim.last()).flatten(), at);
        }
        // A claim that began further on says nothing of what comes before.
        let more = full || from.is_some();
        Ok((claim, more))
    }

    fn end_unsent(&self, held: &[Held], no: i32, status: &'static str, code: &'static str) {
        let (wall, channel) = (self.shared.clock.wall(), self.shared.channel.name());
        let end = || End::Final(status, Some(code.into()));
        let attempts = held.iter().map(|h| Attempt {
            at: wall,
            id: h.message.id,
            workspace: h.message.workspace,
            channel,
            destination: no,
            attempt: 0,
            result: status,
            code: code.into(),
            took: Duration::ZERO,
            target: None,
            excerpt: None,
        });
        self.shared.finish(Finished {
            attempts: attempts.collect(),
            ended: held.iter().map(|h| request::ended(h, no, end())).collect(),
            ..Finished::default()
        });
    }
}

/// How long messages of a channel are claimed for.
fn lease_of(traits: &Traits) -> Duration {
    traits.timeout * 2 + LEASE_MARGIN
}

fn hold(claim: lease::Claim, send_before: Instant) -> Vec<Held> {
    let token = claim.token;
    let held = |message: Leased| Held {
        message,
        token,
        send_before,
    };
    claim.messages.into_iter().map(held).collect()
}
