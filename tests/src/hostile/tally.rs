//! What was answered, by route and status, and what of it was accepted.

use std::collections::BTreeMap;

/// Counts of a run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests by route and status; 0 where there was no answer.
    pub answers: BTreeMap<String, BTreeMap<u16, u64>>,
    /// Records that the doors said they have accepted.
    pub accepted: u64,
    /// Records that they may have accepted beside: requests whose answer was lost with the connection.
    pub unsure: u64,
    /// Bodies that doors were sent, whole, by route.
    pub bodies: BTreeMap<String, u64>,
    /// Frames that feeds were sent, at most: some lines are none.
    pub frames: u64,
    /// What must not be, with the request that it came of: the first few.
    pub wrong: Vec<String>,
    /// How many of those there were.
    pub wrongs: u64,
    /// Requests that broke the protocol or the connection, so that no answer is owed.
    pub broken: u64,
}

/// How many wrongs are kept in full.
const KEPT: usize = 20;

impl Tally {
    /// Requests in all.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.answers.values().flat_map(BTreeMap::values).sum()
    }

    /// Bodies that doors were sent, in all.
    #[must_use]
    pub fn to_doors(&self) -> u64 {
        self.bodies.values().sum()
    }

    /// Answers with this status.
    #[must_use]
    pub fn with_status(&self, status: u16) -> u64 {
        self.answers.values().filter_map(|s| s.get(&status)).sum()
    }

    pub(super) fn answered(&mut self, route: &str, status: u16) {
        *self
            .answers
            .entry(route.to_owned())
            .or_default()
            .entry(status)
            .or_default() += 1;
    }

    pub(super) fn wrong(&mut self, what: &str, request: &[u8], answer: &[u8]) {
        self.wrongs += 1;
        if self.wrong.len() < KEPT {
            let cut = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes).into_owned();
                text.chars().take(1_500).collect::<String>()
            };
            self.wrong
                .push(format!("{what}\n> {}\n< {}", cut(request), cut(answer)));
        }
    }

    pub(super) fn add(&mut self, other: Tally) {
        for (route, statuses) in other.answers {
            let mine = self.answers.entry(route).or_default();
            for (status, n) in statuses {
                *mine.entry(status).or_default() += n;
            }
        }
        for (route, n) in other.bodies {
            *self.bodies.entry(route).or_default() += n;
        }
        self.frames += other.frames;
        self.accepted += other.accepted;
        self.unsure += other.unsure;
        self.broken += other.broken;
        self.wrongs += other.wrongs;
        let room = KEPT - self.wrong.len().min(KEPT);
        self.wrong.extend(other.wrong.into_iter().take(room));
    }

    /// A table by route and status, in Markdown.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::from(
            "| route | requests | of these a body to a door | answers by status |\n|---|---|---|---|\n",
        );
        for (route, statuses) in &self.answers {
            let n: u64 = statuses.values().sum();
            let by: Vec<String> = statuses
                .iter()
                .map(|(status, n)| match status {
                    0 => format!("none: {n}"),
                    _ => format!("{status}: {n}"),
                })
                .collect();
            let bodies = self
                .bodies
                .get(route)
                .map_or_else(String::new, u64::to_string);
            out.push_str(&format!(
                "| `{route}` | {n} | {bodies} | {} |\n",
                by.join(" · ")
            ));
        }
        out
    }
}
