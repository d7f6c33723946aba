//! What the measurements over HTTP share: the product as `millrace run --roles delivery` on a core of its own, the comparator on
//! the same, endpoints and pixels as the API would make them, and what arrived in which time.

use super::post;
use super::smtp;
use super::store::{Outbox, Store};
use crate::contender::{Running, product};
use crate::cpu::{self, Clocks};
use anyhow::{Context, ensure};
use millrace::delivery::meta::settings::token_purpose;
use millrace::delivery::webhook::settings::seal_purpose;
use millrace::sealing::Seals;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// The sender's core.
const SENDER_CPU: u32 = 0;
/// The core of PostgreSQL and of the receivers, which live in this process.
const OTHERS_CPU: u32 = 1;
/// What seals here.
pub const KEY: &str = "4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d";
/// What signs.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Without an arrival for so long, a round is given up.
const STUCK: Duration = Duration::from_secs(60);

/// Puts the store and this process on the core that is not the sender's.
///
/// # Errors
/// There is no `taskset`.
pub fn pin(store: &Store) -> anyhow::Result<()> {
    cpu::pin_tree(store.pid(), OTHERS_CPU)?;
    cpu::pin(std::process::id(), OTHERS_CPU)
}

fn pinned(program: PathBuf) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &SENDER_CPU.to_string()]).arg(program);
    command
}

/// The product: delivery alone.
///
/// # Errors
/// It is not built.
pub fn start_product(outbox: &Outbox, settings: &[(&str, String)]) -> anyhow::Result<Running> {
    let mut command = pinned(product()?);
    command
        .args(["run", "--roles", "delivery"])
        .env("DATABASE_URL", outbox.url())
        .env("MILLRACE_SECRET_KEY", KEY)
        .env("MILLRACE_HTTP__DOORS", "127.0.0.1:0")
        .env("MILLRACE_HTTP__ADMIN", "127.0.0.1:0")
        .env("MILLRACE_DELIVERY__ALLOWED_NETWORKS", "127.0.0.0/8")
        .env("RUST_LOG", "error");
    for (name, value) in settings {
        command.env(name, value);
    }
    Running::start(command, "delivery")
}

/// The comparator.
///
/// # Errors
/// It cannot be started.
pub fn start_bare(options: &post::Options) -> anyhow::Result<Running> {
    let form = match options.form {
        post::Form::Webhook => "webhook",
        post::Form::Meta => "meta",
    };
    let mut command = pinned(std::env::current_exe()?);
    command
        .args(["deliver-post", "--url", &options.url, "--form", form])
        .args(["--messages", &options.messages.to_string()])
        .args(["--concurrency", &options.concurrency.to_string()])
        .args(["--now", &options.now.to_string()])
        .args(["--pixels", &options.pixels.to_string()])
        .args(["--batch", &options.batch.to_string()]);
    Running::start(command, "bare reqwest")
}

/// lettre alone.
///
/// # Errors
/// It cannot be started.
pub fn start_smtp(options: &smtp::Options) -> anyhow::Result<Running> {
    let mut command = pinned(std::env::current_exe()?);
    command
        .args(["deliver-smtp", "--port", &options.port.to_string()])
        .args(["--messages", &options.messages.to_string()])
        .args(["--concurrency", &options.concurrency.to_string()]);
    Running::start(command, "bare lettre")
}

fn seal(purpose: &str, secret: &str) -> anyhow::Result<Vec<u8>> {
    Ok(Seals::from_texts(Some(KEY), None)?.seal(purpose, secret.as_bytes())?)
}

/// An endpoint; its destination.
///
/// # Errors
/// The store's.
pub async fn endpoint(outbox: &Outbox, id: &str, url: &str) -> anyhow::Result<i32> {
    endpoint_in(outbox.session.client(), outbox.workspace, id, url).await
}

/// The same, wherever.
///
/// # Errors
/// The store's.
pub async fn endpoint_in(
    client: &Client,
    workspace: i32,
    id: &str,
    url: &str,
) -> anyhow::Result<i32> {
    client
        .execute(
            "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events, secret_sealed)
             VALUES ($1, $2, $1, $3, '{conversion}', $4)",
            &[&id, &workspace, &url, &seal(&seal_purpose(id), SECRET)?],
        )
        .await?;
    millrace_tests::outbox::destination(client, workspace, "webhook", id).await
}

