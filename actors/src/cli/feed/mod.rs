//! `millrace feed send`: streams a recorded session to a shard's feed as a sidecar would. Needs neither settings nor a database.
//!
//! What lives here: the sending side, for trying a feed out. What may not: the door ([`crate::ingress::feed`]).

pub mod recording;
mod sender;

use super::Context;
use super::output::Listing;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use recording::Run;
use sender::{Sender, Tally, Target};
use serde_json::json;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How many refused frames are named.
const NAMED: usize = 10;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Stream a recorded session: hello, frames, again after a cut, until everything is acknowledged.
    #[command(after_help = "Examples:\n  \
        millrace feed send config/demo/shard.ndjson --url http://127.0.0.1:8080/feed/atlantic --token ft_…\n  \
        MILLRACE_FEED_TOKEN=ft_… millrace feed send session.ndjson --url wss://t.example.com/feed/atlantic --rate 50\n  \
        millrace --json feed send session.ndjson --url ws://127.0.0.1:8080/feed/atlantic --from-seq 500\n\
        A session is NDJSON: `{\"type\":\"hello\",\"protocol\":5,\"boot\":\"b1\"}`, then frames `{\"seq\":1,\"kind\":\"…\",\"body\":{…}}`;\n\
        each further hello is a restart of the shard. Sent twice it does nothing twice: the door says where to go on.\n\
        Exit codes: 0 everything was acknowledged and nothing refused, 1 not so, 2 wrong words or a file that is no session.")]
    Send(Send),
}

