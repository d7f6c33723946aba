//! `delivery million`: messages flow through a bounded backlog, and neither the narrow table nor the dispatcher grows.

use super::store::{Outbox, Store, now_secs};
use super::{null, payload};
use crate::contender::Running;
use crate::report::{publish, verdict};
use crate::{cpu, machine};
use anyhow::ensure;
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// How to measure it.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Messages that flow through.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u32,
    /// Destinations that they are for, in turns.
    #[arg(long, default_value_t = 8)]
    destinations: usize,
    /// Messages that are filled at once.
    #[arg(long, default_value_t = 5_000)]
    step: u32,
    /// Nothing is filled while more than so many are due.
    #[arg(long, default_value_t = 20_000)]
    backlog: i64,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    dry: bool,
}

/// The narrow table's size at the end, of that after a tenth.
const GROWTH: f64 = 1.2;
/// The same of the memory, for "flat".
const FLAT: f64 = 1.2;

/// How it stood when so many messages had been filled.
#[derive(Clone, Copy, Debug)]
struct Mark {
    messages: u32,
    backlog: i64,
    due_bytes: i64,
    leases_bytes: i64,
    resident: u64,
}

/// Measures it.
///
/// # Errors
/// The store or the dispatcher fails, or a message is lost or doubled.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    ensure!(
        options.step > 0 && options.messages >= 10,
        "nothing to fill"
    );
    let store = Store::start().await?;
    let outbox = store.fresh().await?;
    let destinations = outbox
        .destinations(null::NAME, options.destinations.max(1))
        .await?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["deliver-null", "--database", outbox.url()]);
    let mut process = Running::start(command, "dispatcher")?;
    let begun = Instant::now();
    let mut marks: Vec<Mark> = Vec::new();
    let tenth = options.messages / 10;
    let (mut filled, mut most) = (0, 0);
    while filled < options.messages {
        let backlog = due(&outbox).await?;
        most = most.max(backlog);
        if backlog > options.backlog {
            process.check()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let to = options.messages.min(filled + options.step);
        let now = now_secs();
        outbox
            .fill(null::NAME, &destinations, filled..to, |n| {
                payload::purchase(n, now, 1)
            })
            .await?;
        filled = to;
        while u32::try_from(marks.len())? < filled / tenth {
            let mark = look(&outbox, filled, process.pid()).await?;
            println!("{mark:?}");
            marks.push(mark);
        }
    }
    outbox.drained(&destinations, || process.check()).await?;
    let took = begun.elapsed();
    process.stop().await?;
    outbox.verify(&destinations, options.messages).await?;
    let body = section(options, &marks, most, took)?;
    publish("delivery-million", &body, !options.dry)
}

async fn due(outbox: &Outbox) -> anyhow::Result<i64> {
    millrace_tests::outbox::due(outbox.session.client()).await
}

async fn look(outbox: &Outbox, messages: u32, pid: u32) -> anyhow::Result<Mark> {
    let row = outbox
        .session
        .client()
        .query_one(
            "SELECT pg_total_relation_size('outbox_due'), pg_total_relation_size('outbox_leases')",
            &[],
        )
        .await?;
    Ok(Mark {
        messages,
        backlog: due(outbox).await?,
        due_bytes: row.get(0),
        leases_bytes: row.get(1),
        resident: cpu::resident(pid),
    })
}

fn section(options: &Options, marks: &[Mark], most: i64, took: Duration) -> anyhow::Result<String> {
    let (Some(first), Some(last)) = (marks.first(), marks.last()) else {
        anyhow::bail!("nothing was looked at");
    };
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let growth = last.due_bytes as f64 / first.due_bytes as f64;
    let memory = last.resident as f64 / first.resident as f64;
    let mut out = String::new();
    writeln!(out, "## A million messages through the outbox\n")?;
    writeln!(out, "{}\n", machine::describe(None, None::<u64>))?;
    writeln!(
        out,
        "{} messages for {} destinations, filled {} at a time while no more than {} were due (at most {most} were), sent by the\ndispatcher over a channel that answers at once, in {:.0} s: {:.0} messages/s filled and sent on the same machine.\n",
        options.messages,
        options.destinations,
        options.step,
        options.backlog,
        took.as_secs_f64(),
        f64::from(options.messages) / took.as_secs_f64(),
    )?;
    writeln!(
        out,
        "| after | due | `outbox_due`, with index | `outbox_leases` | dispatcher's memory |\n|---|---|---|---|---|"
    )?;
    for m in marks {
        writeln!(
            out,
            "| {} | {} | {:.1} MiB | {:.1} MiB | {:.0} MiB |",
            m.messages,
            m.backlog,
            mib(m.due_bytes as f64),
            mib(m.leases_bytes as f64),
            mib(m.resident as f64),
        )?;
    }
    writeln!(
        out,
        "\n`outbox_due` at the end to after a tenth: **{growth:.2}** (wanted ≤ {GROWTH:.2}: {}). The dispatcher's memory: **{memory:.2}** (flat: ≤ {FLAT:.2}:\n{}).",
        verdict(growth <= GROWTH),
        verdict(memory <= FLAT),
    )?;
    Ok(out)
}
