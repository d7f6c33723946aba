//! Several processes of one consumer group: they join while the group is paused, and are let go together once every partition
//! has its owner.

use crate::contender::Running;
use crate::cpu;
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// How long the sharing out of partitions may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The processes.
pub struct Fleet {
    members: Vec<Running>,
}

impl Fleet {
    /// Pauses the group, starts `n` processes, and waits until they have shared out all partitions.
    ///
    /// # Errors
    /// One ends, or the partitions are not shared out in time.
    pub async fn start_paused(
        client: &Client,
        group: &str,
        partitions: i32,
        n: usize,
        command: impl Fn() -> anyhow::Result<Command>,
    ) -> anyhow::Result<Fleet> {
        client
            .execute(
                "INSERT INTO paused_groups (group_name, reason) VALUES ($1, 'all processes join first')",
                &[&group],
            )
            .await?;
        let members = (0..n).map(|_| Running::start(command()?, "product"));
        let mut fleet = Fleet {
            members: members.collect::<anyhow::Result<_>>()?,
        };
        fleet.shared_out(client, group, partitions).await?;
        Ok(fleet)
    }

    /// Lets the group go.
    ///
    /// # Errors
    /// The store's.
    pub async fn release(client: &Client, group: &str) -> anyhow::Result<()> {
        client
            .execute("DELETE FROM paused_groups WHERE group_name = $1", &[&group])
            .await?;
        Ok(())
    }

    async fn shared_out(
        &mut self,
        client: &Client,
        group: &str,
        partitions: i32,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.check()?;
            if is_shared(
                &owners(client, group).await?,
                partitions,
                self.members.len(),
            ) {
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "{} processes have not shared out {partitions} partitions",
                self.members.len()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Fails if one has ended.
    ///
    /// # Errors
    /// Its last words.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.members.iter_mut().try_for_each(Running::check)
    }

    /// CPU time of all of them.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        self.members.iter().map(|m| cpu::tree(m.pid())).sum()
    }

    /// The most memory they ever had together, at most, in bytes.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.members
            .iter()
            .map(|m| cpu::resident_peak(m.pid()))
            .sum()
    }

    /// Transactions of all of them, by their own metrics.
    ///
    /// # Errors
    /// One does not answer.
    pub fn transactions(&self) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for member in &self.members {
            let at = member.admin().context("a member names its /metrics")?;
            sum += metric(&get(at, "/metrics")?, "batch_seconds_count");
        }
        Ok(sum)
    }

    /// Asks all to end, and waits.
    ///
    /// # Errors
    /// One does not.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        for member in &mut self.members {
            member.stop().await?;
        }
        Ok(())
    }
}

/// Who owns which partition, and under which epoch.
///
/// # Errors
/// The store's.
pub async fn owners(client: &Client, group: &str) -> anyhow::Result<BTreeMap<i32, (String, i64)>> {
    let rows = client
        .query(
            "SELECT partition, owner, epoch FROM ownership WHERE group_name = $1 AND owner <> ''",
            &[&group],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|r| (r.get(0), (r.get(1), r.get(2))))
        .collect())
}

/// Whether so many owners hold all partitions, none of them more than one above another.
#[must_use]
pub fn is_shared(owners: &BTreeMap<i32, (String, i64)>, partitions: i32, n: usize) -> bool {
    let mut held: BTreeMap<&str, usize> = BTreeMap::new();
    for (owner, _) in owners.values() {
        *held.entry(owner).or_default() += 1;
    }
    let (least, most) = (held.values().min(), held.values().max());
    owners.len() == usize::try_from(partitions).unwrap_or(0)
        && held.len() == n
        && most
            .zip(least)
            .is_some_and(|(most, least)| most - least <= 1)
}

/// Head and body of a GET.
///
/// # Errors
/// Nobody answers.
pub fn get(at: SocketAddr, path: &str) -> anyhow::Result<String> {
    ask(at, "GET", path)
}

/// The head of what a GET would bring.
///
/// # Errors
/// Nobody answers.
pub fn head(at: SocketAddr, path: &str) -> anyhow::Result<String> {
    ask(at, "HEAD", path)
}

fn ask(at: SocketAddr, method: &str, path: &str) -> anyhow::Result<String> {
    let mut socket = TcpStream::connect(at)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nhost: loadtest\r\nconnection: close\r\n\r\n"
    )?;
    let mut text = Vec::new();
    socket.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The sum of a metric over its labels.
#[must_use]
pub fn metric(text: &str, name: &str) -> f64 {
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.rsplit_once(' '))
        .filter(|(series, _)| {
            let series = series.split('{').next().unwrap_or(series);
            series.strip_prefix("millrace_").unwrap_or(series) == name
        })
        .filter_map(|(_, value)| value.parse::<f64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(owners: &[&str]) -> BTreeMap<i32, (String, i64)> {
        (0..)
            .zip(owners)
            .map(|(p, owner)| (p, ((*owner).to_owned(), 1)))
            .collect()
    }

    #[test]
    fn shared_out_means_all_partitions_evenly() {
        assert!(is_shared(&held(&["a", "a", "b"]), 3, 2));
        assert!(
            !is_shared(&held(&["a", "a", "b"]), 4, 2),
            "one is not owned"
        );
        assert!(!is_shared(&held(&["a", "a", "a", "b"]), 4, 2), "uneven");
        assert!(!is_shared(&held(&["a", "a"]), 2, 2), "one has nothing");
    }

    #[test]
    fn metrics_are_summed_over_labels() {
        let text = "# HELP x\nbatch_seconds_count{group=\"a\"} 3\nbatch_seconds_count{group=\"b\"} 4\nbatch_seconds_sum 9\n";
        assert_eq!(metric(text, "batch_seconds_count"), 7.0);
    }
}
