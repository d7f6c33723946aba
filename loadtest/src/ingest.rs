//! The doors: `POST /e` acknowledged by Kafka, against a bare actix-web 204 that reads the same body. The server has a core of
//! its own; client, broker and PostgreSQL share the other.

use crate::client::{self, Seen};
use crate::contender::{Running, product};
use crate::report::{median, publish, verdict};
use crate::stack::Stack;
use crate::{cpu, machine};
use anyhow::ensure;
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use millrace_topics::catalogue::{CLICKS, POSTBACKS};
use millrace_topics::kafka::{KafkaAdmin, KafkaSettings};
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How to measure the doors.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Requests a round.
    #[arg(long, default_value_t = 200_000)]
    pub requests: usize,
    /// Connections, each with one request under way.
    #[arg(long, default_value_t = 256)]
    pub connections: usize,
    /// Rounds of each server, in turns.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Also measured with so many connections, one round each.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 128])]
    pub also: Vec<usize>,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

const SERVER_CPU: u32 = 0;
const CLIENT_CPU: u32 = 1;
const CAMPAIGN: &str = "bench";

/// One round of one server.
#[derive(Clone, Copy, Debug)]
struct Round {
    micros: f64,
    rate: f64,
    p50: f64,
    p99: f64,
    broker: f64,
}

/// Runs it.
///
/// # Errors
/// A server does not start, or answers anything but 204.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let stack = Stack::start().await?;
    let admin = KafkaAdmin::new(&KafkaSettings {
        brokers: stack.brokers().to_owned(),
        ..KafkaSettings::default()
    });
    for topic in [CLICKS, POSTBACKS] {
        admin.create_topic(topic, 8, 1).await?;
    }
    let database = stack.fresh_database(8).await?;
    configure(&database.client().await).await?;
    cpu::pin_tree(stack.kafka_pid(), CLIENT_CPU)?;
    cpu::pin_tree(stack.postgres_pid(), CLIENT_CPU)?;
    cpu::pin(std::process::id(), CLIENT_CPU)?;

    let (bare_at, doors_at) = (free()?, free()?);
    let mut command = pinned(std::env::current_exe()?);
    command.args([
        "bare-http",
        "--workers",
        "1",
        "--address",
        &bare_at.to_string(),
    ]);
    let mut bare = Running::start(command, "bare server")?;
    let mut command = pinned(product()?);
    command
        .args(["run", "--roles", "doors"])
        .env("DATABASE_URL", database.url())
        .env("MILLRACE_LOG__BACKEND", "kafka")
        .env("MILLRACE_LOG__BROKERS", stack.brokers())
        .env("MILLRACE_HTTP__DOORS", doors_at.to_string())
        .env("MILLRACE_HTTP__WORKERS", "1")
        .env("RUST_LOG", "warn");
    let mut doors = Running::start(command, "doors")?;
    up(&mut bare, bare_at).await?;
    up(&mut doors, doors_at).await?;

    let (warm, connections) = (options.requests / 2, options.connections);
    round(&bare, bare_at, warm, connections, &stack).await?;
    round(&doors, doors_at, warm, connections, &stack).await?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for n in 0..options.rounds.max(1) {
        for turn in 0..2 {
            if (n + turn) % 2 == 0 {
                let r = round(&bare, bare_at, options.requests, connections, &stack).await?;
                println!("bare 204: {r:?}");
                without.push(r);
            } else {
                let r = round(&doors, doors_at, options.requests, connections, &stack).await?;
                println!("POST /e: {r:?}");
                with.push(r);
            }
        }
    }
    let mut also = Vec::new();
    for connections in options.also.iter().copied() {
        let without = round(&bare, bare_at, options.requests, connections, &stack).await?;
        let with = round(&doors, doors_at, options.requests, connections, &stack).await?;
        also.push((connections, with, without));
    }
    publish(
        "ingest",
        &section(options, &with, &without, &also, &stack)?,
        !options.dry,
    )
}

