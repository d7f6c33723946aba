//! A sender is killed at each step of a message's way, again and again: what may be sent twice arrives at least once, always
//! under its own id; what may not arrives never twice; and the store knows how each ended.

use crate::delivery::sender;
use crate::faults::{now, seed, turn, with_words};
use millrace::sealing::Seals;
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::generator::Rng;
use millrace_tests::meta_stand_in::MetaStandIn;
use millrace_tests::outbox;
use millrace_tests::postgres::StopMode;
use millrace_tests::process::{Launch, eventually};
use millrace_tests::proxy::{Protocol, Proxy};
use millrace_tests::receivers::{Answer, Receiver};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Client;

/// Steps of a message's way at which the process can be made to kill itself. Between `claimed` and `answered` lies `sent`: there
/// it is killed from outside, when a receiver has the request and has not answered yet.
pub const OF_DELIVERY: [&str; 3] = ["delivery.claimed", "delivery.answered", "delivery.finished"];
/// How often at each step.
const TIMES: usize = 50;
/// What each life finds due at each destination.
const FRESH: u32 = 24;
const KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";

const DATASET: &str = "0123456789";

/// Who is sent to, counting for itself.
enum Counter {
    Http(Receiver),
    Meta(MetaStandIn),
}

impl Counter {
    fn arrivals(&self) -> u64 {
        match self {
            Counter::Http(receiver) => receiver.received().len() as u64,
            Counter::Meta(meta) => meta.counts().requests,
        }
    }

    fn linger(&self, latency: Duration) {
        match self {
            Counter::Http(receiver) => receiver.answer_all(Answer::status(200).after(latency)),
            Counter::Meta(meta) => meta.latency(latency),
        }
    }
}

/// A destination with its receiver.
struct Party {
    channel: &'static str,
    no: i32,
    counter: Counter,
    filled: u32,
}

impl Party {
    fn payload(&self, n: u32) -> String {
        match self.channel {
            "meta" => format!(
                "{{\"dataset\":\"{DATASET}\",\"event\":{{\"event_name\":\"Purchase\",\"event_time\":{},\
                 \"event_id\":\"pxe_{n}\",\"action_source\":\"website\",\
                 \"event_source_url\":\"https://t.example/c/spring\",\
                 \"user_data\":{{\"client_user_agent\":\"test\",\"client_ip_address\":\"203.0.113.7\"}},\
                 \"custom_data\":{{\"value\":1.5,\"currency\":\"USD\"}}}}}}",
                now() / 1_000_000
            ),
            _ => format!("{{\"n\":{n}}}"),
        }
    }
}

struct Scene {
    deployment: Deployment,
    store: Client,
    workspace: i32,
    parties: Vec<Party>,
}

impl Scene {
    async fn set() -> anyhow::Result<Scene> {
        let deployment = Deployment::start("delivery", Log::Postgres, 1).await?;
        let store = deployment.store().await;
        let workspace = outbox::workspace(&store, "acme").await?;
        let (hook, stub) = (Receiver::start()?, Receiver::start()?);
        let seals = Seals::from_texts(Some(KEY), None)?;
        let secret = b"whsec_bWlsbHJhY2UtbWlsbHJhY2UtbWlsbHJhY2UtMzI=";
        let sealed = seals.seal("webhook-secret:wh_1", secret)?;
        store
            .execute(
                "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events, secret_sealed)
                 VALUES ('wh_1', $1, 'hook', $2, '{visit}', $3)",
                &[&workspace, &hook.url("/hook"), &sealed],
            )
            .await?;
        let hook_no = outbox::destination(&store, workspace, "webhook", "wh_1").await?;
        let stub_no = outbox::destination(&store, workspace, "stub", &stub.url("/in")).await?;
        let meta = MetaStandIn::start()?;
        meta.dataset(DATASET, "token-1", None);
        let token = seals.seal("pixel-access-token:px_1", b"token-1")?;
        store
            .execute(
                "INSERT INTO pixels (pixel_id, workspace_id, name, dataset_id, currency, access_token_sealed)
                 VALUES ('px_1', $1, 'pixel', $2, 'USD', $3)",
                &[&workspace, &DATASET, &token],
            )
            .await?;
        let meta_no = outbox::destination(&store, workspace, "meta", "px_1").await?;
        let party = |channel, no, counter| Party {
            channel,
            no,
            counter,
            filled: 0,
        };
        let parties = vec![
            party("webhook", hook_no, Counter::Http(hook)),
            party("stub", stub_no, Counter::Http(stub)),
            party("meta", meta_no, Counter::Meta(meta)),
        ];
        Ok(Scene {
            deployment,
            store,
            workspace,
            parties,
        })
    }

