//! A deployment furnished for the harbour: its module in a folder of the run's own, shards with their tokens, people in the directory's
//! topic, rules, a mail server and devices. And the sidecars: `millrace feed send` as a process a shard.

use super::people;
use super::plan::Plan;
use super::rules::RULES;
use super::{MODULE, PROTOCOL, SHARDS, changed_manifest, manifest};
use crate::deployment::{Deployment, PATIENCE};
use crate::faults::now;
use crate::log_reader::Watermarks;
use crate::process::{Launch, Process, eventually};
use crate::receivers::Receiver;
use anyhow::Context as _;
use millrace::api::keys::ApiKey;
use millrace::cli::demo::stand_ins::mail::Mail;
use millrace_schemas::directory::DirectoryRecord;
use millrace_schemas::time::Micros;
use millrace_topics::catalogue;
use millrace_topics::contract::TopicRef;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_postgres::Client;

/// The groups in the order in which news go through them, each with its topic; who there is comes first.
const WAY: [(&str, &str); 4] = [
    ("directory", catalogue::DIRECTORY_TOPIC),
    ("thresholds", catalogue::FRAMES),
    ("engagement", catalogue::TRIGGERS),
    ("recipients", catalogue::NOTICES),
];

/// A shard's sidecar at work.
pub struct Sidecar {
    /// Which shard.
    pub shard: usize,
    launch: Launch,
    process: Process,
}

/// A harbour over a deployment.
pub struct Quay {
    /// Its workspace.
    pub workspace: i32,
    /// What its shards send.
    pub plan: Plan,
    /// Its mail server.
    pub mail: Mail,
    /// What its devices are woken through.
    pub push: Receiver,
    /// Sidecars that were started.
    pub sidecars: Vec<Sidecar>,
    /// What the directory was told.
    pub(super) said: Vec<DirectoryRecord>,
    folder: PathBuf,
    tokens: Vec<String>,
    marks: Arc<Watermarks>,
    brokers: String,
    lives: u32,
}

impl Quay {
    /// Furnishes a deployment, in which nothing runs yet that has a role of modules; processes started from now on have its settings.
    ///
    /// # Errors
    /// Some part did not start, or the store's.
    pub async fn set(
        deployment: &mut Deployment,
        brokers: &str,
        workspace: i32,
        plan: Plan,
    ) -> anyhow::Result<Quay> {
        let folder = deployment.scratch.path().join("modules");
        std::fs::create_dir_all(&folder)?;
        let (mail, push) = (Mail::start()?, Receiver::start()?);
        let mut quay = Quay {
            workspace,
            plan,
            mail,
            push,
            sidecars: Vec::new(),
            said: Vec::new(),
            folder,
            tokens: Vec::new(),
            marks: Arc::new(Watermarks::new(brokers)?),
            brokers: brokers.to_owned(),
            lives: 0,
        };
        quay.write_manifest(&manifest())?;
        deployment.set("modules.enabled", MODULE);
        deployment.set("modules.dir", quay.folder.display());
        deployment.set("http.public_url", "https://millrace.example");
        deployment.set("delivery.push.origins", quay.push.url(""));
        let store = deployment.store().await;
        quay.shards(&store).await?;
        quay.channels(&store).await?;
        quay.rules(&store).await?;
        quay.say(deployment, people::records(workspace, Micros(now())))
            .await?;
        Ok(quay)
    }

    fn write_manifest(&self, text: &str) -> std::io::Result<()> {
        // Whole or not at all: a process that starts in between reads one of the two.
        let (new, file) = (self.folder.join("new"), self.folder.join("quay.toml"));
        std::fs::write(&new, text)?;
        std::fs::rename(new, file)
    }

