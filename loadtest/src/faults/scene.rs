//! A whole deployment with processes: doors, attribution, delivery; senders before it, receivers behind it, a list of records in
//! its log. Kinds of faults act on it; what it became is recounted in [`super::finish`].

pub use super::role::{Role, obeyed};

use super::hits::{self, Point};
use super::step::Step;
use anyhow::Context as _;
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::door_client::{self, DoorClient};
use millrace_tests::faults::{next_moment, plan};
use millrace_tests::generator::{List, Plan, Rng};
use millrace_tests::kafka::Kafka;
use millrace_tests::outbox;
use millrace_tests::parties::Parties;
use millrace_tests::postgres::DedicatedServer;
use millrace_tests::process::{Launch, Process, eventually, lasting_address};
use millrace_tests::proxy::Proxy;
use millrace_tests::quay::Quay;
use millrace_tests::recount::{Finding, Produced};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_postgres::Client;

/// The workspace of the doors; the generator's own are 1 and 2.
pub const DOORS: i32 = 3;
/// Those of the generator's workspaces whose facts are told to a webhook are that workspace's; here it is the doors' alone.
const EVENTS: [&str; 3] = ["visit", "click", "conversion"];

/// What all runs of an invocation share.
#[derive(Clone)]
pub struct Shared {
    /// The one Kafka.
    pub kafka: Arc<Kafka>,
    /// How many brokers it has.
    pub brokers: usize,
    /// An older build of the product, where a kind needs one.
    pub old: Option<PathBuf>,
    /// Safeguards to be switched off; empty: none.
    pub sabotage: String,
}

/// How a run is to be set up; a kind changes what it needs otherwise.
pub struct Staging {
    /// Records put straight into the log.
    pub records: usize,
    /// Partitions of both topics.
    pub partitions: i32,
    /// Records of one transaction at most: the fewer, the more moments.
    pub batch: usize,
    /// Messages that may not be repeated, put into the outbox.
    pub unrepeatable: u32,
    /// Makes the list.
    pub list: fn(Plan, &mut Rng) -> List,
    /// Keys of `millrace.toml`.
    pub settings: BTreeMap<String, String>,
    /// The database lies on a file system of so many MiB.
    pub small_disk: Option<u32>,
    /// Settings of PostgreSQL.
    pub postgres: &'static [&'static str],
    /// Whether senders knock at the doors; not where the clock of one process is made to lie a day ahead.
    pub senders: usize,
}

impl Default for Staging {
    fn default() -> Staging {
        Staging {
            records: 3_000,
            partitions: 4,
            batch: 50,
            unrepeatable: 120,
            list: |plan, _| List::generate(plan),
            settings: BTreeMap::new(),
            small_disk: None,
            postgres: &[],
            senders: 2,
        }
    }
}

impl Staging {
    /// Sets a key of `millrace.toml` for all processes.
    pub fn set(&mut self, key: &str, value: impl ToString) {
        self.settings.insert(key.to_owned(), value.to_string());
    }
}

/// A deployment at work.
pub struct Scene {
    /// What all runs share.
    pub shared: Shared,
    /// Everything but the processes.
    pub deployment: Deployment,
    /// Who is sent to.
    pub parties: Parties,
    /// The generator's list, in the log.
    pub listed: Produced,
    /// Choices of the run.
    pub rng: Rng,
    /// Where the doors are.
    pub doors_at: SocketAddr,
    /// Who knocks at them.
    pub client: Option<DoorClient>,
    /// Processes at work, by role.
    pub crew: BTreeMap<Role, Vec<Process>>,
    /// The step at hand.
    pub step: Step,
    /// Environment for all processes of a role started from now on.
    pub environment: BTreeMap<Role, BTreeMap<String, String>>,
    /// Another program than the product built last (an older one), for processes of a role started from now on.
    pub program: BTreeMap<Role, PathBuf>,
    /// The harbour, where there is one: shards that stream frames, people who are told.
    pub quay: Option<Quay>,
    /// Proxies that processes were led through; they live as long as the scene.
    pub proxies: Vec<Proxy>,
    /// What a kind has recounted by itself and found.
    pub findings: Vec<Finding>,
    /// Faults that struck while there was work left.
    pub struck: u32,
    lives: u32,
}