    fn launch(&self, name: &str) -> Launch {
        let graph = self.parties.iter().find_map(|p| match &p.counter {
            Counter::Meta(meta) => Some(meta.url()),
            Counter::Http(_) => None,
        });
        sender(&self.deployment, name)
            .env("MILLRACE_SECRET_KEY", KEY)
            .setting("delivery.meta.graph_url", graph.unwrap_or_default())
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        for p in &mut self.parties {
            let range = p.filled..p.filled + FRESH;
            p.filled = range.end;
            let payload = |n| p.payload(n);
            outbox::fill(&self.store, self.workspace, p.channel, p.no, range, payload).await?;
        }
        Ok(())
    }

    fn arrivals(&self) -> u64 {
        self.parties.iter().map(|p| p.counter.arrivals()).sum()
    }

    fn linger(&self, latency: Duration) {
        for p in &self.parties {
            p.counter.linger(latency);
        }
    }

    /// One life that ends at a step.
    async fn die_at(&mut self, step: &str, rng: &mut Rng) -> anyhow::Result<()> {
        self.fill().await?;
        outbox::expire_leases(&self.store).await?;
        if step == "sent" {
            let before = self.arrivals();
            self.linger(Duration::from_millis(300));
            let mut process = self.launch("sent").spawn()?;
            eventually("a request has come", PATIENCE, async || {
                Ok((self.arrivals() > before).then_some(()))
            })
            .await?;
            process.kill()?;
            self.linger(Duration::ZERO);
            return Ok(());
        }
        let most = if step == "delivery.answered" { 30 } else { 3 };
        let action = format!("abort@{}", 1 + rng.below(most));
        let mut process = self.launch(step).failpoint(step, &action).spawn()?;
        crate::faults::killed_itself(&mut process).await
    }

    /// A life that is not disturbed brings everything to its end.
    async fn finish(&self) -> anyhow::Result<()> {
        outbox::expire_leases(&self.store).await?;
        let process = self.launch("undisturbed").spawn()?;
        eventually("nothing is due", PATIENCE, async || {
            outbox::hasten(&self.store).await?;
            Ok((outbox::due(&self.store).await? == 0).then_some(()))
        })
        .await?;
        drop(process);
        Ok(())
    }
}

