//! What is looked at while the load runs, once a second, and gathered into intervals.

use super::load::Counts;
use super::processes::{Held, Processes};
use super::record::{Latency, Shares};
use crate::report::median;
use millrace_topics::catalogue::ATTRIBUTION;
use std::sync::atomic::Ordering;
use tokio_postgres::{Client, Statement};

/// The kinds of latency.
pub(super) struct Latencies {
    /// A request's due time to its answer.
    pub answered: Latency,
    /// A request's due time to its row.
    pub ledger: Latency,
    /// A message's due time to its receiver's answer.
    pub sent: Latency,
    /// A postback's acceptance to its webhook's arrival.
    pub through: Latency,
}

impl Latencies {
    pub fn new() -> anyhow::Result<Latencies> {
        Ok(Latencies {
            answered: Latency::new()?,
            ledger: Latency::new()?,
            sent: Latency::new()?,
            through: Latency::new()?,
        })
    }

    pub fn each(&self) -> [&Latency; 4] {
        [&self.answered, &self.ledger, &self.sent, &self.through]
    }
}

/// One interval of the run.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    /// Accepted requests a second.
    pub rate: f64,
    /// Answered, ledger, sent, through.
    pub latencies: [Shares; 4],
    /// Records accepted and not yet consumed, median and most of the interval's looks.
    pub lag: [f64; 2],
    /// Messages not yet ended, median and most.
    pub outbox: [f64; 2],
    /// At its end.
    pub held: [Held; 3],
    /// The database's size at its end, in bytes.
    pub stored: f64,
}

/// Looks.
pub(super) struct Watch {
    client: Client,
    sent: Statement,
    lag: Vec<f64>,
    outbox: Vec<f64>,
    accepted: u64,
}

/// What a look at the store tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub consumed: i64,
    pub outbox: i64,
    pub stored: i64,
}

impl Watch {
    pub async fn start(url: &str) -> anyhow::Result<Watch> {
        let client = millrace_tests::postgres::connect(url).await;
        let sent = client
            .prepare(
                "UPDATE soak_due d SET seen = true FROM send_log s
                 WHERE NOT d.seen AND s.outbox_id = d.outbox_id AND s.sent_at > now() - interval '1 hour'
                 RETURNING (extract(epoch FROM s.sent_at - d.due_at) * 1e6)::int8",
            )
            .await?;
        Ok(Watch {
            client,
            sent,
            lag: Vec::new(),
            outbox: Vec::new(),
            accepted: 0,
        })
    }

    pub async fn look(&self) -> anyhow::Result<Look> {
        let row = self
            .client
            .query_one(
                "SELECT (SELECT coalesce(sum(consumed), 0)::int8 FROM positions WHERE group_name = $1),
                        (SELECT count(*) FROM outbox_due), pg_database_size(current_database())",
                &[&ATTRIBUTION.name],
            )
            .await?;
        Ok(Look {
            consumed: row.get(0),
            outbox: row.get(1),
            stored: row.get(2),
        })
    }

    /// One look, kept for the interval; and the times of messages that were sent since the last.
    pub async fn note(&mut self, counts: &Counts, sent: &Latency) -> anyhow::Result<Look> {
        let accepted = counts.accepted.load(Ordering::Relaxed);
        let look = self.look().await?;
        // What was consumed after the count was read makes no negative lag.
        let lag = i64::try_from(accepted).unwrap_or(i64::MAX) - look.consumed;
        self.lag.push(lag.max(0) as f64);
        self.outbox.push(look.outbox as f64);
        for row in self.client.query(&self.sent, &[]).await? {
            sent.record(row.get(0));
        }
        Ok(look)
    }

    /// Ends an interval of so many seconds.
    pub fn turn(
        &mut self,
        seconds: f64,
        counts: &Counts,
        latencies: &Latencies,
        processes: &Processes,
        look: Look,
    ) -> Interval {
        let accepted = counts.accepted.load(Ordering::Relaxed);
        let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        let interval = Interval {
            rate: (accepted - self.accepted) as f64 / seconds,
            latencies: latencies.each().map(Latency::turn),
            lag: [median(&self.lag), most(&self.lag)],
            outbox: [median(&self.outbox), most(&self.outbox)],
            held: processes.held(),
            stored: look.stored as f64,
        };
        self.accepted = accepted;
        self.lag.clear();
        self.outbox.clear();
        interval
    }
}
