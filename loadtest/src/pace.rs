//! Records of workload W into Kafka at a steady rate, by a thread of its own.

use crate::preload::Filler;
use crate::workload::{Totals, Workload};
use anyhow::Context;
use millrace_topics::contract::TopicRef;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A producer that keeps its pace until it is told to stop or the workload ends.
pub struct Paced {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<Totals>>>,
}

impl Paced {
    /// Starts: `rate` records a second.
    ///
    /// # Errors
    /// There is no producer.
    pub fn start(
        brokers: &str,
        topics: &[TopicRef],
        mut workload: Workload,
        rate: f64,
    ) -> anyhow::Result<Paced> {
        let [clicks, postbacks] = topics else {
            anyhow::bail!("two topics are needed");
        };
        let filler = Filler::new(brokers, [clicks, postbacks], 5, "none")?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            let mut made = Workload::blank();
            let mut done = 0_u64;
            while !told.load(Ordering::Relaxed) {
                let due = (started.elapsed().as_secs_f64() * rate) as u64;
                while done < due {
                    anyhow::ensure!(
                        workload.next_record(&mut made),
                        "the workload ended before the measurement"
                    );
                    filler.put(&made, jiff::Timestamp::now().as_millisecond())?;
                    done += 1;
                }
                std::thread::park_timeout(Duration::from_millis(1));
            }
            filler.flush()?;
            Ok(workload.totals())
        });
        Ok(Paced {
            stop,
            thread: Some(thread),
        })
    }

    /// Whether it has failed: then [`Paced::stop`] says why.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops, and waits until all is acknowledged: what the records held.
    ///
    /// # Errors
    /// Kafka did not take them, or the workload had ended.
    pub fn stop(&mut self) -> anyhow::Result<Totals> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("stopped once")?;
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("the producing thread panicked"))?
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