impl Scene {
    /// Sets everything up: nothing runs yet but the senders, who wait for a door.
    ///
    /// # Errors
    /// Some part did not start.
    pub async fn set(
        shared: Shared,
        name: &str,
        staging: Staging,
        mut rng: Rng,
        step: Step,
    ) -> anyhow::Result<Scene> {
        step.set("a database, topics");
        // Runs of several seeds have one cluster, where topics that are deleted go when they please: names never come again.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let no = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = Log::Kafka {
            brokers: shared.kafka.brokers().to_owned(),
            prefix: format!("{name}-{}-{no}-", std::process::id()),
        };
        let replication = shared.brokers.to_string();
        let more = [("log.replication", replication.as_str())];
        let server = move || match staging.small_disk {
            Some(size) => DedicatedServer::start_on_small_disk(size).context("not run: needs root"),
            None => Ok(DedicatedServer::start_with(staging.postgres)),
        };
        let server = tokio::task::spawn_blocking(server).await??;
        let mut deployment =
            Deployment::start_on(server, "faults", log, staging.partitions, &more).await?;
        deployment.set("runtime.batch_records", staging.batch);
        // Slices far smaller than what is read, in half of the runs: what was dropped from memory is found again in the store.
        if rng.one_in(2) {
            deployment.set("attribution.slice_clicks", 200);
        }
        for (key, value) in &staging.settings {
            deployment.set(key, value);
        }
        let mut store = deployment.store().await;
        step.set("a campaign, receivers");
        let key = door_client::set(&mut store, DOORS, Some("px_1")).await?;
        let mut parties = Parties::set(&store, DOORS, &EVENTS).await?;
        // The stub alone: webhooks and events come of what is booked.
        parties.fill_one(&store, 1, staging.unrepeatable).await?;
        step.set("a list in the log");
        let plan = plan(rng.any_u64(), staging.records, staging.partitions);
        let list = (staging.list)(plan, &mut rng);
        let listed = deployment.produce(list).await?;
        let doors_at = lasting_address()?;
        let client = DoorClient::start(doors_at, key, name, staging.senders);
        Ok(Scene {
            shared,
            deployment,
            parties,
            listed,
            rng,
            doors_at,
            client: Some(client),
            crew: BTreeMap::new(),
            step,
            environment: BTreeMap::new(),
            program: BTreeMap::new(),
            quay: None,
            proxies: Vec::new(),
            findings: Vec::new(),
            struck: 0,
            lives: 0,
        })
    }

    /// Names the step at hand.
    pub fn step(&self, name: impl Into<String>) {
        self.step.set(name);
    }

    /// A connection to the store that goes around any proxy.
    pub async fn store(&self) -> Client {
        self.deployment.store().await
    }

    /// A process of a role, ready to be started; its log and failpoints are `<role>-<life>`.
    ///
    /// # Errors
    /// The product was not built.
    pub fn launch(&mut self, role: Role) -> anyhow::Result<Launch> {
        self.lives += 1;
        let name = format!("{}-{}", role.name(), self.lives);
        let mut launch = match role {
            Role::Doors => self
                .deployment
                .role("doors", &name)?
                .setting("http.doors", self.doors_at)
                .setting("http.admin", self.doors_at),
            Role::Attribution => self.deployment.attribution(&name)?,
            Role::Delivery => self.parties.sender(&self.deployment, &name)?,
            Role::Admin
            | Role::Thresholds
            | Role::Engagement
            | Role::Recipients
            | Role::Directory => self.deployment.role(role.name(), &name)?,
        };
        if !self.shared.sabotage.is_empty() {
            launch = launch.sabotage(&self.shared.sabotage);
        }
        if let Some(program) = self.program.get(&role) {
            launch = launch.with_program(program);
        }
        for (key, value) in self.environment.get(&role).into_iter().flatten() {
            launch = launch.env(key, value);
        }
        Ok(launch)
    }

    /// Starts a process of a role.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start(&mut self, role: Role) -> anyhow::Result<&mut Process> {
        let launch = self.launch(role)?;
        self.start_as(role, &launch)
    }

    /// Starts a process of a role that was made ready by hand.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start_as(&mut self, role: Role, launch: &Launch) -> anyhow::Result<&mut Process> {
        let process = launch.spawn()?;
        let all = self.crew.entry(role).or_default();
        all.push(process);
        all.last_mut().context("just pushed")
    }

    /// Starts a process of a role with a failpoint armed; it is nobody's but the caller's.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start_armed(
        &mut self,
        role: Role,
        point: &str,
        action: &str,
    ) -> anyhow::Result<Process> {
        Ok(self.launch(role)?.failpoint(point, action).spawn()?)
    }

    /// Starts one process of each role, but `except`.
    ///
    /// # Errors
    /// One could not be started.
    pub fn start_all(&mut self, except: Option<Role>) -> anyhow::Result<()> {
        for role in Role::ALL {
            if Some(role) != except {
                self.start(role)?;
            }
        }
        Ok(())
    }

    /// The `i`th process of a role.
    ///
    /// # Errors
    /// There are fewer.
    pub fn of(&mut self, role: Role, i: usize) -> anyhow::Result<&mut Process> {
        self.crew
            .get_mut(&role)
            .and_then(|all| all.get_mut(i))
            .with_context(|| format!("no {i}th process of {}", role.name()))
    }

    /// Takes the first process of a role out of the crew, to be killed.
    ///
    /// # Errors
    /// There is none.
    pub fn take(&mut self, role: Role) -> anyhow::Result<Process> {
        let all = self.crew.entry(role).or_default();
        anyhow::ensure!(!all.is_empty(), "no process of {}", role.name());
        Ok(all.remove(0))
    }

    /// Records of the list that are consumed; 0 while the store is away.
    pub async fn consumed(&self) -> i64 {
        let ends = self.listed.ends();
        let look = async {
            let url = self.deployment.database.url();
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let sql = "SELECT topic_no, partition, next_offset FROM positions";
            let rows = client.query(sql, &[]).await?;
            let passed = rows.iter().map(|r| {
                let end = ends.get(&(r.get(0), r.get(1))).copied().unwrap_or(0);
                r.get::<_, i64>(2).min(end)
            });
            Ok::<i64, tokio_postgres::Error>(passed.sum())
        };
        look.await.unwrap_or(0)
    }

    /// Waits until so many records of the list are consumed.
    ///
    /// # Errors
    /// Not in time.
    pub async fn until_consumed(&self, records: i64) -> anyhow::Result<()> {
        eventually("records consumed", PATIENCE, async || {
            Ok((self.consumed().await >= records).then_some(()))
        })
        .await
    }

    /// Waits for a moment within what is left of the list for `lives` more faults.
    ///
    /// # Errors
    /// Nothing goes on.
    pub async fn moment(&mut self, lives: i64) -> anyhow::Result<()> {
        let at = self.consumed().await;
        let moment = next_moment(&mut self.rng, at, self.listed.places.len(), lives);
        self.until_consumed(moment).await
    }

    /// Waits until a failpoint was hit so many times, by all processes of its role together.
    ///
    /// # Errors
    /// It was not.
    pub async fn until_hit(&self, point: Point, times: u64) -> anyhow::Result<()> {
        let folder = self.deployment.scratch.path();
        let what = format!("{times} hits of {} of {}", point.1, point.0);
        eventually(&what, PATIENCE, async || {
            let hits = hits::of(&hits::read(folder), point);
            Ok((hits >= times).then_some(()))
        })
        .await
    }

    /// Waits until the senders were answered `more` times more.
    ///
    /// # Errors
    /// They are not.
    pub async fn until_answered(&self, more: u64) -> anyhow::Result<()> {
        let answered = || self.client.as_ref().map_or(0, |c| c.counts().0);
        let wanted = answered() + more;
        eventually("senders answered", PATIENCE, async || {
            Ok((answered() >= wanted).then_some(()))
        })
        .await
    }

    /// Waits until `more` requests more have come to the receivers.
    ///
    /// # Errors
    /// They have not.
    pub async fn until_arrived(&self, more: u64) -> anyhow::Result<()> {
        let wanted = self.parties.arrivals() + more;
        eventually("messages arrived", PATIENCE, async || {
            Ok((self.parties.arrivals() >= wanted).then_some(()))
        })
        .await
    }

    /// Called right after a fault: it struck if the role still has work. One that comes after the last record proves nothing.
    pub async fn strike(&mut self, role: Role) {
        let left = match role {
            // Shards end with their sessions; senders go on until they are told to stop.
            Role::Doors => match &self.quay {
                Some(_) => self.is_left("thresholds").await,
                None => self.client.is_some(),
            },
            // Whoever a kind lets call it goes on, too.
            Role::Admin => true,
            Role::Thresholds | Role::Engagement | Role::Recipients | Role::Directory => {
                self.is_left(role.name()).await
            }
            Role::Attribution => self.consumed().await < self.listed.places.len() as i64,
            Role::Delivery => {
                let store = self.store().await;
                if self.quay.is_some() {
                    // Storms wait for longer than the run takes.
                    let sql =
                        "SELECT count(*) FROM outbox_due WHERE due_at < now() + interval '10 min'";
                    let row = store.query_one(sql, &[]).await;
                    row.is_ok_and(|row| row.get::<_, i64>(0) > 0)
                } else {
                    outbox::due(&store).await.is_ok_and(|due| due > 0)
                }
            }
        };
        self.struck += u32::from(left);
    }

    /// The end of every process's log.
    #[must_use]
    pub fn last_words(&self) -> String {
        self.deployment.last_words()
    }
}
