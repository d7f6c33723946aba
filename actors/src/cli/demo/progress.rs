//! How far the replay is: a bar for a person at a terminal, a few plain lines for a log.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};

/// Plain lines in all.
const LINES: u64 = 5;

/// Counts calls.
pub struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    done: AtomicU64,
}

impl Progress {
    /// Over so many calls.
    #[must_use]
    pub fn new(total: u64) -> Progress {
        let style = ProgressStyle::with_template(
            "replaying {bar:40} {pos}/{len} requests, {per_sec}, {msg} {elapsed_precise}",
        );
        let bar = style
            .ok()
            .filter(|_| std::io::stderr().is_terminal())
            .map(|style| ProgressBar::new(total).with_style(style));
        Progress {
            bar,
            total,
            done: AtomicU64::new(0),
        }
    }

    /// One more.
    pub fn one(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            return;
        }
        let part = |n: u64| (n * LINES).checked_div(self.total).unwrap_or(0);
        if part(done) > part(done - 1) {
            eprintln!("replaying: {done} of {} requests", self.total);
        }
    }

    /// Where in the log the replay is.
    pub fn at(&self, when: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(when.to_owned());
        }
    }

    /// No more will come.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
