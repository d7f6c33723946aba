//! `peers --kill`: what each contender promises, tried. Every process of it is killed (SIGKILL) in the middle of its work, twice, and
//! started again; then its rows are counted against the generator's. Nothing is measured here.

use super::Options;
use super::measure::{Bench, State, run_name};
use super::peer::Peer;
use crate::contender::Running;
use crate::report::publish;
use crate::{books, cpu, machine};
use anyhow::ensure;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// Behind these shares of the work everything of a contender is killed.
const STRIKES: [f64; 2] = [0.25, 0.6];
/// So long may nothing move: a group waits for the sessions of members that are gone, 45 s where nothing else is set.
const PATIENCE: Duration = Duration::from_secs(150);
/// All is consumed, and nothing has moved for so long: that was all.
const QUIET: Duration = Duration::from_secs(3);

/// What became of a contender.
#[derive(Debug, Default)]
struct Outcome {
    struck: usize,
    /// Visits, clicks and conversions that are not there, and those that are there once more than they should.
    lost: u64,
    doubled: u64,
    /// The longest time without progress between the first and the last.
    longest: Duration,
    /// What else is not as it was made, for people.
    books: String,
}

impl Outcome {
    /// As many rows of a table, so many of them different ones, where so many were made.
    fn count(&mut self, rows: u64, different: u64, made: u64) {
        self.lost += made.saturating_sub(different);
        self.doubled += rows.saturating_sub(different) + different.saturating_sub(made);
    }
}

/// Runs it.
///
/// # Errors
/// Something of the stack or of a peer is missing or fails, or the product lost or doubled anything.
pub async fn run(options: &Options, bench: &Bench<'_>, wanted: &[Peer]) -> anyhow::Result<()> {
    let version = Some(bench.stack.kafka_version());
    let mut out = format!(
        "## Peers killed at work\n\n{}\n\nWorkload W, {} records, into the same PostgreSQL: all processes of a contender are killed by SIGKILL after a quarter and after three\nfifths of the work, and started again at once. Counted are visits, clicks and conversions against the generator's; *books* is what\nthe check behind every measured round says (keys, log, payouts, and that all contenders wrote the same). The pause is the longest\ntime without progress: above all the session of the members that were killed, which is a setting.\n\n| | guarantee | killed | rows lost | rows doubled | longest pause, s | books |\n|---|---|---|---|---|---|---|\n",
        machine::describe(version, options.workload.seed),
        bench.totals.records,
    );
    let mut product = None;
    for peer in wanted.iter().copied() {
        let outcome = one(bench, peer).await?;
        println!("{}: {outcome:?}", peer.name());
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {:.1} | {} |",
            peer.name(),
            peer.guarantee().words(),
            outcome.struck,
            outcome.lost,
            outcome.doubled,
            outcome.longest.as_secs_f64(),
            outcome.books.replace('|', "/").replace('\n', " "),
        )?;
        if peer == Peer::Product {
            product = Some(outcome);
        }
    }
    publish("peers-kill", &out, !options.dry)?;
    if let Some(outcome) = product {
        let right = outcome.struck == STRIKES.len()
            && outcome.lost + outcome.doubled == 0
            && outcome.books == AS_MADE;
        ensure!(right, "the product: {outcome:?}");
    }
    Ok(())
}

const AS_MADE: &str = "as made";

async fn one(bench: &Bench<'_>, peer: Peer) -> anyhow::Result<Outcome> {
    let database = bench.stack.fresh_database(bench.tuning.partitions).await?;
    let client = database.client().await;
    let run = run_name(peer);
    let state = State::new(&run)?;
    bench.make_topics(peer, &run).await?;
    let given = bench.given(peer, &run, database.url(), state.path());
    let mut running = peer.start(&given)?;
    let (column, goal) = bench.goal(peer);
    let sql =
        format!("SELECT coalesce(sum({column}), 0)::bigint FROM positions WHERE group_name = $1");
    let sql = client.prepare(&sql).await?;
    let mut outcome = Outcome::default();
    let (mut at, mut moved) = (0, Instant::now());
    let mut every = tokio::time::interval(Duration::from_millis(20));
    let stopped = loop {
        every.tick().await;
        let now = client.query_one(&sql, &[&peer.group()]).await?;
        let now = u64::try_from(now.get::<_, i64>(0))?;
        if now != at {
            if at > 0 {
                outcome.longest = outcome.longest.max(moved.elapsed());
            }
            (at, moved) = (now, Instant::now());
        }
        if at >= goal {
            if moved.elapsed() > QUIET {
                break None;
            }
            continue;
        }
        if let Err(e) = running.iter_mut().try_for_each(|(_, r)| r.check()) {
            break Some(e.to_string());
        }
        if moved.elapsed() > PATIENCE {
            break Some(format!("stands still at {at} of {goal}"));
        }
        let strike = STRIKES.get(outcome.struck);
        if strike.is_some_and(|share| at as f64 >= share * goal as f64) {
            for (_, process) in &mut running {
                kill(process)?;
            }
            outcome.struck += 1;
            running = peer.start(&given)?;
        }
    };
    for (_, process) in &mut running {
        // What does not end by itself now has been counted with.
        if process.stop().await.is_err() {
            kill(process)?;
        }
    }
    bench.drop_topics(peer, &run).await?;
    count(bench, peer, &client, &mut outcome).await?;
    if let Some(why) = stopped {
        outcome.books = format!("it did not go on: {why}");
    }
    Ok(outcome)
}

/// Kills a process, then those that it started: nobody else would end them.
fn kill(process: &mut Running) -> anyhow::Result<()> {
    let children = cpu::children(process.pid());
    process.kill()?;
    let raw = children.into_iter().filter_map(|c| i32::try_from(c).ok());
    for child in raw.filter_map(Pid::from_raw) {
        // One that has ended by itself needs no killing.
        let _ = kill_process(child, Signal::KILL);
    }
    Ok(())
}

async fn count(
    bench: &Bench<'_>,
    peer: Peer,
    client: &Client,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let totals = &bench.totals;
    let (parked, _) = books::waiting(client).await?;
    for (table, id, made) in [
        ("visits", "visit_id", totals.visits),
        ("clicks", "record_id", totals.clicks),
        (
            "conversions",
            "conversion_id",
            totals.postbacks.saturating_sub(parked),
        ),
    ] {
        let sql = format!("SELECT count(*), count(DISTINCT {id}) FROM {table}");
        let row = client.query_one(&sql, &[]).await?;
        let n = |i: usize| u64::try_from(row.get::<_, i64>(i)).unwrap_or(0);
        outcome.count(n(0), n(1), made);
    }
    let verified = books::verify(client, peer.name(), totals).await;
    outcome.books = match verified {
        Err(e) => e.to_string(),
        Ok(()) => match bench.differ(client).await?.as_slice() {
            [] => AS_MADE.to_owned(),
            some => format!("not what the first contender wrote: {}", some.join(", ")),
        },
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_missing_do_not_hide_behind_rows_that_stand_twice() {
        let mut outcome = Outcome::default();
        outcome.count(100, 100, 100);
        assert_eq!((outcome.lost, outcome.doubled), (0, 0));
        // Ten are missing, ten stand twice.
        outcome.count(100, 90, 100);
        assert_eq!((outcome.lost, outcome.doubled), (10, 10));
        // Three came again as others.
        outcome.count(103, 103, 100);
        assert_eq!((outcome.lost, outcome.doubled), (10, 13));
    }
}
