//! What `scale` writes: a table, how far a record's cost rises in each form, and the part on paper, which follows from the
//! table's figures by the arithmetic that it states.

use super::{Options, Round, Shape, middle};
use crate::machine;
use crate::report::verdict;
use crate::workload::Totals;
use std::fmt::Write;

/// How much more a record may cost.
const RISE: f64 = 1.20;
/// The share of a core's time that is planned with on paper.
const PLANNED: f64 = 0.7;
/// Machines and cores of each, on paper.
const MACHINES: f64 = 8.0;
const CORES: f64 = 8.0;
/// PostgreSQL's cores, on paper, where one figure is said.
const STORE_CORES: f64 = 16.0;
/// What one stream of WAL is known to take on good NVMe disks with fsync, MB/s; an assumption of the paper part, named there.
const WAL_MB: f64 = 500.0;

pub(super) fn write(
    options: &Options,
    totals: &Totals,
    measured: &[(Shape, Vec<Round>)],
    kafka: &str,
) -> anyhow::Result<String> {
    let table: Vec<(Shape, Round)> = measured.iter().map(|(s, r)| (*s, middle(r))).collect();
    let mut out = String::new();
    writeln!(
        out,
        "## Scale: partitions and processes\n\n{}\n",
        machine::describe(Some(kafka), options.seed)
    )?;
    writeln!(
        out,
        "Workload W ({} records, {:.0} MB) in topics of so many partitions, consumed by so many processes of one group, all on this\nmachine; at most {} records a transaction, {} arbiters a process, slices of 10 % of the keys in all. Medians of {} round(s)\nin turns. CPU-µs a record; *product* counts all processes from the moment the group was let go, all partitions being shared out;\n*with start* counts their starting, joining and fetching ahead too. *Sum*: product, Kafka and PostgreSQL.\n",
        totals.records,
        totals.bytes as f64 / 1e6,
        options.batch,
        options.arbiters,
        measured.first().map_or(0, |(_, r)| r.len()),
    )?;
    writeln!(
        out,
        "| partitions | processes | records/s | product | with start | Kafka | PostgreSQL | sum | sum with start | records a transaction | WAL B a record | peak memory | others |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for (shape, r) in &table {
        writeln!(
            out,
            "| {} | {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} MiB | {:.2} |",
            shape.partitions,
            shape.processes,
            r.rate,
            r.product,
            r.product_all,
            r.kafka,
            r.postgres,
            r.whole(),
            r.whole_all,
            r.batch,
            r.wal,
            r.peak_mib,
            r.others,
        )?;
    }
    out.push('\n');
    rises(&mut out, &table, totals.records as f64)?;
    paper(&mut out, &table)?;
    writeln!(out, "\nAll rounds, product's CPU-µs a record with start:")?;
    for (shape, rounds) in measured {
        let each: Vec<String> = rounds
            .iter()
            .map(|r| format!("{:.2}", r.product_all))
            .collect();
        writeln!(
            out,
            "{} × {}: {};",
            shape.partitions,
            shape.processes,
            each.join(", ")
        )?;
    }
    Ok(out)
}

/// Least and most partitions with one process; one and most processes.
fn ends(table: &[(Shape, Round)]) -> [Option<&(Shape, Round)>; 4] {
    let alone = || table.iter().filter(|(s, _)| s.processes == 1);
    let most = table.iter().map(|(s, _)| s.partitions).max().unwrap_or(0);
    let shared = || table.iter().filter(|(s, _)| s.partitions == most);
    [
        alone().min_by_key(|(s, _)| s.partitions),
        alone().max_by_key(|(s, _)| s.partitions),
        shared().min_by_key(|(s, _)| s.processes),
        shared().max_by_key(|(s, _)| s.processes),
    ]
}

/// How far a record's cost rises along one line of shapes, in each form.
fn rise(out: &mut String, what: &str, from: &Round, to: &Round) -> std::fmt::Result {
    let times = |of: fn(&Round) -> f64| of(to) / of(from).max(1e-9);
    write!(out, "| {what} |")?;
    for times in [
        times(|r| r.product),
        times(|r| r.product_all),
        times(Round::whole),
        times(|r| r.whole_all),
    ] {
        write!(out, " **{times:.2}×** {} |", verdict(times <= RISE))?;
    }
    writeln!(
        out,
        " {:.2}× | {:.2}× |",
        times(|r| r.postgres),
        times(|r| r.kafka)
    )
}

fn rises(out: &mut String, table: &[(Shape, Round)], records: f64) -> std::fmt::Result {
    let [few, many, one, several] = ends(table);
    writeln!(
        out,
        "| CPU a record, from → to (wanted ≤ {RISE:.2}×) | product | with start | sum | sum with start | PostgreSQL | Kafka |\n|---|---|---|---|---|---|---|"
    )?;
    if let (Some((a, few)), Some((b, many))) = (few, many) {
        let what = format!(
            "{} → {} partitions, one process",
            a.partitions, b.partitions
        );
        rise(out, &what, few, many)?;
    }
    if let (Some((a, one)), Some((b, several))) = (one, several) {
        let what = format!(
            "{} → {} processes, {} partitions",
            a.processes, b.processes, a.partitions
        );
        rise(out, &what, one, several)?;
        writeln!(
            out,
            "\nEach process costs {:.2} CPU-s to start, join and fetch ahead, however many records follow; here it is spread over {records:.0}.\n",
            startup((a.processes, one), (b.processes, several)) * records / 1e6,
        )?;
    }
    Ok(())
}

