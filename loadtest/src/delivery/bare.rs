//! The comparator of the outbox: the dispatcher's own statements, letter by letter, on as many connections and in transactions as
//! large as its own, and nothing around them. One connection claims from the destinations in turn; the other ends what was
//! claimed: the final statement, the send log's COPY, one commit for up to two thousand messages. No lanes, no breakers, no
//! channel, no janitor, no question for what is due: it stops when a round over all destinations has brought nothing.

use super::null::NAME;
use super::store::connect;
use anyhow::Context;
use millrace::delivery::lease::{self, CLAIM, FINAL, LOG, Place};
use millrace::postgres::copy::Rows;
use millrace::postgres::types::Tz;
use millrace::runtime::clock::{Clock, SystemClock};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// Messages of one claim, as the dispatcher's.
const CLAIM_AT_MOST: i64 = 1_000;
/// Messages of one final transaction, as the finisher's.
const FINISH_AT_MOST: usize = 2_000;

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The database.
    #[arg(long)]
    pub database: String,
}

/// Claimed messages, as the statements want them.
#[derive(Default)]
struct Claimed {
    destinations: Vec<i32>,
    due: Vec<Tz>,
    ids: Vec<Uuid>,
    tokens: Vec<Uuid>,
    created: Vec<Tz>,
    attempts: Vec<i16>,
    workspaces: Vec<i32>,
    /// Of all payloads: they must have been read.
    bytes: usize,
}

impl Claimed {
    fn add(&mut self, other: Claimed) {
        self.destinations.extend(other.destinations);
        self.due.extend(other.due);
        self.ids.extend(other.ids);
        self.tokens.extend(other.tokens);
        self.created.extend(other.created);
        self.attempts.extend(other.attempts);
        self.workspaces.extend(other.workspaces);
        self.bytes += other.bytes;
    }
}

/// Drains the outbox once nothing holds it, then waits to be ended.
///
/// # Errors
/// The store's.
pub fn serve(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let connect = connect(&options.database, "bare")?;
    runtime.block_on(async {
        let claimer = lease::session(&connect).await.map_err(anyhow::Error::msg)?;
        let finisher = lease::session(&connect).await.map_err(anyhow::Error::msg)?;
        let (claimer, finisher) = (claimer.client(), finisher.client());
        let held = claimer
            .prepare("SELECT count(*) FROM paused_channels")
            .await?;
        while claimer.query_one(&held, &[]).await?.get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // As many as the dispatcher leaves unwritten.
        let (to, from) = channel(10);
        tokio::try_join!(claim(claimer, to), finish(finisher, from))?;
        std::future::pending::<anyhow::Result<()>>().await
    })
}

async fn claim(client: &Client, to: Sender<Claimed>) -> anyhow::Result<()> {
    let rows = client
        .query("SELECT destination_no FROM destinations ORDER BY 1", &[])
        .await?;
    let mut destinations: Vec<(i32, Place)> =
        rows.iter().map(|r| (r.get(0), Place::BEGINNING)).collect();
    let claim = client.prepare(CLAIM).await?;
    let lease = Duration::from_secs(50).as_secs_f64() * 1_000.0;
    let mut token = 0_u128;
    loop {
        let mut any = false;
        for (no, place) in &mut destinations {
            token += 1;
            let token = Uuid::from_u128(token);
            let now = Tz(SystemClock.wall());
            let rows = client
                .query(
                    &claim,
                    &[
                        &*no,
                        &now,
                        &CLAIM_AT_MOST,
                        &lease,
                        &token,
                        &Tz(place.due_at),
                        &place.id,
                    ],
                )
                .await?;
            let mut claimed = Claimed::default();
            for row in &rows {
                claimed.destinations.push(*no);
                claimed.ids.push(row.get(0));
                claimed.created.push(row.get(1));
                claimed.due.push(row.get(2));
                claimed.attempts.push(row.get(3));
                claimed.workspaces.push(row.get(5));
                claimed.bytes += row.get::<_, &str>(6).len();
                claimed.tokens.push(token);
                *place = (*place).max(Place {
                    due_at: row.get::<_, Tz>(2).0,
                    id: row.get(0),
                });
            }
            if !rows.is_empty() {
                any = true;
                to.send(claimed).await.context("the finisher ended")?;
            }
        }
        if !any {
            return Ok(());
        }
    }
}

async fn finish(client: &Client, mut from: Receiver<Claimed>) -> anyhow::Result<()> {
    let end = client.prepare(FINAL).await?;
    let log = client.prepare(LOG).await?;
    while let Some(mut all) = from.recv().await {
        while all.ids.len() < FINISH_AT_MOST
            && let Ok(next) = from.try_recv()
        {
            all.add(next);
        }
        std::hint::black_box(all.bytes);
        let wall = SystemClock.wall();
        let mut rows = Rows::new();
        for i in 0..all.ids.len() {
            rows.row(11).time(wall).uuid(all.ids[i]);
            rows.i32(all.workspaces[i]).text(NAME);
            rows.i32(all.destinations[i]).i16(all.attempts[i]);
            rows.text("delivered").text("ok").i32(0).null().null();
        }
        let status = vec!["sent"; all.ids.len()];
        let reason = vec![None::<&str>; all.ids.len()];
        let wall = Tz(wall);
        let ends: [&(dyn ToSql + Sync); 9] = [
            &all.destinations,
            &all.due,
            &all.ids,
            &all.tokens,
            &all.created,
            &status,
            &reason,
            &all.attempts,
            &wall,
        ];
        tokio::try_join!(client.batch_execute("BEGIN"), client.execute(&end, &ends))?;
        rows.copy_into(client, &log).await?;
        client.batch_execute("COMMIT").await?;
    }
    Ok(())
}
