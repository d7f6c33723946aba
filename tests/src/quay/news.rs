//! What the directory is told: who there is, and while a run goes on what changes nothing of whom is told of what, accounts of a
//! shard that has no sidecar and wishes for scopes that no firing has. Each record leaves a row of its own, so that a lost one has a
//! name.

use super::MODULE;
use super::people;
use super::stage::Quay;
use crate::deployment::{Deployment, Line};
use crate::faults::now;
use crate::recount::{Finding, Kind};
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::channel::Mode;
use millrace_schemas::directory::{Change, DirectoryRecord};
use millrace_schemas::time::Micros;
use millrace_topics::catalogue;
use std::collections::BTreeSet;

/// The shard without a sidecar.
const NORTH: &str = "north";

/// News from the `from`th on.
fn news(ws: i32, from: usize, many: usize, now: Micros) -> Vec<DirectoryRecord> {
    let people = people::all();
    let about = |n: usize| {
        let person = people.get(n / 2 % people.len().max(1));
        let record = DirectoryRecord {
            v: WIRE_VERSION,
            ws,
            accepted_at: now,
            user: person.map(|p| p.id.clone()).unwrap_or_default(),
            ..DirectoryRecord::default()
        };
        if n.is_multiple_of(2) {
            DirectoryRecord {
                change: Change::Link,
                module: Some(MODULE.to_owned()),
                shard: Some(NORTH.to_owned()),
                account: Some(format!("n{n}")),
                ..record
            }
        } else {
            DirectoryRecord {
                change: Change::Preference,
                id: Some("quay.bell.rung".to_owned()),
                channel: Some("inapp".to_owned()),
                scope: Some(format!("berth-{n}")),
                mode: Some(Mode::Off),
                ..record
            }
        }
    };
    (from..from + many).map(about).collect()
}

/// The row that a record leaves, in words, as [`ROWS`] has them; empty: it leaves none of its own.
fn row(record: &DirectoryRecord) -> String {
    let word = |text: &Option<String>| text.clone().unwrap_or_default();
    let user = &record.user;
    match record.change {
        Change::User => format!("user {user} {} {}", word(&record.email), record.role.name()),
        Change::Link => format!(
            "link {}/{}/{} {user}",
            word(&record.module),
            word(&record.shard),
            word(&record.account)
        ),
        Change::Preference => format!(
            "wish {user} '{}' '{}' {} {}",
            word(&record.id),
            word(&record.scope),
            word(&record.channel),
            record.mode.map_or("", Mode::word)
        ),
        Change::Login | Change::Unlink => String::new(),
    }
}

const ROWS: &str = "
SELECT 'user ' || user_id || ' ' || coalesce(email, '') || ' ' || role FROM users WHERE workspace_id = $1
UNION ALL
SELECT 'link ' || module || '/' || shard || '/' || account || ' ' || user_id FROM links WHERE workspace_id = $1 AND live
UNION ALL
SELECT 'wish ' || user_id || ' ''' || stream_id || ''' ''' || scope || ''' ' || channel || ' ' || mode FROM preferences
WHERE workspace_id = $1";

/// What it was told beside what it knows, and beside how many records it has taken.
fn account(said: &[DirectoryRecord], known: &BTreeSet<String>, taken: usize) -> Vec<Finding> {
    let wanted: BTreeSet<String> = said.iter().map(row).filter(|r| !r.is_empty()).collect();
    let find = |kind, what: &String| Finding {
        kind,
        what: format!("directory: {what}"),
    };
    let lost = wanted.difference(known).map(|row| find(Kind::Loss, row));
    let strange = known.difference(&wanted).map(|row| find(Kind::Wrong, row));
    let mut found: Vec<Finding> = lost.chain(strange).collect();
    if taken != said.len() {
        let kind = if taken < said.len() {
            Kind::Loss
        } else {
            Kind::Double
        };
        let what = format!("{taken} records taken of {}", said.len());
        found.push(find(kind, &what));
    }
    found
}

impl Quay {
    /// Puts records into the directory's topic.
    pub(super) async fn say(
        &mut self,
        deployment: &Deployment,
        records: Vec<DirectoryRecord>,
    ) -> anyhow::Result<()> {
        let lines = records.iter().map(|record| {
            Ok(Line {
                topic: catalogue::DIRECTORY_TOPIC.to_owned(),
                key: record.log_key().into_bytes(),
                payload: serde_json::to_vec(record)?,
            })
        });
        let lines = lines.collect::<anyhow::Result<Vec<Line>>>()?;
        deployment.append(lines).await?;
        self.said.extend(records);
        Ok(())
    }

    /// Tells the directory so much more that changes nothing of whom is told of what.
    ///
    /// # Errors
    /// The log did not take it.
    pub async fn tell_directory(
        &mut self,
        deployment: &Deployment,
        many: usize,
    ) -> anyhow::Result<()> {
        let records = news(self.workspace, self.said.len(), many, Micros(now()));
        self.say(deployment, records).await
    }

    /// Whatever the directory was told and does not know, knows and was not told, or has taken more than once.
    ///
    /// # Errors
    /// The store's.
    pub async fn account_of_directory(
        &self,
        deployment: &Deployment,
    ) -> anyhow::Result<Vec<Finding>> {
        let rows = deployment.store().await;
        let rows = rows.query(ROWS, &[&self.workspace]).await?;
        let known: BTreeSet<String> = rows.iter().map(|r| r.get(0)).collect();
        let (taken, _) = self.progress(deployment, "directory").await;
        Ok(account(&self.said, &known, taken))
    }
}

#[cfg(test)]
mod tests {
    use super::super::SHARDS;
    use super::*;

    fn said() -> Vec<DirectoryRecord> {
        let mut said = people::records(3, Micros(1));
        said.extend(news(3, said.len(), 100, Micros(2)));
        said
    }

    #[test]
    fn each_record_leaves_a_row_of_its_own_and_none_is_of_a_shard_that_streams() {
        let said = said();
        let rows: BTreeSet<String> = said.iter().map(row).collect();
        assert_eq!(rows.len(), said.len());
        assert!(!rows.contains("") && !SHARDS.contains(&NORTH));
        assert!(said.iter().all(|record| record.check().is_ok()));
    }

    #[test]
    fn what_is_lost_strange_or_taken_twice_is_found() {
        let said = said();
        let mut known: BTreeSet<String> = said.iter().map(row).collect();
        assert!(account(&said, &known, said.len()).is_empty());
        let gone = row(&said[60]);
        known.remove(&gone);
        known.insert("user nobody".to_owned());
        let kinds: Vec<Kind> = account(&said, &known, said.len() + 1)
            .iter()
            .map(|f| f.kind)
            .collect();
        assert_eq!(kinds, [Kind::Loss, Kind::Wrong, Kind::Double]);
        assert_eq!(account(&said, &known, 0).last().unwrap().kind, Kind::Loss);
    }
}
