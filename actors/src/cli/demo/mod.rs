//! `millrace demo`: real traffic becomes booked conversions, and a recount says whether everything adds up.
//!
//! - [`access`]: the log that is replayed. [`scenery`]: networks, offers, campaigns. [`dice`]: chance that is the same each run.
//! - [`stand_ins`]: whom it delivers to, Meta, a receiver of webhooks and a catcher of mail, on loopback.
//! - [`traffic`]: what is sent and what is expected of it; written by `stories` (visitors) and `networks` (postbacks).
//! - [`stage`]: everything of `millrace up` on an empty database. [`setup`]: the scenery, made over the admin API.
//! - [`drive`]: sends the plan through the doors. `progress`: how far it is.
//! - [`shard`]: the recorded session of a game's shard, its players, and the wait until everything of it is decided.
//! - [`notices`]: what they were told and what was held back.
//! - [`recount`]: plain SQL over stored facts. [`deliveries`]: the same of messages. [`report`]: the checks. [`table`]: for people.
//!
//! What may not live here: anything that the product itself needs.

pub mod access;
pub mod deliveries;
pub mod dice;
pub mod drive;
mod networks;
pub mod notices;
mod progress;
pub mod recount;
pub mod report;
pub mod scenery;
pub mod setup;
pub mod shard;
pub mod stage;
pub mod stand_ins;
mod stories;
pub mod table;
pub mod traffic;

use super::Context;
use super::signals::Signals;
use crate::verify;
use anyhow::{Context as _, bail};
use drive::{Driver, Sent};
use millrace_schemas::time::Micros;
use progress::Progress;
use report::{Report, Run};
use scenery::Scenery;
use stage::Stage;
use stand_ins::StandIns;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use traffic::Plan;

/// Lines of the log in one wave.
const WAVE: usize = 500;
/// The same when the log's own pace is kept.
const PACED_WAVE: usize = 20;
/// How long the actors may consume nothing before the demo says so.
const PATIENCE: Duration = Duration::from_secs(30);

/// Replays a real access log against everything of `millrace up`, and shows that all of it adds up.
///
/// Page views become visits, entrances become ad clicks, networks report conversions with every kind of trouble: repeats, early
/// arrivals, malformed payouts, unfilled macros, bad secrets. Clicks and conversions are delivered to a webhook and to Meta, for
/// which two stand-ins listen on loopback; not everything gets through at the first try. Beside it a game's shard plays a recorded
/// evening: its players are told in their inboxes and by mail, which a catcher keeps and shows. The tables at the end are recounted
/// from stored facts. Without `--exit` the demo stays up until Ctrl-C. Its data lie under ./data/demo, made anew in every run.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  millrace demo\n  millrace demo --exit --report demo-report.json\n  \
    millrace demo --lines 2000 --speed 3600     (an hour of the log a second)"
)]
pub(super) struct Args {
    /// End after the table; the exit code says whether it adds up.
    #[arg(long)]
    exit: bool,
    /// Write the table as JSON too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Replay so many lines of the log, from its beginning [default: all 10 000].
    #[arg(long, value_name = "N")]
    lines: Option<usize>,
    /// Keep the log's own pace, so many times faster [default: as fast as the doors take it].
    #[arg(long, value_name = "TIMES")]
    speed: Option<f64>,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    if args.speed.is_some_and(|s| !s.is_finite() || s <= 0.0) {
        bail!("--speed is a number above 0");
    }
    let mut signals = Signals::listen()?;
    let begun = Instant::now();
    let mut settings = context.settings().clone();
    let stand_ins = StandIns::start()?;
    stand_ins.furnish(&mut settings);
    let stage = tokio::select! {
        stage = Stage::set(settings, |text| eprintln!("{text}")) => stage?,
        _ = signals.next() => return Ok(ExitCode::FAILURE),
    };
    eprintln!(
        "up after {:.1} s: {}",
        begun.elapsed().as_secs_f64(),
        stage.doors
    );
    let mut scenery = Scenery::new();
    let played = tokio::select! {
        played = play(&stage, &stand_ins, &mut scenery, &args) => played.map(Some),
        why = stage.failed() => Err(anyhow::anyhow!(why)),
        _ = signals.next() => Ok(None),
    };
    let ended = match played {
        Ok(Some(report)) => {
            let mail_url = &stand_ins.mail_url;
            show(
                context,
                &stage,
                &scenery,
                mail_url,
                &report,
                &args,
                &mut signals,
            )
            .await
        }
        Ok(None) => {
            eprintln!("interrupted");
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error),
    };
    signals.end_at_once_on_the_next();
    stage.stop().await;
    stand_ins.stop().await;
    ended
}

