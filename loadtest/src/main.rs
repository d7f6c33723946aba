//! Measures Millrace against its comparators; each command writes its section of BENCHMARKS.md.

mod backlog;
mod bare;
mod bare_http;
mod books;
mod broker;
mod client;
mod consume;
mod contender;
mod cpu;
mod decide;
mod delivery;
mod disk;
mod faults;
mod fleet;
mod hostile;
mod ingest;
mod ledger;
mod log;
mod machine;
mod memory;
mod pace;
mod peers;
mod preload;
mod product;
mod rebalance;
mod recipients;
mod report;
mod scale;
mod soak;
mod stack;
mod thresholds;
mod workload;

use clap::{Parser, Subcommand};

/// The product's allocator, for the comparators too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Load generator and comparators of Millrace. Build with --release before you believe a figure.
#[derive(Parser)]
#[command(name = "loadtest", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  cargo run --release -p loadtest -- consume   workload W, three rounds in turns; builds the product first
  cargo run --release -p loadtest -- consume --records 200000 --rounds 1 --dry";

#[derive(Subcommand)]
enum Command {
    /// Makes workload W and says what it holds, without Kafka: how fast the generator is.
    Workload(stack::WorkloadOptions),
    /// Consuming workload W from preloaded Kafka topics: the product against the bare loop.
    Consume(consume::Options),
    /// Writing and reading a log with the product's producers and consumers: the Postgres log and Kafka.
    Log(log::Options),
    /// Decoding and deciding without the store against the bare parse.
    Decide(decide::Options),
    /// The gates between a notice and the outbox, with their state in memory.
    Recipients(recipients::Options),
    /// Frames that fire nothing, through thresholds without the store, against the bare parse.
    Thresholds(thresholds::Options),
    /// `POST /e` acknowledged by Kafka against bare actix-web and axum, and axum that awaits one produce a request.
    Ingest(ingest::Options),
    /// Writing the ledger: the product's batch transaction against bare writes of the same rows.
    Ledger(ledger::Options),
    /// Delivery: the outbox, the channels, the narrow table, a hung destination.
    Delivery {
        #[command(subcommand)]
        what: delivery::What,
    },
    /// Faults: seeded runs of a whole deployment, each disturbed and recounted.
    Faults(faults::Options),
    /// Memory of an idle `millrace up`, and of slices that many keys pass through.
    Memory(memory::Options),
    /// What a record costs with 1 to 32 partitions and 1 to 4 processes.
    Scale(scale::Options),
    /// How long partitions stand still when members of a group come and go.
    Rebalance(rebalance::Options),
    /// Ten million records drained with flat memory, killed once in the middle.
    Backlog(backlog::Options),
    /// The whole system at half of its maximum: what grows?
    Soak(soak::Options),
    /// Coverage-guided fuzzing of every decoder; writes to FAULTS.md.
    Fuzz(hostile::fuzz::Options),
    /// A million hostile requests against every door and admin route; writes to FAULTS.md.
    Bodies(hostile::bodies::Options),
    /// Workload W beside Kafka Streams, `sentry_arroyo` and Quix Streams, all into the same PostgreSQL.
    Peers(peers::Options),
    /// The measurements that need nothing installed beside PostgreSQL and Kafka, one after the other: not the peers, and neither
    /// faults nor hostile input, which are proofs. The soak, which takes an hour, only with --short.
    All {
        /// At a small scale and without writing: does it still run?
        #[arg(long)]
        short: bool,
    },
    /// Holds up PostgreSQL and Kafka with the workload in it, for a look by hand.
    Stand(stack::StandOptions),
    /// The bare loop alone, on topics that are there (used by `consume`).
    #[command(hide = true)]
    BareConsume(bare::Options),
    /// The bare loop into a ledger topic (used by `peers`).
    #[command(hide = true)]
    BareLedger(bare::ledger::Options),
    /// The product's attribution alone, on topics that are there (used by `consume --embedded`).
    #[command(hide = true)]
    ProductConsume(product::Options),
    /// The dispatcher over a channel that answers at once (used by `delivery`).
    #[command(hide = true)]
    DeliverNull(delivery::NullOptions),
    /// The dispatcher's statements alone (used by `delivery outbox`).
    #[command(hide = true)]
    DeliverBare(delivery::BareOptions),
    /// reqwest alone (used by `delivery meta` and `delivery webhook`).
    #[command(hide = true)]
    DeliverPost(delivery::PostOptions),
    /// lettre alone (used by `delivery email`).
    #[command(hide = true)]
    DeliverSmtp(delivery::SmtpOptions),
    /// Cooldowns held hot (used by `recipients`).
    #[command(hide = true)]
    HotCooldowns(recipients::cooldowns::Options),
    /// A comparator of the doors (used by `ingest`).
    #[command(hide = true)]
    BareHttp(bare_http::Options),
}

