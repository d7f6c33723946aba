//! The product as a deployment runs it: doors, attribution and delivery, a process each; and what they take.

use super::scenery::SEAL;
use crate::contender::{Running, product};
use crate::cpu;
use crate::stack::Stack;
use anyhow::{Context, ensure};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

/// Roles, a process each.
pub(super) const ROLES: [&str; 3] = ["doors", "attribution", "delivery"];

/// The three processes.
pub(super) struct Processes {
    running: [Running; 3],
}

/// What a process holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub mib: f64,
    pub files: f64,
}

impl Processes {
    /// Starts them and waits until they say that they are up.
    pub async fn start(stack: &Stack, url: &str, graph: &str) -> anyhow::Result<Processes> {
        let start = |role: &'static str| {
            let mut command = Command::new(product()?);
            command
                .args(["run", "--roles", role])
                .env("DATABASE_URL", url)
                .env("MILLRACE_SECRET_KEY", SEAL)
                .env("MILLRACE_LOG__BACKEND", "kafka")
                .env("MILLRACE_LOG__BROKERS", stack.brokers())
                .env("MILLRACE_HTTP__DOORS", "127.0.0.1:0")
                .env("MILLRACE_HTTP__ADMIN", "127.0.0.1:0")
                .env("MILLRACE_DELIVERY__ALLOWED_NETWORKS", "127.0.0.0/8")
                .env("MILLRACE_DELIVERY__META__GRAPH_URL", graph)
                .env("RUST_LOG", "warn");
            Running::start(command, role)
        };
        let [doors, attribution, delivery] = ROLES;
        let mut processes = Processes {
            running: [start(doors)?, start(attribution)?, start(delivery)?],
        };
        let until = Instant::now() + Duration::from_secs(60);
        while !processes.running.iter().all(|p| p.said("millrace is up")) {
            processes.check()?;
            ensure!(
                Instant::now() < until,
                "the product is not up after a minute"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(processes)
    }

    /// Where the doors answer.
    pub fn doors(&self) -> anyhow::Result<SocketAddr> {
        let [doors, ..] = &self.running;
        doors.doors().context("the doors say where they answer")
    }

    pub fn check(&mut self) -> anyhow::Result<()> {
        self.running.iter_mut().try_for_each(Running::check)
    }

    /// What each holds now.
    pub fn held(&self) -> [Held; 3] {
        std::array::from_fn(|i| {
            let pid = self.running.get(i).map_or(0, Running::pid);
            Held {
                mib: cpu::resident(pid) as f64 / f64::from(1 << 20),
                files: open_files(pid) as f64,
            }
        })
    }

    /// CPU time of each.
    pub fn cpu(&self) -> [Duration; 3] {
        std::array::from_fn(|i| {
            self.running
                .get(i)
                .map_or(Duration::ZERO, |p| cpu::tree(p.pid()))
        })
    }

    pub async fn stop(&mut self) -> anyhow::Result<()> {
        for process in &mut self.running {
            process.stop().await?;
        }
        Ok(())
    }
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
