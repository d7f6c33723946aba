//! Who is sent to: a webhook, a destination that may never be asked twice, and a pixel of Meta's, each counting for itself,
//! with messages put into the outbox by plain SQL; and whether what came of them is right.

mod account;

pub use account::account;

use crate::deployment::Deployment;
use crate::faults::now;
use crate::meta_stand_in::MetaStandIn;
use crate::outbox;
use crate::process::Launch;
use crate::receivers::{Answer, Receiver};
use millrace::sealing::Seals;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Client;

/// The key under which the parties' secrets are sealed: `MILLRACE_SECRET_KEY` of whoever sends to them.
pub const KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";
/// The dataset of the pixel.
pub const DATASET: &str = "0123456789";
const WEBHOOK_SECRET: &[u8] = b"whsec_bWlsbHJhY2UtbWlsbHJhY2UtbWlsbHJhY2UtMzI=";

/// Who is sent to, counting for itself.
pub enum Counter {
    /// A webhook, or a destination that is not idempotent.
    Http(Receiver),
    /// Meta.
    Meta(MetaStandIn),
}

impl Counter {
    /// Requests so far.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        match self {
            Counter::Http(receiver) => receiver.received().len() as u64,
            Counter::Meta(meta) => meta.counts().requests,
        }
    }

    /// Lets every answer take so long from now on.
    pub fn linger(&self, latency: Duration) {
        match self {
            Counter::Http(receiver) => receiver.answer_all(Answer::status(200).after(latency)),
            Counter::Meta(meta) => meta.latency(latency),
        }
    }
}

/// A destination with its receiver.
pub struct Party {
    /// Its channel.
    pub channel: &'static str,
    /// Its number in the store.
    pub no: i32,
    /// Its receiver.
    pub counter: Counter,
    /// Messages put into its outbox by [`Parties::fill`] so far.
    pub filled: u32,
}

impl Party {
    /// The `n`th message.
    #[must_use]
    pub fn payload(&self, n: u32) -> String {
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

/// One of each.
pub struct Parties {
    /// The workspace they belong to.
    pub workspace: i32,
    /// Webhook `wh_1`, the stub, pixel `px_1`; in this order.
    pub all: Vec<Party>,
}

impl Parties {
    /// Makes them for a workspace; `events` is what the webhook listens to.
    ///
    /// # Errors
    /// The store's, or no port is free.
    pub async fn set(store: &Client, workspace: i32, events: &[&str]) -> anyhow::Result<Parties> {
        let (hook, stub) = (Receiver::start()?, Receiver::start()?);
        let seals = Seals::from_texts(Some(KEY), None)?;
        let sealed = seals.seal("webhook-secret:wh_1", WEBHOOK_SECRET)?;
        store
            .execute(
                "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events, secret_sealed)
                 VALUES ('wh_1', $1, 'hook', $2, $3, $4)",
                &[&workspace, &hook.url("/hook"), &events, &sealed],
            )
            .await?;
        let hook_no = outbox::destination(store, workspace, "webhook", "wh_1").await?;
        let stub_no = outbox::destination(store, workspace, "stub", &stub.url("/in")).await?;
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
        let meta_no = outbox::destination(store, workspace, "meta", "px_1").await?;
        let party = |channel, no, counter| Party {
            channel,
            no,
            counter,
            filled: 0,
        };
        let all = vec![
            party("webhook", hook_no, Counter::Http(hook)),
            party("stub", stub_no, Counter::Http(stub)),
            party("meta", meta_no, Counter::Meta(meta)),
        ];
        Ok(Parties { workspace, all })
    }

    /// A process that delivers to them.
    ///
    /// # Errors
    /// The product was not built.
    pub fn sender(&self, deployment: &Deployment, name: &str) -> anyhow::Result<Launch> {
        Ok(deployment
            .delivery(name)?
            .env("MILLRACE_SECRET_KEY", KEY)
            .setting("delivery.meta.graph_url", self.meta().url()))
    }

    /// The webhook's receiver.
    ///
    /// # Panics
    /// Never: [`Parties::set`] has made it.
    #[must_use]
    pub fn hook(&self) -> &Receiver {
        self.http("webhook")
    }

    /// The receiver that may not be asked twice.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn stub(&self) -> &Receiver {
        self.http("stub")
    }

    fn http(&self, channel: &str) -> &Receiver {
        let found = self.all.iter().find_map(|p| match &p.counter {
            Counter::Http(receiver) if p.channel == channel => Some(receiver),
            _ => None,
        });
        found.expect("one of each")
    }

    /// Meta's stand-in.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn meta(&self) -> &MetaStandIn {
        let found = self.all.iter().find_map(|p| match &p.counter {
            Counter::Meta(meta) => Some(meta),
            Counter::Http(_) => None,
        });
        found.expect("one of each")
    }

    /// Puts `fresh` more messages into the outbox of each.
    ///
    /// # Errors
    /// The store's.
    pub async fn fill(&mut self, store: &Client, fresh: u32) -> anyhow::Result<()> {
        for i in 0..self.all.len() {
            self.fill_one(store, i, fresh).await?;
        }
        Ok(())
    }

    /// Puts `fresh` more messages into the outbox of the `i`th.
    ///
    /// # Errors
    /// The store's.
    pub async fn fill_one(&mut self, store: &Client, i: usize, fresh: u32) -> anyhow::Result<()> {
        let p = &mut self.all[i];
        let range = p.filled..p.filled + fresh;
        p.filled = range.end;
        let payload = |n| p.payload(n);
        outbox::fill(store, self.workspace, p.channel, p.no, range, payload).await
    }

    /// Requests to all of them so far.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.all.iter().map(|p| p.counter.arrivals()).sum()
    }

    /// Lets every answer take so long from now on.
    pub fn linger(&self, latency: Duration) {
        for p in &self.all {
            p.counter.linger(latency);
        }
    }
}

/// How often each body came, and under which ids.
#[must_use]
pub fn by_body(receiver: &Receiver, header: &str) -> BTreeMap<Vec<u8>, Vec<String>> {
    let mut found: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    for r in receiver.received() {
        let id = r.header(header).unwrap_or_default().to_owned();
        found.entry(r.body.to_vec()).or_default().push(id);
    }
    found
}

/// Whether what became of the messages of one party, and what its receiver saw of them, is right. `killed`: senders died, so that
/// some outcomes must be unknown and some events must have come twice.
///
/// # Errors
/// What is not right.
pub async fn judge(
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