/// A pixel; its destination.
///
/// # Errors
/// The store's.
pub async fn pixel(outbox: &Outbox, id: &str, dataset: &str, token: &str) -> anyhow::Result<i32> {
    pixel_in(
        outbox.session.client(),
        outbox.workspace,
        id,
        dataset,
        token,
    )
    .await
}

/// The same, wherever.
///
/// # Errors
/// The store's.
pub async fn pixel_in(
    client: &Client,
    workspace: i32,
    id: &str,
    dataset: &str,
    token: &str,
) -> anyhow::Result<i32> {
    client
        .execute(
            "INSERT INTO pixels (pixel_id, workspace_id, name, dataset_id, access_token_sealed) VALUES ($1, $2, $1, $3, $4)",
            &[&id, &workspace, &dataset, &seal(&token_purpose(id), token)?],
        )
        .await?;
    millrace_tests::outbox::destination(client, workspace, "meta", id).await
}

/// What arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrived {
    /// Messages a second, from the first twentieth on.
    pub rate: f64,
    /// CPU-µs a message.
    pub sender: f64,
    /// See `sender`.
    pub postgres: f64,
    /// See `sender`; this process: the receivers, and the watching.
    pub receiver: f64,
    /// Cores that others than sender, PostgreSQL and receivers kept busy.
    pub others: f64,
}

/// Watches until all messages have arrived: `count` says how many have.
///
/// # Errors
/// Nothing comes any more, or the sender ended.
pub async fn arrive(
    store: &Store,
    sender: &mut Running,
    messages: u64,
    count: impl Fn() -> u64,
) -> anyhow::Result<Arrived> {
    let mut begun: Option<(u64, Clocks<2>, Instant)> = None;
    let (mut before, mut moved) = (0, Instant::now());
    let mut looked = Instant::now();
    loop {
        let now = count();
        if now > before {
            (before, moved) = (now, Instant::now());
        }
        if begun.is_none() && now * 20 >= messages {
            let clocks = Clocks::read([sender.pid(), store.pid()]);
            begun = Some((now, clocks, Instant::now()));
        }
        if now >= messages {
            break;
        }
        if looked.elapsed() > Duration::from_millis(200) {
            sender.check()?;
            looked = Instant::now();
        }
        ensure!(
            moved.elapsed() < STUCK,
            "{now} of {messages} arrived, then nothing: {}",
            sender.last_words()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (first, clocks, at) = begun.context("messages arrived")?;
    let seconds = at.elapsed().as_secs_f64();
    let spent = clocks.since();
    let measured = (messages - first) as f64;
    let [program, postgres] = spent.trees;
    let each = |d: Duration| d.as_secs_f64() * 1e6 / measured;
    Ok(Arrived {
        rate: measured / seconds.max(1e-3),
        sender: each(program),
        postgres: each(postgres),
        receiver: each(spent.own),
        others: spent.others(program + postgres + spent.own),
    })
}

/// The medians of rounds.
#[must_use]
pub fn middle(rounds: &[Arrived]) -> Arrived {
    let of =
        |f: fn(&Arrived) -> f64| crate::report::median(&rounds.iter().map(f).collect::<Vec<_>>());
    Arrived {
        rate: of(|r| r.rate),
        sender: of(|r| r.sender),
        postgres: of(|r| r.postgres),
        receiver: of(|r| r.receiver),
        others: of(|r| r.others),
    }
}

/// All rates, for a report.
#[must_use]
pub fn rates(rounds: &[Arrived]) -> String {
    let each: Vec<String> = rounds.iter().map(|r| format!("{:.0}", r.rate)).collect();
    each.join(", ")
}

/// For people who watch.
pub fn show(what: &str, r: &Arrived) {
    println!(
        "{what}: {:.0} messages/s; CPU-µs a message: sender {:.1}, PostgreSQL {:.1}, receiver {:.1}; others used {:.2} cores",
        r.rate, r.sender, r.postgres, r.receiver, r.others
    );
}
