//! The doors: `POST /e` acknowledged by Kafka, against bare actix-web and bare axum that answer 204 to the same body, and against
//! axum that awaits one produce a request. Each server has one worker and a core of its own; client, broker and PostgreSQL share
//! the other.

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
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Linger of the producers, in milliseconds: the product's and its peer's.
    #[arg(long, default_value_t = 5)]
    pub linger_ms: u64,
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
/// The topic of the peer: of as many partitions as `clicks`, and nothing else in it.
const PEER_TOPIC: &str = "peer";

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Doors,
    Actix,
    Axum,
    AxumProduce,
}

impl Server {
    const ALL: [Server; 4] = [
        Server::Doors,
        Server::Actix,
        Server::Axum,
        Server::AxumProduce,
    ];

    fn name(self) -> &'static str {
        match self {
            Server::Doors => "`POST /e`",
            Server::Actix => "bare actix-web 204",
            Server::Axum => "bare axum 204",
            Server::AxumProduce => "axum, one produce awaited",
        }
    }

    /// The comparator's name on its command line.
    fn kind(self) -> Option<&'static str> {
        match self {
            Server::Doors => None,
            Server::Actix => Some("actix"),
            Server::Axum => Some("axum"),
            Server::AxumProduce => Some("axum-produce"),
        }
    }
}

/// CPU time is of a request, in microseconds; `rate` requests a second; latencies in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Round {
    server: f64,
    broker: f64,
    client: f64,
    postgres: f64,
    rate: f64,
    p50: f64,
    p99: f64,
}

/// A server, where it listens, and its rounds.
struct Contender {
    server: Server,
    running: Running,
    at: SocketAddr,
    rounds: Vec<Round>,
    also: Vec<Round>,
}

impl Contender {
    fn of(&self, f: fn(&Round) -> f64) -> f64 {
        median(&self.rounds.iter().map(f).collect::<Vec<_>>())
    }
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
    for topic in [CLICKS, POSTBACKS, PEER_TOPIC] {
        admin.create_topic(topic, 8, 1).await?;
    }
    let database = stack.fresh_database(8).await?;
    configure(&database.client().await).await?;
    cpu::pin_tree(stack.kafka_pid(), CLIENT_CPU)?;
    cpu::pin_tree(stack.postgres_pid(), CLIENT_CPU)?;
    cpu::pin(std::process::id(), CLIENT_CPU)?;

    let mut contenders = Vec::new();
    for server in Server::ALL {
        let at = free()?;
        let command = command(server, at, options, &stack, database.url())?;
        let mut running = Running::start(command, server.name())?;
        up(&mut running, at).await?;
        contenders.push(Contender {
            server,
            running,
            at,
            rounds: Vec::new(),
            also: Vec::new(),
        });
    }
    for contender in &contenders {
        round(contender, options.requests / 2, options.connections, &stack).await?;
    }
    for n in 0..options.rounds.max(1) {
        for turn in 0..contenders.len() {
            let at = (n + turn) % contenders.len();
            let Some(contender) = contenders.get_mut(at) else {
                continue;
            };
            let seen = round(contender, options.requests, options.connections, &stack).await?;
            println!("{}: {seen:?}", contender.server.name());
            contender.rounds.push(seen);
        }
    }
    for connections in options.also.iter().copied() {
        for contender in &mut contenders {
            let seen = round(contender, options.requests, connections, &stack).await?;
            contender.also.push(seen);
        }
    }
    publish(
        "ingest",
        &section(options, &contenders, &stack)?,
        !options.dry,
    )
}

