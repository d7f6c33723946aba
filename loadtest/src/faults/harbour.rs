//! A scene with a harbour: shards whose sidecars stream frames by the feed's door, and people who are told by mail, in their inboxes
//! and on their devices, through thresholds, engagement and recipients as processes of their own.

use super::scene::{DOORS, Role, Scene, obeyed};
use anyhow::Context as _;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::{group_shared_by, next_moment};
use millrace_tests::generator::Rng;
use millrace_tests::process::{Process, eventually};
use millrace_tests::quay::{Plan, Quay, Size};
use std::ops::Range;

impl Scene {
    /// Furnishes the scene with a harbour; nothing runs yet.
    ///
    /// # Errors
    /// Some part did not start.
    pub async fn harbour(&mut self, size: &Size) -> anyhow::Result<()> {
        self.step("a harbour");
        let plan = Plan::draw(size, &mut Rng::new(self.rng.any_u64()));
        let brokers = self.shared.kafka.brokers().to_owned();
        let quay = Quay::set(&mut self.deployment, &brokers, DOORS, plan).await?;
        self.quay = Some(quay);
        Ok(())
    }

    /// Starts a process of each role, those of modules too, but `except`; answers when everybody is known.
    ///
    /// # Errors
    /// One could not be started.
    pub async fn start_harbour(&mut self, except: Option<Role>) -> anyhow::Result<()> {
        self.start(Role::Directory)?;
        self.start_all(except)?;
        let others = Role::OF_MODULES.into_iter();
        for role in others.filter(|r| *r != Role::Directory && Some(*r) != except) {
            self.start(role)?;
        }
        self.everybody_is_known().await
    }

    /// Waits until the directory knows all that it was told.
    ///
    /// # Errors
    /// Not in time.
    pub async fn everybody_is_known(&self) -> anyhow::Result<()> {
        self.step("everybody is known");
        self.quay()?.peopled(&self.deployment).await
    }

    /// Tells the directory so much more, which changes nothing of whom is told of what.
    ///
    /// # Errors
    /// The log did not take it.
    pub async fn tell_directory(&mut self, many: usize) -> anyhow::Result<()> {
        let quay = self.quay.as_mut().context("no harbour")?;
        quay.tell_directory(&self.deployment, many).await
    }

    /// The harbour.
    ///
    /// # Errors
    /// There is none.
    pub fn quay(&self) -> anyhow::Result<&Quay> {
        self.quay.as_ref().context("no harbour")
    }

    /// Starts the sidecars of all shards with some parts of their sessions, at so many frames a second.
    ///
    /// # Errors
    /// One could not be started.
    pub fn stream(&mut self, parts: Range<usize>, rate: Option<u32>) -> anyhow::Result<()> {
        let quay = self.quay.as_mut().context("no harbour")?;
        quay.stream_all(&self.deployment, self.doors_at, parts, rate)
    }

    /// Waits until all that was begun to be sent is sent.
    ///
    /// # Errors
    /// Not in time.
    pub async fn streamed(&mut self) -> anyhow::Result<()> {
        self.quay.as_mut().context("no harbour")?.streamed().await
    }

    /// Waits until all that was begun to be sent is sent and decided.
    ///
    /// # Errors
    /// Not in time.
    pub async fn all_decided(&mut self) -> anyhow::Result<()> {
        self.streamed().await?;
        self.quay()?.drained(&self.deployment).await
    }

    /// Whether a group of the harbour has work left.
    pub async fn is_left(&self, group: &str) -> bool {
        let Some(quay) = &self.quay else {
            return false;
        };
        let (decided, wanted) = quay.progress(&self.deployment, group).await;
        decided < wanted
    }

    /// Waits for a moment within what a group of the harbour has left to decide, for `lives` more faults.
    ///
    /// # Errors
    /// Nothing goes on.
    pub async fn decided_moment(&mut self, group: &str, lives: i64) -> anyhow::Result<()> {
        let quay = self.quay.as_ref().context("no harbour")?;
        let (at, of) = quay.progress(&self.deployment, group).await;
        let moment = next_moment(&mut self.rng, i64::try_from(at)?, of, lives);
        let what = format!("{moment} decided by {group}");
        eventually(&what, PATIENCE, async || {
            let (decided, _) = quay.progress(&self.deployment, group).await;
            Ok((i64::try_from(decided)? >= moment).then_some(()))
        })
        .await
    }

    /// Waits for a moment within what of `frames` is not in the log yet, for `lives` more faults.
    ///
    /// # Errors
    /// Nothing goes on.
    pub async fn logged_moment(&mut self, frames: usize, lives: i64) -> anyhow::Result<()> {
        let quay = self.quay.as_ref().context("no harbour")?;
        let at = quay.logged(&self.deployment).await?;
        let moment = next_moment(&mut self.rng, at, frames, lives);
        eventually(
            &format!("{moment} frames in the log"),
            PATIENCE,
            async || {
                let logged = quay.logged(&self.deployment).await?;
                Ok((logged >= moment).then_some(()))
            },
        )
        .await
    }

    /// Adds a process of a role to those there are, and waits until they share the group's partitions.
    ///
    /// # Errors
    /// They do not in time.
    pub async fn joined(&mut self, role: Role) -> anyhow::Result<()> {
        self.start(role)?;
        let many = self.crew.get(&role).map_or(0, Vec::len);
        group_shared_by(&self.deployment, role.name(), many).await?;
        Ok(())
    }

    /// A process that was taken out of the crew is told to stop, and does as it is told.
    ///
    /// # Errors
    /// It does not.
    pub async fn told_to_stop(&self, mut process: Process) -> anyhow::Result<()> {
        let status = process.terminate(PATIENCE).await?;
        anyhow::ensure!(
            obeyed(&mut process),
            "told to stop, {} ended with {status}:\n{}",
            process.name(),
            process.last_words(20)
        );
        Ok(())
    }
}
