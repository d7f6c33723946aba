//! One run: a scene, its fault, the recount.

use super::deal::{Card, mixed};
use super::finish::Recounted;
use super::hits::{self, Hits};
use super::scene::{Scene, Shared, Staging};
use super::step::Step;
use futures::FutureExt as _;
use millrace_tests::generator::Rng;
use millrace_tests::recount::Kind as Found;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

/// How often a run is repeated whose fault came too late.
const TRIES: u64 = 3;
/// How long a run may take by what is asked of the runner; whatever `--limit` lets it take, a longer one is named.
pub const LONGEST: Duration = Duration::from_secs(40);

/// How a run ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Its number.
    pub run: u64,
    /// Kind and variant.
    pub card: String,
    /// The kind.
    pub kind: &'static str,
    /// Faults that struck while there was work left.
    pub struck: u32,
    /// How long each try took, its topics' end with it; the last one counts.
    pub tries: Vec<Duration>,
    /// The last step of the fault itself.
    pub step: String,
    /// Failpoints hit in the try that counts.
    pub hits: Hits,
    /// What was counted.
    pub counted: Recounted,
    /// What went wrong before anything could be counted, with its step.
    pub failed: Option<String>,
}

impl Outcome {
    /// How long it took, all tries together.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.tries.iter().sum()
    }

    /// Losses.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.count(Found::Loss)
    }

    /// Doubles.
    #[must_use]
    pub fn doubled(&self) -> usize {
        self.count(Found::Double)
    }

    fn count(&self, kind: Found) -> usize {
        self.counted
            .findings
            .iter()
            .filter(|f| f.kind == kind)
            .count()
    }

    /// Whether it balanced.
    #[must_use]
    pub fn balanced(&self) -> bool {
        self.failed.is_none() && self.counted.findings.is_empty()
    }

    /// One word for the table.
    #[must_use]
    pub fn verdict(&self) -> String {
        match (&self.failed, self.balanced()) {
            (_, true) => "balanced".to_owned(),
            (Some(why), _) => format!("FAILED: {}", why.lines().next().unwrap_or_default()),
            _ => format!(
                "FAILED after `{}`: {} lost, {} doubled, {} wrong",
                self.step,
                self.lost(),
                self.doubled(),
                self.counted.findings.len() - self.lost() - self.doubled()
            ),
        }
    }
}

/// Runs one; a fault that comes too late is tried again with other choices, each time within `limit`.
pub async fn run(shared: &Shared, card: Card, seed: u64, number: u64, limit: Duration) -> Outcome {
    let mut outcome = Outcome::default();
    let mut tries = Vec::new();
    for tried in 1..=TRIES {
        let begun = Instant::now();
        outcome = once(
            shared,
            card,
            mixed(&[seed, number, tried]),
            number,
            tried,
            limit,
        )
        .await;
        let took = begun.elapsed();
        tries.push(took);
        outcome.tries.clone_from(&tries);
        // The limit is on what is awaited; this is all of it.
        if outcome.balanced() && limit <= LONGEST && took > LONGEST {
            let seconds = took.as_secs_f64();
            let step = &outcome.step;
            outcome.failed = Some(format!("after `{step}`: took {seconds:.1} s"));
        }
        if !outcome.balanced() || outcome.struck > 0 {
            return outcome;
        }
    }
    let step = &outcome.step;
    outcome.failed = Some(format!("after `{step}`: not struck in {TRIES} tries"));
    outcome
}

async fn once(
    shared: &Shared,
    card: Card,
    seed: u64,
    number: u64,
    tried: u64,
    limit: Duration,
) -> Outcome {
    let mut outcome = Outcome {
        run: number,
        card: card.name(),
        kind: card.kind.name,
        ..Outcome::default()
    };
    let step = Step::default();
    let mut rng = Rng::new(seed);
    let mut staging = Staging::default();
    (card.kind.stage)(&mut staging, card.variant, &mut rng);
    let name = format!("f{number}-{tried}");
    let mut kept: Option<Scene> = None;
    let whole = async {
        let scene = Scene::set(shared.clone(), &name, staging, rng, step.clone()).await?;
        let scene = kept.insert(scene);
        (card.kind.act)(scene, card.variant).await?;
        scene.finish().await
    };
    // The harness panics where a server does not start: a failure of this run, not of all.
    let ended = tokio::time::timeout(limit, AssertUnwindSafe(whole).catch_unwind()).await;
    let failed = match ended {
        Ok(Ok(Ok(counted))) => {
            outcome.counted = counted;
            None
        }
        Ok(Ok(Err(error))) => Some(format!("{error:#}")),
        Ok(Err(panic)) => {
            let said = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("panicked: {}", said.unwrap_or("without a word")))
        }
        Err(_) => Some(format!("not within {limit:?}")),
    };
    outcome.step = step.of_fault();
    let at = step.get();
    let place = if at == outcome.step {
        format!("at `{at}`")
    } else {
        format!("after `{}`, at `{at}`", outcome.step)
    };
    outcome.failed = failed.map(|why| format!("{place}: {why}"));
    if let Some(scene) = &kept {
        outcome.hits = hits::read(scene.deployment.scratch.path());
        // What was to happen at a failpoint has not happened where none of its was passed.
        let points = (card.kind.failpoints)(card.variant);
        let passed = points.is_empty() || points.iter().any(|p| hits::of(&outcome.hits, *p) > 0);
        outcome.struck = if passed { scene.struck } else { 0 };
        if !outcome.balanced() {
            let words = scene.last_words();
            let under = match shared.sabotage.as_str() {
                "" => "run",
                safeguard => safeguard,
            };
            let name = format!("{under}-{number}-{tried}-{seed:x}");
            keep_words(&name, &outcome, &words);
        }
        let topics = millrace_topics::catalogue::load(&scene.store().await).await;
        if let Ok(topics) = topics {
            let admin = millrace_topics::kafka::KafkaAdmin::new(&shared.kafka.settings());
            for topic in topics {
                // Hundreds of runs leave their topics on one cluster; what stays behind only takes room.
                let _ = admin.delete_topic(&topic.log_name).await;
            }
        }
    }
    outcome
}

/// Writes down what all processes of a failed run said last.
fn keep_words(name: &str, outcome: &Outcome, words: &str) {
    let process = std::process::id();
    let path = std::env::temp_dir().join(format!("millrace-faults-{process}-{name}.log"));
    let findings: Vec<String> = outcome
        .counted
        .findings
        .iter()
        .map(|f| format!("{:?}: {}", f.kind, f.what))
        .collect();
    let why = outcome.failed.as_deref().unwrap_or("does not balance");
    let text = format!("{}\n{why}\n{}\n{words}", outcome.card, findings.join("\n"));
    if std::fs::write(&path, text).is_ok() {
        eprintln!("run {}: {}", outcome.run, path.display());
    }
}
