//! `delivery email`: mail to a local server, the product and lettre's connections alone at the same concurrency.

use super::sending::{self, Arrived, arrive, middle, rates, show};
use super::smtp;
use super::store::{Outbox, Store, now_secs};
use crate::machine;
use crate::report::{publish, verdict};
use millrace::cli::demo::stand_ins::mail::Mail;
use millrace_schemas::notification::{Action, GenericBody, Notification};
use millrace_schemas::time::Micros;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How to measure mail.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Mails a round.
    #[arg(long, default_value_t = 10_000)]
    messages: u32,
    /// Connections at once.
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// How long the server takes for each of its replies, in milliseconds; each is a measurement of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 0])]
    latency: Vec<u64>,
    /// Rounds of each contender, in turns; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    dry: bool,
}

/// Wanted of lettre's rate.
const SHARE: f64 = 0.8;

/// Measures it.
///
/// # Errors
/// The store, the product or the comparator fails, or a mail is lost or doubled.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    let store = Store::start().await?;
    sending::pin(&store)?;
    let mut all = Vec::new();
    for latency in &options.latency {
        let mut rounds = Rounds {
            latency: *latency,
            ..Rounds::default()
        };
        for n in 0..options.rounds.max(1) {
            for turn in 0..2 {
                if (n + turn) % 2 == 0 {
                    let (round, tail) = ours(&store, options, *latency).await?;
                    show("product", &round);
                    rounds.with.push(round);
                    rounds.tails.push(tail.as_secs_f64() * 1e3);
                } else {
                    let round = bare(&store, options, *latency).await?;
                    show("bare lettre", &round);
                    rounds.without.push(round);
                }
            }
        }
        all.push(rounds);
    }
    publish("delivery-email", &section(options, &all)?, !options.dry)
}

/// What was measured with a server that takes so long, in milliseconds.
#[derive(Default)]
struct Rounds {
    latency: u64,
    with: Vec<Arrived>,
    without: Vec<Arrived>,
    /// From the last mail taken to the last end written down, in milliseconds.
    tails: Vec<f64>,
}

fn server(latency: u64) -> anyhow::Result<Mail> {
    let mail = Mail::start()?;
    mail.count_only();
    mail.take_so_long(Duration::from_millis(latency));
    Ok(mail)
}

/// The payload of a notice of the usual size.
pub(super) fn notice(n: u32) -> String {
    let notice = Notification {
        v: 1,
        user: format!("u{}", n % 100),
        trigger: "core.news".to_owned(),
        scope: "team:12".to_owned(),
        dedupe_key: format!("core.news:{n}"),
        at: Micros(now_secs() * 1_000_000),
        body: GenericBody {
            title: format!("A house falls: number {n}"),
            intro: "It was last refreshed four days ago, and collapses within the hour unless somebody opens its door."
                .to_owned(),
            action: Some(Action {
                label: "Look".to_owned(),
                url: format!("/houses/{n}"),
            }),
            ..GenericBody::default()
        },
        ..Notification::default()
    };
    // Nothing in it could have no JSON form; an empty payload would be refused by the store.
    serde_json::to_string(&notice).unwrap_or_default()
}

/// A hundred users who want their mail, and a transport to a port of this machine: its destination.
///
/// # Errors
/// The store's.
pub(super) async fn place(outbox: &Outbox, port: u16) -> anyhow::Result<i32> {
    let client = outbox.session.client();
    client
        .execute(
            "INSERT INTO users (workspace_id, user_id, email, email_verified, changed_at)
             SELECT $1, 'u' || n, 'u' || n || '@example.com', true, now() FROM generate_series(0, 99) AS n",
            &[&outbox.workspace],
        )
        .await?;
    client
        .execute(
            "INSERT INTO preferences (workspace_id, user_id, stream_id, channel, mode, changed_at)
             SELECT $1, 'u' || n, 'core.news', 'email', 'instant', now() FROM generate_series(0, 99) AS n",
            &[&outbox.workspace],
        )
        .await?;
    client
        .execute(
            "INSERT INTO mail_transports (workspace_id, transport_id, enabled, host, port, security, sender_address, brand_name,
                    site_url, message_domain)
             VALUES ($1, 'mt_bench', true, '127.0.0.1', $2, 'none', 'news@sender.example', 'Sosaria', 'https://site.example',
                     'sender.example')",
            &[&outbox.workspace, &i32::from(port)],
        )
        .await?;
    millrace_tests::outbox::destination(client, outbox.workspace, "email", "mt_bench").await
}

