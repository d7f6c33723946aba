//! What became of the harbour's news: outbox, inboxes and firings by plain SQL, the topic of firings by librdkafka alone, mails and
//! pushes by what the servers wrote down.

use super::plan::Told;
use super::stage::Quay;
use crate::deployment::Deployment;
use crate::log_reader::read_all;
use crate::receivers::Received;
use anyhow::Context as _;
use millrace::cli::demo::stand_ins::mail::Caught;
use millrace_topics::catalogue;
use millrace_topics::contract::TopicRef;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// A row of the outbox.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it tells whom.
    pub told: Told,
    /// How it ended.
    pub status: String,
    /// Its id.
    pub id: Uuid,
    /// Attempts that the log of sends calls delivered.
    pub delivered: i64,
}

/// A row of an inbox.
#[derive(Clone, Debug)]
pub struct Note {
    /// Its id.
    pub id: i64,
    /// Whose inbox.
    pub user: String,
    /// The firing's name.
    pub key: String,
}

/// A mail that the server took.
#[derive(Clone, Debug)]
pub struct Letter {
    /// Whom it is to.
    pub user: String,
    /// Its subject: the firing's name.
    pub key: String,
    /// Its Message-ID.
    pub id: String,
}

/// A device that was woken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake {
    /// Whose.
    pub user: String,
    /// Of which row of the inbox; none: of none.
    pub note: Option<i64>,
}

/// A firing in the log.
#[derive(Clone, Debug, Default)]
pub struct Fired {
    /// Ids under which it is there; a relay may have sent the one twice.
    pub ids: BTreeSet<String>,
    /// Where it is for the first time: partition and offset.
    pub at: (i32, i64),
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The outbox.
    pub rows: Vec<Row>,
    /// Inboxes.
    pub inbox: Vec<Note>,
    /// Mails.
    pub letters: Vec<Letter>,
    /// Pushes.
    pub wakes: Vec<Wake>,
    /// Firings that engagement has noted, by name, and how often.
    pub noted: BTreeMap<String, i64>,
    /// Firings in the log, by name.
    pub fired: BTreeMap<String, Fired>,
}

impl Quay {
    /// Looks at everything.
    ///
    /// # Errors
    /// The store's, or the log's.
    pub async fn look(&self, deployment: &Deployment) -> anyhow::Result<Seen> {
        let store = deployment.store().await;
        let mut seen = Seen::default();
        let rows = store
            .query(
                "SELECT coalesce(rule_id, ''), channel, coalesce(user_id, ''), coalesce(payload ->> 'dedupe_key', ''), status, outbox_id,
                        (SELECT count(*) FROM send_log s WHERE s.outbox_id = o.outbox_id AND s.result = 'delivered')
                 FROM outbox o WHERE workspace_id = $1 AND channel IN ('email', 'inapp', 'push')",
                &[&self.workspace],
            )
            .await?;
        for row in rows {
            seen.rows.push(Row {
                told: Told {
                    rule: row.get(0),
                    channel: row.get(1),
                    user: row.get(2),
                    key: row.get(3),
                },
                status: row.get(4),
                id: row.get(5),
                delivered: row.get(6),
            });
        }
        let sql = "SELECT notification_id, user_id, dedupe_key FROM user_notifications WHERE workspace_id = $1";
        for row in store.query(sql, &[&self.workspace]).await? {
            seen.inbox.push(Note {
                id: row.get(0),
                user: row.get(1),
                key: row.get(2),
            });
        }
        let sql = "SELECT trigger_id || ':' || dedupe, count(*) FROM firings WHERE workspace_id = $1 GROUP BY 1";
        for row in store.query(sql, &[&self.workspace]).await? {
            seen.noted.insert(row.get(0), row.get(1));
        }
        seen.fired = self.firings(&catalogue::load(&store).await?).await?;
        seen.letters = self.letters();
        seen.wakes = self.wakes();
        Ok(seen)
    }

    async fn firings(&self, topics: &[TopicRef]) -> anyhow::Result<BTreeMap<String, Fired>> {
        let topic = catalogue::find(topics, catalogue::TRIGGERS)?;
        let brokers = self.brokers().to_owned();
        let names = vec![(topic.no, topic.log_name, topic.partitions)];
        let all = tokio::task::spawn_blocking(move || read_all(&brokers, &names)).await??;
        let mut fired: BTreeMap<String, Fired> = BTreeMap::new();
        for record in all {
            let said: Value = serde_json::from_slice(&record.payload)?;
            let word = |name: &str| said[name].as_str().context("a firing says it");
            let key = format!("{}:{}", word("trigger")?, word("dedupe")?);
            let at = (record.place.partition, record.place.offset);
            let known = fired.entry(key).or_insert_with(|| Fired {
                at,
                ..Fired::default()
            });
            known.ids.insert(word("id")?.to_owned());
        }
        Ok(fired)
    }

    fn letters(&self) -> Vec<Letter> {
        let caught = self.mail.caught();
        let letter = |mail: &Caught| {
            let to = mail.to.first().map(String::as_str).unwrap_or_default();
            let header = |name| mail.header(name).unwrap_or_default();
            Letter {
                user: to.split('@').next().unwrap_or_default().to_owned(),
                // A long subject is folded.
                key: header("Subject").replace("\r\n ", ""),
                id: header("Message-ID"),
            }
        };
        caught.iter().map(letter).collect()
    }

    fn wakes(&self) -> Vec<Wake> {
        let wake = |request: &Received| {
            let said: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let note = said["ref"].as_str().unwrap_or_default();
            let path = request.target.strip_prefix("/push/").unwrap_or_default();
            Wake {
                user: path.to_owned(),
                note: note
                    .strip_prefix("notification:")
                    .and_then(|id| id.parse().ok()),
            }
        };
        self.push.received().iter().map(wake).collect()
    }
}