/// What one more process costs before the first record, in µs a record.
fn startup(one: (usize, &Round), several: (usize, &Round)) -> f64 {
    let before = |r: &Round| r.product_all - r.product;
    let more = several.0.saturating_sub(one.0).max(1) as f64;
    ((before(several.1) - before(one.1)) / more).max(0.0)
}

/// What follows for eight machines and one PostgreSQL.
fn paper(out: &mut String, table: &[(Shape, Round)]) -> std::fmt::Result {
    let [.., Some((shape, r))] = ends(table) else {
        return Ok(());
    };
    let one_partition = table
        .iter()
        .filter(|(s, _)| s.processes == 1)
        .min_by_key(|(s, _)| s.partitions);
    let carried = |cores: f64, micros: f64| cores * PLANNED * 1e6 / micros.max(1e-9);
    writeln!(
        out,
        "### On paper: eight machines and one PostgreSQL\n\nFrom the last line of the table ({} partitions, {} processes): a record costs {:.2} µs of a consumer's core, {:.2} µs of\nPostgreSQL's, {:.2} µs of Kafka's (reading; replication comes on top), {:.0} bytes of WAL and {:.0} bytes of tables. Planned with {:.0} % of\nevery core; cores as this machine's; what two cores cannot show (locks in PostgreSQL under 64 of them, a network) is not in it.\n",
        shape.partitions,
        shape.processes,
        r.product,
        r.postgres,
        r.kafka,
        r.wal,
        r.stored,
        PLANNED * 100.0,
    )?;
    writeln!(
        out,
        "| one PostgreSQL of | records/s | WAL MB/s | tables, TB a day | consumers' cores | brokers' cores |\n|---|---|---|---|---|---|"
    )?;
    for cores in [8.0, 16.0, 32.0, 64.0] {
        let rate = carried(cores, r.postgres);
        let needed = |micros: f64| rate * micros / 1e6 / PLANNED;
        writeln!(
            out,
            "| {cores:.0} cores | {rate:.0} | {:.0} | {:.1} | {:.1} | {:.1} |",
            rate * r.wal / 1e6,
            rate * r.stored * 86_400.0 / 1e12,
            needed(r.product),
            needed(r.kafka),
        )?;
    }
    let consumers = carried(MACHINES * CORES, r.product);
    let mut limits = [
        ("the consumers' cores", consumers),
        ("PostgreSQL's cores", carried(STORE_CORES, r.postgres)),
        ("PostgreSQL's WAL disk", WAL_MB * 1e6 / r.wal.max(1e-9)),
    ];
    limits.sort_by(|a, b| a.1.total_cmp(&b.1));
    let [first, second, third] =
        limits.map(|(what, rate)| format!("{what} at {rate:.0} records/s"));
    writeln!(
        out,
        "\nEight consumer machines of {CORES:.0} cores would carry {consumers:.0} records/s: as much as a PostgreSQL of {:.0} cores. Beside one PostgreSQL of\n{STORE_CORES:.0} cores and a WAL disk that takes {WAL_MB:.0} MB/s, what breaks first is **{first}**; then {second}, then\n{third}. At the rate of the first, {:.1} of the eight consumer machines are enough, tables grow by {:.1} TB a day,\nand retention (dropping days) decides how long that rate can be kept. Three brokers with three replicas write every record three\ntimes, at the figures above. Consumers are the only part that is widened by starting more of them; PostgreSQL takes {:.1} cores\nfor each core of theirs.",
        consumers * r.postgres / 1e6 / PLANNED,
        MACHINES * limits[0].1 / consumers.max(1e-9),
        limits[0].1 * r.stored * 86_400.0 / 1e12,
        r.postgres / r.product.max(1e-9),
    )?;
    if let Some((shape, alone)) = one_partition {
        writeln!(
            out,
            "One partition is one actor and one connection: it goes at {:.0} records/s here ({} partition{}, all else idle), which bounds what\none hot key range can do; and every partition holds one connection to PostgreSQL.",
            alone.rate,
            shape.partitions,
            if shape.partitions == 1 { "" } else { "s" },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_table_are_found_and_judged() {
        let line = |partitions, processes, product| {
            let shape = Shape {
                partitions,
                processes,
            };
            let round = Round {
                product,
                product_all: product + 0.1,
                postgres: 6.0,
                kafka: 0.5,
                whole_all: product + 7.0,
                rate: 1e5,
                wal: 500.0,
                stored: 300.0,
                ..Round::default()
            };
            (shape, round)
        };
        let table = [line(1, 1, 4.0), line(32, 1, 4.4), line(32, 4, 6.0)];
        let mut out = String::new();
        rises(&mut out, &table, 1e6).expect("text");
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(
            lines[2],
            "| 1 → 32 partitions, one process | **1.10×** reached | **1.10×** reached | **1.04×** reached | **1.04×** reached | 1.00× | 1.00× |"
        );
        assert_eq!(
            lines[3],
            "| 1 → 4 processes, 32 partitions | **1.36×** **missed** | **1.36×** **missed** | **1.15×** reached | **1.14×** reached | 1.00× | 1.00× |"
        );
        let mut out = String::new();
        paper(&mut out, &table).expect("text");
        // 500 bytes of WAL a record are a million records/s; 16 cores at 6 µs and 70 % nearly twice that.
        assert!(
            out.contains("what breaks first is **PostgreSQL's WAL disk at 1000000 records/s**; then PostgreSQL's cores at 1866667"),
            "{out}"
        );
    }
}