#[derive(Debug, clap::Args)]
pub(super) struct Send {
    /// The recorded session, NDJSON.
    file: PathBuf,
    /// The shard's feed: http, https, ws or wss, as http://127.0.0.1:8080/feed/atlantic.
    #[arg(long)]
    url: String,
    /// A token of the shard's feed.
    #[arg(long, env = "MILLRACE_FEED_TOKEN", hide_env_values = true)]
    token: String,
    /// Frames a second at most [default: as fast as the door takes them].
    #[arg(long, value_parser = positive)]
    rate: Option<f64>,
    /// Begin with this sequence of the first boot; what comes before is not sent.
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
    from_seq: Option<u64>,
    /// Give up after so many seconds without progress.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("want a number above 0".to_owned()),
    }
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let Args::Send(args) = args;
    let wrong = |why: &dyn std::fmt::Display| {
        eprintln!("error: {why}");
        Ok(ExitCode::from(2))
    };
    let runs = match recording::read(&args.file) {
        Ok(runs) => runs,
        Err(error) => return wrong(&error),
    };
    let Some(url) = socket_url(&args.url) else {
        return wrong(
            &"--url: want http, https, ws or wss, as http://127.0.0.1:8080/feed/atlantic",
        );
    };
    // Not there twice: whoever put one in first keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let target = Target {
        url,
        token: args.token,
        rate: args.rate,
        patience: Duration::from_secs(args.patience),
    };
    let skipped = args.from_seq.unwrap_or(1) - 1;
    let begun = Instant::now();
    let bar = bar(&runs);
    let mut done = Vec::new();
    let mut failed = None;
    let mut before = 0;
    for (index, run) in runs.iter().enumerate() {
        let after = if index == 0 { skipped } else { 0 };
        let mut sender = Sender::new(&target, run, after);
        let base = before;
        let sent = sender
            .send(|seq| {
                if let Some(bar) = &bar {
                    let place = run.frames.partition_point(|f| f.seq <= seq);
                    bar.set_position(base + u64::try_from(place).unwrap_or(0));
                    bar.set_message(run.boot.clone());
                }
            })
            .await;
        before += u64::try_from(run.frames.len()).unwrap_or(0);
        done.push((run, std::mem::take(&mut sender.tally)));
        if let Err(error) = sent {
            failed = Some(error);
            break;
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    summary(context, &done, begun.elapsed())?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    let refused = done.iter().any(|(_, t)| !t.refused.is_empty());
    Ok(if refused {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What became of a session that was played without a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Played {
    /// Frames of the session.
    pub frames: u64,
    /// Those among them that the door has acknowledged, now or before.
    pub acknowledged: u64,
    /// Those that it refused, each with its reason.
    pub refused: Vec<String>,
}

/// Streams the text of a session to a shard's feed, as fast as the door takes it.
///
/// # Errors
/// It is no session, the URL is none, the door refuses, or nothing moves for `patience`.
pub(in crate::cli) async fn play(
    text: &str,
    url: &str,
    token: &str,
    patience: Duration,
) -> anyhow::Result<Played> {
    let runs = recording::parse(text)?;
    let target = Target {
        url: socket_url(url).context("the feed's URL")?,
        token: token.to_owned(),
        rate: None,
        patience,
    };
    let mut played = Played::default();
    for run in &runs {
        let mut sender = Sender::new(&target, run, 0);
        sender.send(|_| {}).await?;
        played.frames += u64::try_from(run.frames.len()).unwrap_or(0);
        played.acknowledged += sender.tally.settled + sender.tally.known;
        let refused = sender.tally.refused.iter();
        played
            .refused
            .extend(refused.map(|(seq, why)| format!("{} {seq}: {why}", run.boot)));
    }
    Ok(played)
}

fn socket_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let scheme = match scheme {
        "http" | "ws" => "ws",
        "https" | "wss" => "wss",
        _ => return None,
    };
    (!rest.is_empty()).then(|| format!("{scheme}://{rest}"))
}

fn bar(runs: &[Run]) -> Option<ProgressBar> {
    let total: usize = runs.iter().map(|r| r.frames.len()).sum();
    let style = ProgressStyle::with_template(
        "sending {bar:40} {pos}/{len} frames, {per_sec}, boot {msg} {elapsed_precise}",
    );
    style
        .ok()
        .filter(|_| std::io::stderr().is_terminal())
        .map(|style| ProgressBar::new(u64::try_from(total).unwrap_or(0)).with_style(style))
}

fn summary(context: &Context, done: &[(&Run, Tally)], took: Duration) -> anyhow::Result<()> {
    let mut listing = Listing::new(&[
        "boot",
        "frames",
        "known_before",
        "sent",
        "acknowledged",
        "refused",
        "reconnects",
    ]);
    for (run, tally) in done {
        listing.row(vec![
            json!(run.boot),
            json!(run.frames.len()),
            json!(tally.known),
            json!(tally.sent),
            json!(tally.settled),
            json!(tally.refused.len()),
            json!(tally.again),
        ]);
    }
    context.answer(&listing)?;
    for (run, tally) in done {
        for (seq, why) in tally.refused.iter().take(NAMED) {
            eprintln!("refused: {} {seq}: {why}", run.boot);
        }
    }
    let settled: u64 = done.iter().map(|(_, t)| t.settled).sum();
    let seconds = took.as_secs_f64();
    if !context.json() && seconds > 0.0 {
        eprintln!(
            "{settled} frames in {seconds:.1} s, {:.0} a second",
            settled as f64 / seconds
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_either_kind_are_taken() {
        assert_eq!(
            socket_url("https://x/feed/a").as_deref(),
            Some("wss://x/feed/a")
        );
        assert_eq!(
            socket_url("ws://x/feed/a").as_deref(),
            Some("ws://x/feed/a")
        );
        assert_eq!(socket_url("x/feed/a"), None);
        assert_eq!(socket_url("ftp://x"), None);
        assert_eq!(socket_url("ws://"), None);
    }

    #[test]
    fn a_rate_is_above_nothing() {
        assert!(positive("0.5").is_ok());
        for bad in ["0", "-1", "x", "inf", "NaN"] {
            assert!(positive(bad).is_err(), "{bad}");
        }
    }
}
