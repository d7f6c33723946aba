//! What all fault runs share: a log that notices a dead member soon, a deployment with records in it, seeded moments.

use millrace_tests::deployment::{Deployment, Log};
use millrace_tests::faults::{SESSION, sessions};
use millrace_tests::generator::{List, Plan};
use millrace_tests::kafka::{self, Kafka};
use millrace_tests::recount::Produced;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

pub use millrace_tests::faults::{killed_itself, next_moment, now, plan};

/// `MILLRACE_FAULT_SEED` of a run that is to be seen again; else the time.
pub fn seed() -> u64 {
    let seed = std::env::var("MILLRACE_FAULT_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| now() as u64 / 1_000);
    eprintln!("MILLRACE_FAULT_SEED={seed}");
    seed
}

/// Fault runs that may go on beside each other: much of each is waiting for a session to end.
const BESIDE: u32 = 2;
static TURNS: Semaphore = Semaphore::const_new(BESIDE as usize);

/// A turn of a fault run; held to its end.
pub async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.expect("never closed")
}

/// A turn of a run that disturbs what all share: no other goes on meanwhile.
pub async fn turn_alone() -> SemaphorePermit<'static> {
    TURNS.acquire_many(BESIDE).await.expect("never closed")
}

/// The broker of all fault runs; `None` where Kafka is absent.
pub async fn kafka() -> Option<&'static Kafka> {
    static KAFKA: OnceCell<Kafka> = OnceCell::const_new();
    if kafka::is_absent() {
        eprintln!("not run: Apache Kafka is absent");
        return None;
    }
    let properties = sessions(SESSION);
    let start = move || Kafka::start_with(&properties, &[]);
    let kafka = KAFKA.get_or_init(|| async {
        tokio::task::spawn_blocking(start)
            .await
            .expect("Kafka starts")
    });
    Some(kafka.await)
}

/// A deployment on Kafka; topics of its own.
pub async fn on_kafka(kafka: &Kafka, name: &str, partitions: i32) -> anyhow::Result<Deployment> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let log = Log::Kafka {
        brokers: kafka.brokers().to_owned(),
        prefix: format!("{name}-{}-{n}-", std::process::id()),
    };
    Deployment::start(name, log, partitions).await
}

/// A deployment on Kafka whose topics hold a list already, consumed in small transactions, so that a run has many moments.
pub async fn preloaded(
    kafka: &Kafka,
    name: &str,
    plan: Plan,
    batch: usize,
) -> anyhow::Result<(Deployment, Produced)> {
    let mut deployment = on_kafka(kafka, name, plan.partitions).await?;
    deployment.set("runtime.batch_records", batch);
    let produced = deployment.produce(List::generate(plan)).await?;
    Ok((deployment, produced))
}

/// Fails with the processes' last words beside the reason.
pub fn with_words<T>(deployment: &Deployment, result: anyhow::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error:#}\n{}", deployment.last_words()),
    }
}

/// Counts faults that struck while there was something left to consume: one that comes after the last record proves nothing.
#[derive(Default)]
pub struct Struck(usize);

impl Struck {
    /// Looks right after a fault.
    pub async fn look(&mut self, deployment: &Deployment, produced: &Produced) {
        let done = deployment.progress().await >= produced.ends().values().sum();
        self.0 += usize::from(!done);
    }

    /// Fails if fewer than `least` did.
    pub fn ensure(&self, least: usize) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.0 >= least,
            "only {} faults struck in the middle",
            self.0
        );
        Ok(())
    }
}