async fn ours(
    store: &Store,
    options: &Options,
    latency: u64,
) -> anyhow::Result<(Arrived, Duration)> {
    let mail = server(latency)?;
    let outbox = store.fresh().await?;
    let no = place(&outbox, mail.address().port()).await?;
    outbox
        .fill("email", &[no], 0..options.messages, notice)
        .await?;
    let settings = [
        (
            "MILLRACE_DELIVERY__EMAIL__CONCURRENCY",
            options.concurrency.to_string(),
        ),
        ("MILLRACE_HTTP__PUBLIC_URL", "https://m.example".to_owned()),
    ];
    let mut process = sending::start_product(&outbox, &settings)?;
    let messages = u64::from(options.messages);
    let round = arrive(store, &mut process, messages, || mail.counts().taken as u64).await?;
    let last = Instant::now();
    outbox.drained(&[no], || process.check()).await?;
    let tail = last.elapsed();
    process.stop().await?;
    outbox.verify(&[no], options.messages).await?;
    once(&mail, messages)?;
    Ok((round, tail))
}

async fn bare(store: &Store, options: &Options, latency: u64) -> anyhow::Result<Arrived> {
    let mail = server(latency)?;
    let mut process = sending::start_smtp(&smtp::Options {
        port: mail.address().port(),
        messages: options.messages,
        concurrency: options.concurrency,
    })?;
    let messages = u64::from(options.messages);
    let round = arrive(store, &mut process, messages, || mail.counts().taken as u64).await?;
    process.stop().await?;
    once(&mail, messages)?;
    Ok(round)
}

fn once(mail: &Mail, messages: u64) -> anyhow::Result<()> {
    let taken = mail.counts().taken as u64;
    anyhow::ensure!(taken == messages, "{taken} mails were taken");
    Ok(())
}

fn section(options: &Options, all: &[Rounds]) -> anyhow::Result<String> {
    let mut out = String::new();
    writeln!(out, "## Mail\n")?;
    writeln!(out, "{}\n", machine::describe(None, None::<u64>))?;
    writeln!(
        out,
        "{} mails a round to one local server, {} connections; the sender alone on one core, server and PostgreSQL (durable) on the\nother. The product is `millrace run --roles delivery` over a filled outbox: each mail is rendered, and its user asked about, right\nbefore it is sent. The comparator is as many of lettre's\nconnections kept open (its pool leaves Nagle's algorithm on: 40 ms a mail), with one message made beforehand. Rates as the server sees them,\nmedians of {} rounds in turns. Where the server takes its time for each reply, the connections bound both sides; where it takes\nnone, the processor does.\n",
        options.messages,
        options.concurrency,
        options.rounds.max(1),
    )?;
    writeln!(
        out,
        "| a reply takes | | mails/s | CPU-µs a mail (sender) | CPU-µs a mail (PostgreSQL) | CPU-µs a mail (server) |\n|---|---|---|---|---|---|"
    )?;
    for rounds in all {
        let ms = rounds.latency;
        for (name, r) in [
            ("mail", middle(&rounds.with)),
            ("bare lettre", middle(&rounds.without)),
        ] {
            writeln!(
                out,
                "| {ms} ms | {name} | {:.0} | {:.1} | {:.1} | {:.1} |",
                r.rate, r.sender, r.postgres, r.receiver
            )?;
        }
    }
    for rounds in all {
        let (p, b) = (middle(&rounds.with), middle(&rounds.without));
        let ratio = p.rate / b.rate;
        writeln!(
            out,
            "\nMail to bare lettre, {} ms a reply: **{ratio:.3}** (wanted ≥ {SHARE:.2}: {}). All rounds, mails/s: mail {}; bare {}. The last ends were\nwritten down {:.0} ms after the last mail was taken. Others used up to {:.2} cores meanwhile.",
            rounds.latency,
            verdict(ratio >= SHARE),
            rates(&rounds.with),
            rates(&rounds.without),
            crate::report::median(&rounds.tails),
            p.others.max(b.others),
        )?;
    }
    Ok(out)
}
