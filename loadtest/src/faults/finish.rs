//! The end of a run: no more faults, everything that was begun is brought to its end, and all of it is recounted.

use super::scene::{DOORS, Role, Scene, obeyed};
use super::verify::verify;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::door_client::expected;
use millrace_tests::log_reader::read_all;
use millrace_tests::outbox;
use millrace_tests::parties::account;
use millrace_tests::process::eventually;
use millrace_tests::quay::account as account_of_quay;
use millrace_tests::recount::{Finding, Kind, recount_all};

/// What a run amounts to.
#[derive(Debug, Default)]
pub struct Recounted {
    /// Records of the generator's list.
    pub listed: usize,
    /// Records that came through doors, frames of shards among them.
    pub through_doors: usize,
    /// Messages to receivers.
    pub messages: i64,
    /// Everything that differs.
    pub findings: Vec<Finding>,
}

impl Scene {
    /// Brings everything to its end and recounts it: ledger, counters and positions; what was acknowledged at the doors; outbox
    /// and receivers; where there is a harbour, whom it told of what, and who it knows there is.
    ///
    /// # Errors
    /// Something did not come to an end.
    pub async fn finish(&mut self) -> anyhow::Result<Recounted> {
        let mut findings = std::mem::take(&mut self.findings);
        let mut wrong = |what: String| {
            findings.push(Finding {
                kind: Kind::Wrong,
                what,
            });
        };
        self.step("finish: a process of each role");
        let mut roles = Role::ALL.to_vec();
        if self.quay.is_some() {
            roles.extend(Role::OF_MODULES);
        }
        for role in roles {
            for process in self.crew.entry(role).or_default() {
                if let Some(status) = process.ended() {
                    let words = process.last_words(8);
                    wrong(format!("{} gave up ({status}):\n{words}", process.name()));
                }
            }
            if let Some(all) = self.crew.get_mut(&role) {
                all.retain_mut(|p| p.ended().is_none());
            }
            if self.crew.get(&role).is_none_or(Vec::is_empty) {
                self.start(role)?;
            }
        }
        self.step("finish: senders get their last answers");
        let book = match self.client.take() {
            Some(client) => client.finish(PATIENCE).await?,
            None => millrace_tests::door_client::Book::default(),
        };
        self.step("finish: the log is read");
        let topics = self.deployment.topics().await?;
        let partitions = self.deployment.partitions();
        let names: Vec<(i32, String, i32)> = topics
            .values()
            .map(|(no, name)| (*no, name.clone(), partitions))
            .collect();
        let brokers = self.shared.kafka.brokers().to_owned();
        let logged = tokio::task::spawn_blocking(move || read_all(&brokers, &names)).await??;
        let expected = expected(&self.listed, &logged, &topics, DOORS, &book);
        self.step("finish: everything is consumed");
        let produced = &expected.produced;
        if self.shared.sabotage.is_empty() {
            self.deployment.settled(produced, PATIENCE).await?;
        } else {
            // What is booked twice by sabotage is refused by the store here and there, and too much of that stops a partition.
            self.deployment.at_rest(produced, PATIENCE).await?;
        }
        if let Some(quay) = &mut self.quay {
            self.step.set("finish: shards have sent everything");
            quay.streamed().await?;
            self.step.set("finish: everything of the shards is decided");
            // Before anything that waits is made due: what was called off by now may never be told.
            quay.drained(&self.deployment).await?;
        }
        self.step("finish: everything is sent");
        let store = self.store().await;
        for process in &mut self.crew.remove(&Role::Delivery).unwrap_or_default() {
            let status = process.terminate(PATIENCE).await?;
            if !obeyed(process) {
                wrong(format!(
                    "{} was told to stop and ended with {status}",
                    process.name()
                ));
            }
        }
        outbox::expire_leases(&store).await?;
        self.start(Role::Delivery)?;
        eventually("nothing is due", PATIENCE, async || {
            outbox::hasten(&store).await?;
            Ok((outbox::due(&store).await? == 0).then_some(()))
        })
        .await?;
        self.step("finish: processes are told to stop");
        for process in self.crew.values_mut().flatten() {
            process.signal(libc::SIGTERM);
        }
        for process in self.crew.values_mut().flatten() {
            let status = process.wait(PATIENCE).await?;
            if !obeyed(process) {
                wrong(format!(
                    "{} was told to stop and ended with {status}",
                    process.name()
                ));
            }
        }
        self.step("finish: recount");
        findings.extend(recount_all(&store, produced).await?.findings);
        findings.extend(expected.findings);
        findings.extend(account(&store, &self.parties).await?);
        let mut frames = 0;
        if let Some(quay) = &self.quay {
            frames = quay.plan.frames();
            findings.extend(account_of_quay(
                &quay.plan,
                &quay.look(&self.deployment).await?,
            ));
            findings.extend(quay.account_of_directory(&self.deployment).await?);
        }
        self.step("finish: millrace verify");
        findings.extend(verify(self).await?);
        let sql = "SELECT count(*) FROM outbox";
        let messages = store.query_one(sql, &[]).await?.get(0);
        Ok(Recounted {
            listed: self.listed.places.len(),
            through_doors: expected.through_doors + frames,
            messages,
            findings,
        })
    }
}