    /// The module's manifest is another from now on, for whoever reads it from now on.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn change_manifest(&self) -> std::io::Result<()> {
        self.write_manifest(&changed_manifest())
    }

    async fn shards(&mut self, store: &Client) -> anyhow::Result<()> {
        for shard in SHARDS {
            store
                .execute(
                    "INSERT INTO shards (shard_id, workspace_id, name, module, protocol) VALUES ($1, $2, $1, $3, $4)",
                    &[&shard, &self.workspace, &MODULE, &i32::try_from(PROTOCOL)?],
                )
                .await?;
            let token = ApiKey::generate_as("ft_")?;
            store
                .execute(
                    "INSERT INTO shard_tokens (token_id, workspace_id, shard_id, name, secret_digest, created_by)
                     VALUES ($1, $2, $3, 'sidecar', $4, 'test')",
                    &[&token.id(), &self.workspace, &shard, &token.digest().as_slice()],
                )
                .await?;
            self.tokens.push(token.reveal());
        }
        Ok(())
    }

    async fn channels(&self, store: &Client) -> anyhow::Result<()> {
        let port = i32::from(self.mail.address().port());
        store
            .execute(
                "INSERT INTO mail_transports (workspace_id, transport_id, enabled, host, port, security, sender_address, brand_name,
                        message_domain)
                 VALUES ($1, 'mt_quay', true, '127.0.0.1', $2, 'none', 'news@quay.example', 'Quay', 'quay.example')",
                &[&self.workspace, &port],
            )
            .await?;
        for person in people::all().iter().filter(|p| p.device) {
            let endpoint = self.push.url(&person.path());
            store
                .execute(
                    "INSERT INTO push_subscriptions (subscription_id, workspace_id, user_id, endpoint)
                     VALUES ('ps_' || $2::text, $1, $2, $3)",
                    &[&self.workspace, &person.id, &endpoint],
                )
                .await?;
        }
        Ok(())
    }

    async fn rules(&self, store: &Client) -> anyhow::Result<()> {
        for rule in RULES {
            store
                .execute(
                    "INSERT INTO rules (rule_id, workspace_id, trigger_id, name, enabled, channels, audience, delay_s, cooldown_s,
                            hourly_cap, cancel_on)
                     VALUES ($1, $2, $3, $1, true, $4, $5, $6, $7, $8, $9)",
                    &[
                        &rule.id,
                        &self.workspace,
                        &rule.trigger,
                        &rule.channels,
                        &rule.audience,
                        &rule.delay_s,
                        &rule.cooldown_s,
                        &rule.hourly_cap,
                        &rule.cancel_on,
                    ],
                )
                .await?;
        }
        Ok(())
    }

    /// Waits until the directory knows everybody: what comes before is told to nobody.
    ///
    /// # Errors
    /// Not in time.
    pub async fn peopled(&self, deployment: &Deployment) -> anyhow::Result<()> {
        // Each record leaves a row.
        let wanted = i64::try_from(self.said.len())?;
        let store = deployment.store().await;
        let sql = "SELECT (SELECT count(*) FROM users WHERE workspace_id = $1)
                        + (SELECT count(*) FROM links WHERE workspace_id = $1 AND live)
                        + (SELECT count(*) FROM preferences WHERE workspace_id = $1)";
        eventually("everybody is known", PATIENCE, async || {
            let known: i64 = store.query_one(sql, &[&self.workspace]).await?.get(0);
            Ok((known == wanted).then_some(()))
        })
        .await
    }

    /// Starts the sidecar of a shard with some parts of its session.
    ///
    /// # Errors
    /// It could not be started.
    pub fn stream(
        &mut self,
        deployment: &Deployment,
        doors: SocketAddr,
        shard: usize,
        parts: Range<usize>,
        rate: Option<u32>,
    ) -> anyhow::Result<()> {
        self.lives += 1;
        let name = format!("sidecar-{}-{}", SHARDS[shard], self.lives);
        let session: Vec<String> = parts
            .filter_map(|part| self.plan.sessions.get(part)?.get(shard))
            .flatten()
            .cloned()
            .collect();
        let file = deployment.scratch.path().join(format!("{name}.ndjson"));
        std::fs::write(&file, session.join("\n"))?;
        let token = self.tokens.get(shard).context("a token")?;
        let mut launch = deployment
            .launch(&name)?
            .args(["--json", "feed", "send"])
            .arg(&file)
            .args(["--url", &format!("http://{doors}/feed/{}", SHARDS[shard])])
            .env("MILLRACE_FEED_TOKEN", token);
        if let Some(rate) = rate {
            launch = launch.args(["--rate", &rate.to_string()]);
        }
        let process = launch.spawn()?;
        self.sidecars.push(Sidecar {
            shard,
            launch,
            process,
        });
        Ok(())
    }

    /// As [`Quay::stream`], of all shards.
    ///
    /// # Errors
    /// One could not be started.
    pub fn stream_all(
        &mut self,
        deployment: &Deployment,
        doors: SocketAddr,
        parts: Range<usize>,
        rate: Option<u32>,
    ) -> anyhow::Result<()> {
        for shard in 0..SHARDS.len() {
            self.stream(deployment, doors, shard, parts.clone(), rate)?;
        }
        Ok(())
    }

    /// SIGKILL for the `nth` sidecar; another one begins its session again from the first frame. Whether it was still sending.
    ///
    /// # Errors
    /// There is none, or it could not be started.
    pub fn kill_sidecar(&mut self, nth: usize) -> anyhow::Result<bool> {
        let sidecar = self.sidecars.get_mut(nth).context("no such sidecar")?;
        sidecar.process.kill()?;
        let struck = sidecar.process.killed_by() == Some(libc::SIGKILL);
        sidecar.process = sidecar.launch.spawn()?;
        Ok(struck)
    }

    /// Waits until every sidecar has sent all of its session.
    ///
    /// # Errors
    /// One did not in time, or was refused something.
    pub async fn streamed(&mut self) -> anyhow::Result<()> {
        for sidecar in &mut self.sidecars {
            let status = sidecar.process.wait(PATIENCE).await?;
            anyhow::ensure!(
                status.success(),
                "{} ended with {status}:\n{}",
                sidecar.process.name(),
                sidecar.process.last_words(20)
            );
        }
        Ok(())
    }

    /// Frames in the log, those that were sent again with them.
    ///
    /// # Errors
    /// The log's or the store's.
    pub async fn logged(&self, deployment: &Deployment) -> anyhow::Result<i64> {
        let store = deployment.store().await;
        let topic = catalogue::find(&catalogue::load(&store).await?, catalogue::FRAMES)?;
        let ends = self.ends(&topic).await?;
        Ok(ends.iter().map(|(_, end)| end).sum())
    }

    /// Where each partition of a topic ends.
    async fn ends(&self, topic: &TopicRef) -> anyhow::Result<Vec<(i32, i64)>> {
        let (marks, topic) = (Arc::clone(&self.marks), topic.clone());
        tokio::task::spawn_blocking(move || marks.ends(&topic.log_name, topic.partitions)).await?
    }

    /// Waits until everything that is in the log by now was decided to its end: people, frames, what those fired, what that tells.
    ///
    /// # Errors
    /// Not in time.
    pub async fn drained(&self, deployment: &Deployment) -> anyhow::Result<()> {
        let store = deployment.store().await;
        let topics = catalogue::load(&store).await?;
        for (group, name) in WAY {
            let topic = catalogue::find(&topics, name)?;
            let ends = self.ends(&topic).await?;
            let what = format!("everything of {name} is decided");
            eventually(&what, PATIENCE, async || {
                let sql = "SELECT partition, next_offset FROM positions WHERE group_name = $1 AND topic_no = $2";
                let rows = store.query(sql, &[&group, &topic.no]).await?;
                let stands = |partition: i32| {
                    let row = rows.iter().find(|r| r.get::<_, i32>(0) == partition);
                    row.map_or(0, |r| r.get::<_, i64>(1))
                };
                let done = ends.iter().all(|(at, end)| stands(*at) >= *end);
                Ok(done.then_some(()))
            })
            .await?;
            let what = format!("what {group} emits is in the log");
            eventually(&what, PATIENCE, async || {
                let sql = "SELECT count(*) FROM emits WHERE group_name = $1";
                let left: i64 = store.query_one(sql, &[&group]).await?.get(0);
                Ok((left == 0).then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// How much a group has decided, the same thing sent again apart, and how much it must decide at least. 0 while the store is
    /// away.
    pub async fn progress(&self, deployment: &Deployment, group: &str) -> (usize, usize) {
        let wanted = match group {
            "thresholds" => self.plan.frames(),
            "engagement" => self.plan.must_fire(),
            "directory" => self.said.len(),
            _ => self.plan.notices,
        };
        let look = async {
            let url = deployment.database.url();
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let sql = "SELECT coalesce(sum(n), 0)::bigint FROM outcomes WHERE group_name = $1 AND outcome = 0";
            let row = client.query_one(sql, &[&group]).await?;
            Ok::<i64, tokio_postgres::Error>(row.get(0))
        };
        let decided = look.await.unwrap_or(0);
        (usize::try_from(decided).unwrap_or(0), wanted)
    }

    /// `bootstrap.servers` of its log.
    #[must_use]
    pub fn brokers(&self) -> &str {
        &self.brokers
    }
}