fn section(options: &Options, all: &[Contender], stack: &Stack) -> anyhow::Result<String> {
    let mut out = String::new();
    writeln!(
        out,
        "## Ingest: `POST /e` acknowledged by Kafka\n\n{}\n",
        machine::describe(Some(stack.kafka_version()), None)
    )?;
    writeln!(
        out,
        "{} requests a round over {} keep-alive connections, one under way on each; each server (one worker) alone on one core;\nclient, broker and PostgreSQL on the other. 8 partitions, linger {} ms. The peer is an axum handler that reads the body as JSON,\nmakes the product's record of it and awaits one `FutureProducer` send (acks=all, idempotent, the same linger, partitioner and\nbytes). CPU-µs a request of every process; medians of {} rounds in turns.\n",
        options.requests,
        options.connections,
        options.linger_ms,
        options.rounds.max(1),
    )?;
    writeln!(
        out,
        "| | server | broker | client | PostgreSQL | requests/s | p50 | p99 |\n|---|---|---|---|---|---|---|---|"
    )?;
    for contender in all {
        let of = |f: fn(&Round) -> f64| contender.of(f);
        let whole = Round {
            server: of(|r| r.server),
            broker: of(|r| r.broker),
            client: of(|r| r.client),
            postgres: of(|r| r.postgres),
            rate: of(|r| r.rate),
            p50: of(|r| r.p50),
            p99: of(|r| r.p99),
        };
        row(&mut out, contender.server.name(), &whole)?;
    }
    for (at, connections) in options.also.iter().enumerate() {
        for contender in all {
            if let Some(seen) = contender.also.get(at) {
                let name = format!(
                    "{}, {connections} connections, one round",
                    contender.server.name()
                );
                row(&mut out, &name, seen)?;
            }
        }
    }
    let find = |server| all.iter().find(|c| c.server == server);
    if let (Some(doors), Some(actix), Some(peer)) = (
        find(Server::Doors),
        find(Server::Actix),
        find(Server::AxumProduce),
    ) {
        let cpu = doors.of(|r| r.server);
        let to_bare = cpu / actix.of(|r| r.server).max(1e-9);
        let to_peer = cpu / peer.of(|r| r.server).max(1e-9);
        let rate = doors.of(|r| r.rate) / peer.of(|r| r.rate).max(1e-9);
        writeln!(
            out,
            "\nThe server's CPU to bare actix-web: **{to_bare:.2}** (wanted ≤ 1.50: {}). To the peer that awaits one produce: CPU\n**{to_peer:.2}** (wanted ≤ 0.90: {}), requests/s **{rate:.2}** (wanted ≥ 1.20: {}).",
            verdict(to_bare <= 1.5),
            verdict(to_peer <= 0.9),
            verdict(rate >= 1.2),
        )?;
    }
    writeln!(
        out,
        "All rounds, CPU-µs a request: {}.",
        all.iter()
            .map(|c| {
                let rounds: Vec<String> = c
                    .rounds
                    .iter()
                    .map(|r| format!("{:.1}", r.server))
                    .collect();
                format!("{} {}", c.server.name(), rounds.join(", "))
            })
            .collect::<Vec<_>>()
            .join("; ")
    )?;
    Ok(out)
}

fn row(out: &mut String, name: &str, r: &Round) -> std::fmt::Result {
    writeln!(
        out,
        "| {name} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} | {:.1} ms | {:.1} ms |",
        r.server, r.broker, r.client, r.postgres, r.rate, r.p50, r.p99
    )
}

fn command(
    server: Server,
    at: SocketAddr,
    options: &Options,
    stack: &Stack,
    database: &str,
) -> anyhow::Result<Command> {
    let Some(kind) = server.kind() else {
        let mut command = pinned(product()?);
        command
            .args(["run", "--roles", "doors"])
            .env("DATABASE_URL", database)
            .env("MILLRACE_LOG__BACKEND", "kafka")
            .env("MILLRACE_LOG__BROKERS", stack.brokers())
            .env("MILLRACE_LOG__LINGER_MS", options.linger_ms.to_string())
            .env("MILLRACE_HTTP__DOORS", at.to_string())
            .env("MILLRACE_HTTP__WORKERS", "1")
            .env("RUST_LOG", "warn");
        return Ok(command);
    };
    let mut command = pinned(std::env::current_exe()?);
    command
        .args(["bare-http", "--kind", kind, "--workers", "1"])
        .args(["--address", &at.to_string()])
        .args(["--brokers", stack.brokers(), "--topic", PEER_TOPIC])
        .args(["--linger-ms", &options.linger_ms.to_string()]);
    Ok(command)
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
    contender: &Contender,
    requests: usize,
    connections: usize,
    stack: &Stack,
) -> anyhow::Result<Round> {
    let requests = Rc::new(beacons(requests)?);
    let clocks = cpu::Clocks::read([
        contender.running.pid(),
        stack.kafka_pid(),
        stack.postgres_pid(),
    ]);
    let seen: Seen = client::run(contender.at, Rc::clone(&requests), connections, 204).await?;
    let spent = clocks.since();
    ensure!(
        seen.unwanted == 0,
        "{}: {} answers were no 204, the first: {}",
        contender.server.name(),
        seen.unwanted,
        seen.first_unwanted.unwrap_or_default()
    );
    let each = |d: Duration| d.as_secs_f64() * 1e6 / requests.len() as f64;
    let [server, broker, postgres] = spent.trees.map(each);
    Ok(Round {
        server,
        broker,
        client: each(spent.own),
        postgres,
        rate: seen.rate(),
        p50: seen.quantile(0.5),
        p99: seen.quantile(0.99),
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