/// From the scenery to the judged report.
async fn play(
    stage: &Stage,
    stand_ins: &StandIns,
    scenery: &mut Scenery,
    args: &Args,
) -> anyhow::Result<Report> {
    setup::make(&stage.admin, &stage.doors, &stage.key, scenery, stand_ins).await?;
    let text = access::unpack().context("the access log inside this program")?;
    let lines = access::read(&text, args.lines.unwrap_or(usize::MAX));
    let wave = if args.speed.is_some() {
        PACED_WAVE
    } else {
        WAVE
    };
    let plan = traffic::plan(&lines, scenery, wave);
    let [entrances, onward, programs, others] = plan.lines;
    eprintln!(
        "{} lines of the log: {entrances} entrances, {onward} pages onward, {programs} pages for crawlers and feed readers; \
         {others} others (images, scripts, errors) are left out",
        lines.len()
    );
    let shift = lines
        .iter()
        .map(|l| l.at.0)
        .max()
        .map_or(0, |last| jiff::Timestamp::now().as_microsecond() - last);
    let driver = Driver::new(&stage.doors, &stage.key, scenery, &plan, shift)?;
    let mut client = stage.client().await?;
    let begun = Instant::now();
    let ((), session) = tokio::try_join!(
        replay(&driver, &plan, &client, args.speed),
        shard::stream(&stage.doors, &scenery.feed_token),
    )?;
    let sent = driver.into_sent();
    caught_up(&client, &sent).await?;
    shard::drained(&client, &stage.log()).await?;
    let seconds = begun.elapsed().as_secs_f64();
    deliveries::delivered(&client).await?;
    let found = recount::recount(&mut client).await?;
    let delivered = deliveries::recount(&mut client, &scenery.pixel).await?;
    let told = notices::recount(&mut client).await?;
    let verified = verify::run(&client, &verify::Options::default())
        .await
        .context("verifying the store")?;
    Ok(Report::new(Run {
        plan: &plan,
        scenery,
        sent: &sent,
        found: &found,
        delivered: &delivered,
        notices: &told,
        session: &session,
        counts: &stand_ins.counts(),
        verified: &verified,
        seconds,
    }))
}

/// Sends everything, in waves; then the visits that were held back until their postbacks wait.
async fn replay(
    driver: &Driver<'_>,
    plan: &Plan,
    client: &tokio_postgres::Client,
    speed: Option<f64>,
) -> anyhow::Result<()> {
    let progress = Progress::new(u64::try_from(plan.calls()).unwrap_or(u64::MAX));
    let begun = Instant::now();
    let first = plan.waves.first().map_or(Micros(0), |w| w.until);
    for wave in &plan.waves {
        progress.at(&wave.until.rfc3339());
        if let Some(speed) = speed {
            let passed = Duration::from_micros(u64::try_from(wave.until.0 - first.0).unwrap_or(0));
            let due = passed.div_f64(speed);
            tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
        }
        for step in &wave.steps {
            driver.send_all(step, || progress.one()).await;
        }
    }
    if !plan.held.is_empty() {
        // Only now, when what came too early has been read and waits.
        caught_up_to(client, driver.accepted()).await?;
        driver.send_all(&plan.held, || progress.one()).await;
    }
    progress.finish();
    Ok(())
}

async fn caught_up(client: &tokio_postgres::Client, sent: &Sent) -> anyhow::Result<()> {
    caught_up_to(client, sent.accepted()).await
}

/// Waits until the actors have consumed so many records. Gives up, without failing, when they consume nothing for a while:
/// the recount then says what is missing.
async fn caught_up_to(client: &tokio_postgres::Client, accepted: u64) -> anyhow::Result<()> {
    let wanted = i64::try_from(accepted).unwrap_or(i64::MAX);
    let mut last = (0, Instant::now());
    loop {
        let consumed = recount::consumed(client)
            .await
            .context("reading positions")?;
        if consumed >= wanted {
            return Ok(());
        }
        if consumed != last.0 {
            last = (consumed, Instant::now());
        } else if last.1.elapsed() > PATIENCE {
            eprintln!(
                "nothing was consumed for {} s: {consumed} of {wanted} records",
                PATIENCE.as_secs()
            );
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The table, the file, and, unless it is to end, what a person can try until Ctrl-C.
async fn show(
    context: &Context,
    stage: &Stage,
    scenery: &Scenery,
    mail_url: &str,
    report: &Report,
    args: &Args,
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let value = serde_json::to_value(report).context("the report as JSON")?;
    if let Some(path) = &args.report {
        write(path, &value)?;
    }
    context.say(&table::render(report), &value)?;
    if !args.exit {
        eprintln!("{}", table::try_these(stage, scenery, mail_url));
        tokio::select! {
            _ = signals.next() => {}
            why = stage.failed() => bail!(why),
        }
    }
    Ok(if report.balanced {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn write(path: &Path, value: &serde_json::Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("the report as JSON")?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}