fn section(
    options: &Options,
    with: &[Round],
    without: &[Round],
    also: &[(usize, Round, Round)],
    stack: &Stack,
) -> anyhow::Result<String> {
    let of =
        |rounds: &[Round], f: fn(&Round) -> f64| median(&rounds.iter().map(f).collect::<Vec<_>>());
    let mut out = String::new();
    writeln!(
        out,
        "## Ingest: `POST /e` acknowledged by Kafka\n\n{}\n",
        machine::describe(Some(stack.kafka_version()), None)
    )?;
    writeln!(
        out,
        "{} requests a round over {} keep-alive connections, one under way on each; the server (one worker) alone on one core;\nclient, broker and PostgreSQL on the other. Medians of {} rounds in turns.\n",
        options.requests,
        options.connections,
        with.len()
    )?;
    writeln!(
        out,
        "| | CPU-µs a request (server) | requests/s | p50 | p99 | CPU-µs a request (broker) |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for (name, rounds) in [("`POST /e`", with), ("bare actix-web 204", without)] {
        writeln!(
            out,
            "| {name} | {:.1} | {:.0} | {:.1} ms | {:.1} ms | {:.1} |",
            of(rounds, |r| r.micros),
            of(rounds, |r| r.rate),
            of(rounds, |r| r.p50),
            of(rounds, |r| r.p99),
            of(rounds, |r| r.broker),
        )?;
    }
    let ratio = of(with, |r| r.micros) / of(without, |r| r.micros).max(1e-9);
    for (connections, with, without) in also {
        for (name, r) in [("`POST /e`", with), ("bare actix-web 204", without)] {
            writeln!(
                out,
                "| {name}, {connections} connections, one round | {:.1} | {:.0} | {:.1} ms | {:.1} ms | {:.1} |",
                r.micros, r.rate, r.p50, r.p99, r.broker,
            )?;
        }
    }
    let others: String = also
        .iter()
        .map(|(n, with, without)| {
            format!("; with {n} connections {:.2}", with.micros / without.micros)
        })
        .collect();
    writeln!(
        out,
        "\nRatio of the server's CPU: **{ratio:.2}** (wanted ≤ 2.00: {}){others}. What a request costs falls with the requests that\nshare a write to the log: each partition is a request to the broker of its own, every few milliseconds.",
        verdict(ratio <= 2.0)
    )?;
    Ok(out)
}

fn pinned(program: std::path::PathBuf) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &SERVER_CPU.to_string()]).arg(program);
    command
}

fn free() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

async fn up(server: &mut Running, at: SocketAddr) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(at).is_err() {
        server.check()?;
        ensure!(
            Instant::now() < until,
            "nothing answers at {at}: {}",
            server.last_words()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn round(
    server: &Running,
    at: SocketAddr,
    requests: usize,
    connections: usize,
    stack: &Stack,
) -> anyhow::Result<Round> {
    let requests = Rc::new(beacons(requests)?);
    let (before, broker) = (cpu::tree(server.pid()), cpu::tree(stack.kafka_pid()));
    let seen: Seen = client::run(at, Rc::clone(&requests), connections, 204).await?;
    let spent = cpu::tree(server.pid()).saturating_sub(before);
    let broker = cpu::tree(stack.kafka_pid()).saturating_sub(broker);
    ensure!(
        seen.unwanted == 0,
        "{} answers were no 204, the first: {}",
        seen.unwanted,
        seen.first_unwanted.unwrap_or_default()
    );
    let each = |d: Duration| d.as_secs_f64() * 1e6 / requests.len() as f64;
    Ok(Round {
        micros: each(spent),
        rate: seen.rate(),
        p50: seen.quantile(0.5),
        p99: seen.quantile(0.99),
        broker: each(broker),
    })
}

/// Beacons of clicks that were minted just now.
fn beacons(count: usize) -> anyhow::Result<Vec<Vec<u8>>> {
    let now = Micros(jiff::Timestamp::now().as_microsecond());
    (0..count)
        .map(|_| {
            let click_id = ids::encode(ids::mint(now).map_err(|e| anyhow::anyhow!("{e}"))?);
            let body = format!(r#"{{"click_id":"{click_id}","link_id":"{CAMPAIGN}","stage":0}}"#);
            Ok(client::post("/e", &body))
        })
        .collect()
}

/// A workspace with an offer and a campaign, as the API would make them.
async fn configure(client: &tokio_postgres::Client) -> anyhow::Result<()> {
    let routing = r#"{"offers":[{"offer":"of_bench","weight":1}],"sidecar_offers":[],"pixels":[]}"#;
    client
        .batch_execute(&format!(
            "INSERT INTO workspaces (slug, name) VALUES ('bench', 'Bench');
             INSERT INTO offers (offer_id, workspace_id, name, url_template)
                SELECT 'of_bench', workspace_id, 'Bench', 'https://offer.example/?c={{click_id}}' FROM workspaces;
             INSERT INTO campaigns (campaign_id, workspace_id, name, routing)
                SELECT '{CAMPAIGN}', workspace_id, 'Bench', '{routing}' FROM workspaces"
        ))
        .await?;
    Ok(())
}
