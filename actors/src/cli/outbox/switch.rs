//! Pausing and going on: a destination, a channel, everything.

use crate::cli::Context;
use crate::cli::context::found;
use crate::cli::output::Listing;
use crate::delivery::holds::{self, EVERYTHING, Place};
use anyhow::bail;
use millrace_schemas::time::Micros;
use serde_json::json;
use std::collections::HashMap;
use std::process::ExitCode;
use tokio_postgres::Client;

/// Who pauses, as it is written down.
const BY: &str = "cli";
/// Messages counted for one destination at most.
const COUNTED: i64 = 100_000;

/// What is meant.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct What {
    /// A destination: `px_…`, `wh_…`, or its number.
    destination: Option<String>,
    /// A whole channel.
    #[arg(long)]
    channel: Option<String>,
    /// Everything.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    #[command(flatten)]
    what: What,
    /// Why, for whoever finds it paused.
    #[arg(long)]
    reason: String,
}

enum Meant {
    Destination(Place),
    Channel(String),
}

impl Meant {
    async fn of(client: &Client, what: What) -> anyhow::Result<Meant> {
        if let Some(named) = what.destination {
            let place = found(holds::find(client, None, &named).await?, || {
                format!("no destination `{named}`; `millrace outbox destinations` shows them")
            })?;
            return Ok(Meant::Destination(place));
        }
        let Some(channel) = what.channel else {
            return Ok(Meant::Channel(EVERYTHING.to_owned()));
        };
        let known = client
            .query("SELECT DISTINCT channel FROM destinations UNION SELECT channel FROM paused_channels ORDER BY 1", &[])
            .await?;
        let known: Vec<String> = known.iter().map(|r| r.get(0)).collect();
        if !known.contains(&channel) {
            bail!(
                "nothing goes out by a channel `{channel}`; there are: {}",
                known.join(", ")
            );
        }
        Ok(Meant::Channel(channel))
    }

    fn name(&self) -> String {
        match self {
            Meant::Destination(place) => place.reference.clone(),
            Meant::Channel(channel) if channel == EVERYTHING => "everything".to_owned(),
            Meant::Channel(channel) => format!("channel `{channel}`"),
        }
    }

    /// The words that name it.
    fn words(&self) -> String {
        match self {
            Meant::Destination(place) => place.reference.clone(),
            Meant::Channel(channel) if channel == EVERYTHING => "--all".to_owned(),
            Meant::Channel(channel) => format!("--channel {channel}"),
        }
    }
}

pub(super) async fn pause(
    context: &Context,
    client: &Client,
    pause: Pause,
) -> anyhow::Result<ExitCode> {
    let meant = Meant::of(client, pause.what).await?;
    match &meant {
        Meant::Destination(place) => holds::pause(client, place.no, &pause.reason, BY).await?,
        Meant::Channel(channel) => holds::hold(client, channel, &pause.reason, BY).await?,
    }
    context.say(
        &format!(
            "{} is paused; `millrace outbox resume {}` goes on",
            meant.name(),
            meant.words()
        ),
        &json!({"what": meant.words(), "paused": true, "reason": pause.reason}),
    )?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn resume(
    context: &Context,
    client: &Client,
    what: What,
) -> anyhow::Result<ExitCode> {
    let meant = Meant::of(client, what).await?;
    let was = match &meant {
        Meant::Destination(place) => holds::resume(client, place.no).await?,
        Meant::Channel(channel) => holds::let_go(client, channel).await?,
    };
    let mut text = match was {
        true => format!("{} goes on", meant.name()),
        false => format!("{} was not paused", meant.name()),
    };
    if let Meant::Destination(Place {
        channel_pause: Some(reason),
        channel,
        ..
    }) = &meant
    {
        text.push_str(&format!(
            "; channel `{channel}`, or everything, is held all the same: {reason}"
        ));
    }
    context.say(
        &text,
        &json!({"what": meant.words(), "paused": false, "was_paused": was}),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Lets everything go on that was held as a whole.
pub(super) async fn let_go(context: &Context, client: &Client) -> anyhow::Result<ExitCode> {
    let was = holds::let_go(client, EVERYTHING).await?;
    let text = match was {
        true => "the outbox goes on; destinations and channels that are paused stay so",
        false => "the outbox was not held",
    };
    context.say(text, &json!({"held": false, "was_held": was}))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn destinations(client: &Client, paused: bool) -> anyhow::Result<Listing> {
    let sql = format!(
        "SELECT {} FROM {} WHERE NOT $1 OR paused_code IS NOT NULL OR channel_pause IS NOT NULL ORDER BY destination_no LIMIT 10000",
        holds::COLUMNS,
        holds::FROM
    );
    let places = client
        .query(&sql, &[&paused])
        .await?
        .iter()
        .map(Place::read)
        .collect::<Result<Vec<_>, _>>()?;
    let numbers: Vec<i32> = places.iter().map(|p| p.no).collect();
    let waiting: HashMap<i32, (i64, Option<Micros>)> = holds::waiting(client, &numbers, COUNTED)
        .await?
        .into_iter()
        .map(|(no, n, oldest)| (no, (n, oldest)))
        .collect();
    let slugs = super::slugs(client).await?;
    let mut listing = Listing::new(&[
        "destination",
        "no",
        "workspace",
        "channel",
        "name",
        "status",
        "waiting",
        "oldest_due_at",
        "paused",
        "since",
        "reason",
    ]);
    for p in places {
        let (n, oldest) = waiting.get(&p.no).copied().unwrap_or_default();
        let (code, at, reason) = match (p.pause, p.channel_pause) {
            (Some(pause), _) => (Some(pause.code), Some(pause.at), Some(pause.reason)),
            (None, Some(reason)) => (Some("held".to_owned()), None, Some(reason)),
            (None, None) => (None, None, None),
        };
        listing.row(vec![
            json!(p.reference),
            json!(p.no),
            json!(slugs.get(&p.workspace)),
            json!(p.channel),
            json!(p.name),
            json!(p.status),
            json!(n),
            json!(oldest.map(Micros::rfc3339)),
            json!(code),
            json!(at.map(Micros::rfc3339)),
            json!(reason),
        ]);
    }
    Ok(listing)
}