fn main() -> anyhow::Result<()> {
    let command = Cli::parse().command;
    if command.runs_the_product() {
        // Before anything is held up that a build would disturb.
        println!(
            "{} of {}",
            contender::product()?.display(),
            machine::commit()
        );
    }
    match command {
        Command::Workload(options) => make(&options),
        Command::Consume(options) => consume::run(&options),
        Command::Log(options) => log::run(&options),
        Command::Decide(options) => decide::run(&options),
        Command::Recipients(options) => recipients::run(&options),
        Command::Thresholds(options) => thresholds::run(&options),
        Command::Ingest(options) => ingest::run(&options),
        Command::Ledger(options) => ledger::run(&options),
        Command::Delivery { what } => delivery::run(&what),
        Command::DeliverNull(options) => delivery::product(&options),
        Command::DeliverBare(options) => delivery::bare(&options),
        Command::DeliverPost(options) => delivery::post(&options),
        Command::DeliverSmtp(options) => delivery::smtp(&options),
        Command::Faults(options) => faults::run(&options),
        Command::Memory(options) => memory::run(&options),
        Command::Scale(options) => scale::run(&options),
        Command::Rebalance(options) => rebalance::run(&options),
        Command::Backlog(options) => backlog::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Fuzz(options) => hostile::fuzz::run(&options),
        Command::Bodies(options) => hostile::bodies::run(&options),
        Command::All { short } => all(short),
        Command::Peers(options) => peers::run(&options),
        Command::Stand(options) => stack::stand(&options),
        Command::BareConsume(options) => bare::consume(&options).map(|never| match never {}),
        Command::BareLedger(options) => bare::ledger::run(&options).map(|never| match never {}),
        Command::ProductConsume(options) => product::consume(&options),
        Command::HotCooldowns(options) => recipients::cooldowns::run(&options),
        Command::BareHttp(options) => bare_http::serve(&options),
    }
}

impl Command {
    /// Whether the product's program is started for it. The faults have one of their own.
    fn runs_the_product(&self) -> bool {
        match self {
            Command::Consume(options) => !options.embedded,
            Command::Delivery { what } => what.runs_the_product(),
            Command::Ingest(_)
            | Command::Memory(_)
            | Command::Scale(_)
            | Command::Rebalance(_)
            | Command::Backlog(_)
            | Command::Soak(_)
            | Command::Peers(_) => true,
            _ => false,
        }
    }
}

/// Each command with its defaults, or small.
fn all(short: bool) -> anyhow::Result<()> {
    let command = |words: &[&str]| -> anyhow::Result<()> {
        let small: &[&str] = match (short, words) {
            (false, _) => &[],
            (true, ["recipients"]) => &[
                "--dry",
                "--records",
                "5000",
                "--rounds",
                "1",
                "--keys",
                "100000",
                "--stored",
                "4000",
            ],
            (true, ["decide" | "thresholds"]) => &["--dry", "--records", "50000", "--rounds", "1"],
            (true, ["consume"]) => &["--dry", "--records", "100000", "--rounds", "1"],
            (true, ["log"]) => &["--dry", "--records", "50000", "--rounds", "1"],
            (true, ["delivery", "outbox"]) => &["--dry", "--messages", "20000", "--rounds", "1"],
            (true, ["delivery", "million"]) => &["--dry", "--messages", "50000"],
            (true, ["delivery", "due"]) => {
                &["--dry", "--seconds", "5", "--rate", "100", "--lead", "15"]
            }
            (true, ["delivery", _]) => &["--dry", "--messages", "4000", "--rounds", "1"],
            (true, ["scale" | "rebalance"]) => &["--short"],
            (true, ["backlog"]) => &["--dry", "--records", "200000"],
            (true, ["soak"]) => &[
                "--dry",
                "--minutes",
                "0.5",
                "--calibrate",
                "3",
                "--warm-up",
                "2",
            ],
            (true, ["ledger"]) => &["--dry", "--records", "40000", "--rounds", "1"],
            (true, ["ingest"]) => &["--dry", "--requests", "5000", "--rounds", "1"],
            (true, _) => &["--dry", "--records", "50000", "--idle", "2"],
        };
        println!("\n== {}", words.join(" "));
        // A process of its own, so that each section names the command that repeats it, and none warms another.
        let status = std::process::Command::new(std::env::current_exe()?)
            .args(words)
            .args(small)
            .status()?;
        anyhow::ensure!(status.success(), "`{}` failed", words.join(" "));
        Ok(())
    };
    command(&["decide"])?;
    command(&["recipients"])?;
    command(&["thresholds"])?;
    command(&["consume"])?;
    command(&["log"])?;
    command(&["ingest"])?;
    command(&["ledger"])?;
    for what in [
        "outbox", "meta", "webhook", "email", "due", "million", "hung",
    ] {
        command(&["delivery", what])?;
    }
    command(&["memory"])?;
    for what in ["scale", "rebalance", "backlog"] {
        command(&[what])?;
    }
    if short {
        command(&["soak"])?;
    }
    Ok(())
}

fn make(options: &stack::WorkloadOptions) -> anyhow::Result<()> {
    let mut workload = options.workload();
    let started = std::time::Instant::now();
    let mut made = workload::Workload::blank();
    while workload.next_record(&mut made) {
        std::hint::black_box(&made);
    }
    let t = workload.totals();
    println!(
        "{t:#?}\n{:.0} bytes a record; made at {:.0} records/s",
        t.bytes as f64 / t.records.max(1) as f64,
        t.records as f64 / started.elapsed().as_secs_f64()
    );
    Ok(())
}
