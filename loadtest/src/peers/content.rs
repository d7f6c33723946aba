//! What stands in a ledger topic after a run from topic to topic: rows by table, held against what the generator made, as
//! [`books`](crate::books) does with the store.

use crate::workload::Totals;
use anyhow::{Context, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// What comes before the rows of a COPY; parts of some contenders have it, those of others have rows alone.
const COPY_HEADER: usize = 19;
/// Nothing has come for so long: that was all.
const QUIET: Duration = Duration::from_secs(3);
/// So long may the first record take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rows by table. The numbers of the tables are those of `bare::line` and of the Java peer's `Ledger`.
#[derive(Debug, Default)]
struct Content {
    visits: u64,
    clicks: u64,
    conversions: u64,
    log: u64,
    keys: u64,
    /// Clicks that have a conversion, and those for whose visit a postback waits or waited.
    booked: HashSet<Vec<u8>>,
    parked: HashSet<Vec<u8>>,
    /// Ids of conversions; one that comes twice is counted.
    ids: HashSet<Vec<u8>>,
    twice: u64,
}

impl Content {
    /// Adds a record of the topic.
    fn add(&mut self, mut record: &[u8]) -> anyhow::Result<()> {
        while let Some((table, rest)) = record.split_first() {
            let (length, rest) = number(rest).context("a part without its length")?;
            let (part, rest) = rest
                .split_at_checked(usize::try_from(length)?)
                .context("a part that is cut off")?;
            record = rest;
            match table {
                0 => self.visits += each(part, |_| ())?,
                1 => self.clicks += each(part, |_| ())?,
                2 => {
                    let (ids, booked, mut twice) = (&mut self.ids, &mut self.booked, 0);
                    // Workspace, conversion, click.
                    self.conversions += each(part, |row| {
                        twice += u64::from(!ids.insert(row[1].to_vec()));
                        booked.insert(row[2].to_vec());
                    })?;
                    self.twice += twice;
                }
                3 => self.log += each(part, |_| ())?,
                4 => {
                    let parked = &mut self.parked;
                    // Workspace, click.
                    each(part, |row| {
                        parked.insert(row[1].to_vec());
                    })?;
                }
                5 => self.keys += 1,
                6 => {}
                other => anyhow::bail!("a part of table {other}"),
            }
        }
        Ok(())
    }

    /// Postbacks whose visit never came: at the end of the workload a few wait. Who takes the visit from the generator has none.
    fn waiting(&self) -> u64 {
        self.parked.difference(&self.booked).count() as u64
    }

    fn check(&self, totals: &Totals) -> anyhow::Result<()> {
        let check = |what: &str, has: u64, made: u64| {
            ensure!(
                has == made,
                "the ledger topic has {has} {what}, made {made}"
            );
            Ok(())
        };
        check("visits", self.visits, totals.visits)?;
        check("clicks", self.clicks, totals.clicks)?;
        check("conversions twice", self.twice, 0)?;
        let postbacks = self.conversions + self.waiting();
        check("conversions and waiting", postbacks, totals.postbacks)?;
        check("keys of conversions", self.keys, self.conversions)?;
        let receipts = totals.postbacks + totals.postback_repeats;
        ensure!(
            self.log >= receipts,
            "the ledger topic has {} rows of the postback log, {receipts} receipts",
            self.log
        );
        Ok(())
    }
}

fn number(bytes: &[u8]) -> Option<(i32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((i32::from_be_bytes(*number), rest))
}

/// Calls `seen` with the first three columns of each row of a part, a NULL as nothing: how many rows there are.
fn each(part: &[u8], mut seen: impl FnMut([&[u8]; 3])) -> anyhow::Result<u64> {
    let mut rest = if part.starts_with(b"PGCOPY\n") {
        part.get(COPY_HEADER..).unwrap_or_default()
    } else {
        part
    };
    let mut rows = 0;
    while let Some((columns, mut row)) = rest.split_first_chunk::<2>() {
        let Ok(columns) = u16::try_from(i16::from_be_bytes(*columns)) else {
            // The end of a COPY.
            break;
        };
        let mut first: [&[u8]; 3] = [&[]; 3];
        for column in 0..usize::from(columns) {
            let (length, tail) = number(row).context("a row that is cut off")?;
            // -1 is NULL.
            let length = usize::try_from(length).unwrap_or(0);
            let (value, tail) = tail
                .split_at_checked(length)
                .context("a column that is cut off")?;
            if let Some(slot) = first.get_mut(column) {
                *slot = value;
            }
            row = tail;
        }
        seen(first);
        rows += 1;
        rest = row;
    }
    Ok(rows)
}

/// Reads a ledger topic as who comes after would, committed records alone, until nothing comes any more, and checks it.
///
/// # Errors
/// It does not hold what the generator made, each row once.
pub fn check(brokers: &str, topic: &str, partitions: i32, totals: &Totals) -> anyhow::Result<()> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        // It keeps no offsets; librdkafka wants a name all the same.
        .set("group.id", format!("{topic}-content"))
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .create()?;
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    let mut content = Content::default();
    let (mut records, mut last) = (0_u64, Instant::now());
    while last.elapsed() < if records == 0 { PATIENCE } else { QUIET } {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        content.add(message?.payload().unwrap_or_default())?;
        (records, last) = (records + 1, Instant::now());
    }
    content.check(totals)?;
    println!(
        "  ledger topic: {records} records: {} visits, {} clicks, {} conversions, {} log rows, {} waiting",
        content.visits,
        content.clicks,
        content.conversions,
        content.log,
        content.waiting()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(table: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).expect("short").to_be_bytes();
        [&[table][..], &length, bytes].concat()
    }

    /// A workspace, two ids, a NULL.
    fn row(first: u8, second: u8) -> Vec<u8> {
        let mut row = vec![0, 4];
        row.extend([0, 0, 0, 4, 0, 0, 0, 1]);
        row.extend([0, 0, 0, 1, first, 0, 0, 0, 1, second]);
        row.extend((-1_i32).to_be_bytes());
        row
    }

    #[test]
    fn rows_are_counted_with_and_without_the_frame_of_a_copy() {
        let framed = [
            b"PGCOPY\n\xff\r\n\0".as_slice(),
            &[0; 8],
            &row(1, 2),
            &row(3, 4),
        ]
        .concat();
        let ended = [framed.as_slice(), &[0xff, 0xff]].concat();
        for bytes in [framed, ended, [row(1, 2), row(3, 4)].concat()] {
            assert_eq!(each(&bytes, |_| ()).expect("rows"), 2);
        }
        assert!(each(&row(1, 2)[..9], |_| ()).is_err(), "cut off");
    }

    #[test]
    fn what_is_booked_waits_for_nothing_and_what_comes_twice_is_told() {
        let mut content = Content::default();
        // A postback of click 7 waits and is booked; one of click 8 waits.
        content.add(&part(4, &row(7, 70))).expect("parked");
        content.add(&part(4, &row(8, 80))).expect("parked");
        let booked = [part(2, &row(70, 7)), part(5, &[0; 40]), part(6, &[7; 16])].concat();
        content.add(&booked).expect("booked");
        let totals = Totals {
            postbacks: 2,
            ..Totals::default()
        };
        let short = content.check(&totals).expect_err("no log").to_string();
        assert!(short.contains("2 receipts"), "{short}");
        for record in [part(3, &row(1, 1)), part(3, &row(2, 2))] {
            content.add(&record).expect("logged");
        }
        content.check(&totals).expect("all there");
        content.add(&booked).expect("booked again");
        let twice = content.check(&totals).expect_err("twice").to_string();
        assert!(twice.contains("1 conversions twice"), "{twice}");
        assert!(content.add(&[9, 0, 0, 0, 0]).is_err(), "no such table");
    }
}