/// How often each body came, and under which ids.
fn by_body(receiver: &Receiver, header: &str) -> BTreeMap<Vec<u8>, Vec<String>> {
    let mut found: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    for r in receiver.received() {
        let id = r.headers.iter().find(|(name, _)| name == header);
        let id = id.map(|(_, value)| value.clone()).unwrap_or_default();
        found.entry(r.body.to_vec()).or_default().push(id);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_fifty_times_at_each_step_nothing_is_lost_and_nothing_not_to_be_repeated_is_repeated()
 {
    let _turn = turn().await;
    let mut rng = Rng::new(seed() ^ 40);
    let mut scene = Scene::set().await.unwrap();
    let run = async {
        for _ in 0..TIMES {
            scene.die_at("sent", &mut rng).await?;
            for step in OF_DELIVERY {
                scene.die_at(step, &mut rng).await?;
            }
            // Each death has used an attempt of what it held, and a message has eight.
            scene.finish().await?;
        }
        for p in &scene.parties {
            let statuses = outbox::statuses(&scene.store, p.no).await?;
            judge(&scene.store, p, &statuses, true).await?;
        }
        Ok(())
    };
    let result = run.await;
    with_words(&scene.deployment, result);
}

/// `killed`: senders died, so that some outcomes must be unknown and some events must have come twice.
async fn judge(
    store: &Client,
    p: &Party,
    statuses: &BTreeMap<String, i64>,
    killed: bool,
) -> anyhow::Result<()> {
    let ended = |status: &str| statuses.get(status).copied().unwrap_or(0);
    let all = i64::from(p.filled);
    match (&p.counter, p.channel) {
        (Counter::Meta(meta), _) => {
            anyhow::ensure!(ended("sent") == all, "meta: {statuses:?} of {all}");
            let counts = meta.counts();
            anyhow::ensure!(counts.unique == u64::from(p.filled), "{counts:?} of {all}");
            let missing = (0..p.filled)
                .filter(|n| meta.times(DATASET, "Purchase", &format!("pxe_{n}")) == 0)
                .count();
            anyhow::ensure!(missing == 0, "{missing} events never came");
            let struck = !killed || counts.duplicates > 0;
            anyhow::ensure!(struck, "no kill struck an answered request");
        }
        (Counter::Http(receiver), "webhook") => {
            anyhow::ensure!(ended("sent") == all, "webhooks: {statuses:?} of {all}");
            let came = by_body(receiver, "webhook-id");
            anyhow::ensure!(
                came.len() == p.filled as usize,
                "{} of {all} came",
                came.len()
            );
            for (body, ids) in &came {
                let one = ids.iter().all(|id| !id.is_empty() && id == &ids[0]);
                anyhow::ensure!(one, "{body:?} came under {ids:?}");
            }
            let mut ids: Vec<&String> = came.values().map(|ids| &ids[0]).collect();
            ids.sort_unstable();
            ids.dedup();
            anyhow::ensure!(ids.len() == came.len(), "an id stands for two messages");
        }
        (Counter::Http(receiver), _) => {
            let (sent, unknown) = (ended("sent"), ended("unknown"));
            anyhow::ensure!(sent + unknown == all, "stub: {statuses:?} of {all}");
            let came = by_body(receiver, "x-millrace-message");
            let twice = came.values().filter(|ids| ids.len() > 1).count();
            anyhow::ensure!(twice == 0, "{twice} messages came twice");
            for id in outbox::in_status(store, p.no, "sent").await? {
                let body = p.payload(id.as_u128() as u32);
                anyhow::ensure!(
                    came.contains_key(body.as_bytes()),
                    "{body} is sent and never came"
                );
            }
            let struck = !killed || unknown > 0;
            anyhow::ensure!(struck, "no kill left an outcome unknown");
        }
    }
    Ok(())
}

/// The store dies and comes back while messages are on their way: what was sent is written down when it is back, and no process
/// needs help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_is_killed_and_restarted_while_messages_are_sent() {
    let _turn = turn().await;
    let mut scene = Scene::set().await.unwrap();
    let run = async {
        for _ in 0..40 {
            scene.fill().await?;
        }
        scene.linger(Duration::from_millis(5));
        let mut process = scene.launch("sender").spawn()?;
        for (i, kill) in [true, false, true].into_iter().enumerate() {
            let before = scene.arrivals();
            eventually("more has come", PATIENCE, async || {
                Ok((scene.arrivals() > before + 100).then_some(()))
            })
            .await?;
            let left = outbox::due(&scene.store).await?;
            anyhow::ensure!(
                left > 0,
                "the store dies for the {i}th time when all is sent"
            );
            scene
                .deployment
                .with_server(move |server| {
                    if kill {
                        server.kill();
                    } else {
                        server.stop(StopMode::Fast);
                    }
                    server.start_again();
                })
                .await?;
            scene.store = scene.deployment.store().await;
        }
        eventually("nothing is due", PATIENCE, async || {
            outbox::hasten(&scene.store).await?;
            Ok((outbox::due(&scene.store).await? == 0).then_some(()))
        })
        .await?;
        for p in &scene.parties {
            let statuses = outbox::statuses(&scene.store, p.no).await?;
            judge(&scene.store, p, &statuses, false).await?;
        }
        anyhow::ensure!(process.ended().is_none(), "the sender gave up");
        Ok(())
    };
    let result = run.await;
    with_words(&scene.deployment, result);
}

/// The reply to the COMMIT that writes down what was sent is lost, again and again: every message ends once, and every attempt
/// stands once in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_to_finishing_commits_are_lost() {
    let _turn = turn().await;
    let mut scene = Scene::set().await.unwrap();
    let run = async {
        for _ in 0..20 {
            scene.fill().await?;
        }
        let address = scene.deployment.database_address();
        let proxy = Proxy::start(address.parse()?, Protocol::Postgres)?;
        proxy.eat_only_after("COPY send_log");
        // Ends are written many at once: a run has few such commits, and fewer the slower the store is.
        for skip in [0, 1, 0] {
            proxy.eat_commit_reply(skip);
        }
        let url = scene.deployment.database.url();
        let url = url.replace(address, &proxy.address().to_string());
        let launch = scene.launch("sender").env("DATABASE_URL", url);
        scene.linger(Duration::from_millis(5));
        let _process = launch.spawn()?;
        eventually("nothing is due", PATIENCE, async || {
            outbox::hasten(&scene.store).await?;
            Ok((outbox::due(&scene.store).await? == 0).then_some(()))
        })
        .await?;
        anyhow::ensure!(proxy.eaten() == 3, "{} replies eaten", proxy.eaten());
        let twice = "SELECT count(*) - count(DISTINCT (outbox_id, attempt)) FROM send_log WHERE attempt > 0";
        let twice: i64 = scene.store.query_one(twice, &[]).await?.get(0);
        anyhow::ensure!(twice == 0, "{twice} attempts stand in the log twice");
        for p in &scene.parties {
            let statuses = outbox::statuses(&scene.store, p.no).await?;
            judge(&scene.store, p, &statuses, false).await?;
        }
        Ok(())
    };
    let result = run.await;
    with_words(&scene.deployment, result);
}
