//! Attempts until a range of a batch is committed, or the actor ends: isolation of what is refused, recovery from an unknown
//! commit, stopping red.

use super::{Core, Exit, Ran, Work, stream_of};
use crate::runtime::ownership;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::Vertical;
use millrace_schemas::outcome::reason;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<V: Vertical> Core<V> {
    /// One attempt after another, until the range is committed or must be seen differently.
    pub(super) async fn run(
        &mut self,
        work: &mut Work<'_, V::Record>,
        range: Range<usize>,
        due: &[V::Due],
    ) -> Result<Ran, Exit> {
        let mut delay = Duration::from_millis(20);
        loop {
            if self.stop.load(Ordering::SeqCst) {
                return Err(Exit::Cancelled);
            }
            let failure = match self.attempt(work, range.clone(), due).await {
                Ok(()) => return Ok(Ran::Done),
                Err(failure) => failure,
            };
            if let Some(session) = &self.session
                && !session.client().is_closed()
            {
                let _ = session.batch("ROLLBACK").await;
            }
            match failure {
                Failure::Data(text) if range.len() > 1 || !due.is_empty() => {
                    tracing::warn!(partition = self.start.partition, %text, "data refused: isolating");
                    return Ok(Ran::Split);
                }
                Failure::TooMuch(text) if range.len() > 1 => {
                    tracing::debug!(partition = self.start.partition, %text, "too much at once: in halves");
                    return Ok(Ran::Split);
                }
                Failure::Data(text) => {
                    self.set_aside(work, range.start, reason::DATA_REFUSED, text)
                        .await?;
                }
                Failure::Panicked(index, text) => {
                    self.set_aside(work, index, reason::PANICKED, text).await?;
                }
                Failure::Unknown(text) => {
                    tracing::warn!(partition = self.start.partition, %text, "outcome of a commit unknown");
                    self.recover_from(Failure::Unknown(text), &mut delay)
                        .await?;
                    self.forget_consumed(work);
                    // With due records alone the caller asks the store again what is due.
                    return Ok(if due.is_empty() && self.any_left(work, &range) {
                        Ran::Again
                    } else {
                        Ran::Done
                    });
                }
                other => self.recover_from(other, &mut delay).await?,
            }
        }
    }

    fn any_left(&self, work: &Work<'_, V::Record>, range: &Range<usize>) -> bool {
        work.batch
            .records()
            .get(range.clone())
            .unwrap_or_default()
            .iter()
            .any(|r| !self.is_behind(r))
    }

    fn forget_consumed(&self, work: &mut Work<'_, V::Record>) {
        let left = |index: usize| {
            work.batch
                .records()
                .get(index)
                .is_some_and(|r| !self.is_behind(r))
        };
        work.items.retain(|i| left(i.index));
        work.poison.retain(|index, _| left(*index));
    }

    async fn set_aside(
        &mut self,
        work: &mut Work<'_, V::Record>,
        index: usize,
        reason: &'static str,
        detail: String,
    ) -> Result<(), Exit> {
        tracing::warn!(partition = self.start.partition, index, reason, %detail, "record set aside");
        if self.poison.turned_bad() {
            let why = format!("too many records that cannot be processed, the last: {detail}");
            return Err(self.stop_red(why).await);
        }
        work.poison.insert(index, (reason, detail));
        Ok(())
    }

    /// Brings the actor to where the batch may run again, or ends it.
    pub(super) async fn recover_from(
        &mut self,
        failure: Failure,
        delay: &mut Duration,
    ) -> Result<(), Exit> {
        match failure {
            Failure::Fenced => Err(Exit::Fenced),
            Failure::Stop(text) => Err(self.stop_red(text).await),
            Failure::Data(text) | Failure::TooMuch(text) | Failure::Panicked(_, text) => {
                Err(self.stop_red(text).await)
            }
            Failure::RolledBack(text) => {
                tracing::warn!(partition = self.start.partition, %text, "rolled back; again soon");
                metrics::counter!("batch_retries_total", "group" => V::GROUP.name).increment(1);
                // It may have been a day that is not there any more.
                self.days.clear();
                self.wall_day = None;
                if self
                    .session
                    .as_ref()
                    .is_some_and(|s| s.client().is_closed())
                {
                    self.session = None;
                }
                self.pause(delay).await
            }
            Failure::Unknown(_) => {
                self.session = None;
                loop {
                    if self.stop.load(Ordering::SeqCst) {
                        return Err(Exit::Cancelled);
                    }
                    match self.claim_again().await {
                        Ok(()) => return Ok(()),
                        Err(Failure::Fenced) => return Err(Exit::Fenced),
                        Err(failure) => {
                            tracing::warn!(
                                partition = self.start.partition,
                                ?failure,
                                "cannot claim again yet"
                            );
                            self.session = None;
                            self.pause(delay).await?;
                        }
                    }
                }
            }
        }
    }

    async fn pause(&mut self, delay: &mut Duration) -> Result<(), Exit> {
        let mut left = *delay;
        *delay = (*delay * 2).min(Duration::from_secs(2));
        while !left.is_zero() {
            if self.stop.load(Ordering::SeqCst) {
                return Err(Exit::Cancelled);
            }
            let step = left.min(Duration::from_millis(50));
            tokio::time::sleep(step).await;
            left -= step;
        }
        Ok(())
    }

    pub(super) async fn connected(&mut self) -> Result<(), Failure> {
        if self
            .session
            .as_ref()
            .is_some_and(|s| !s.client().is_closed())
        {
            return Ok(());
        }
        let client = (self.connect)().await.map_err(Failure::RolledBack)?;
        self.session = Some(Session::new(client));
        Ok(())
    }

    async fn claim_again(&mut self) -> Result<(), Failure> {
        self.connected().await?;
        let Some(session) = &self.session else {
            return Ok(());
        };
        let claim = ownership::reclaim(session, &self.claim).await?;
        let (progress, mark) = ownership::progress(session, &claim, &self.topics).await?;
        self.claim = claim;
        self.stream = self.stream.max(stream_of(&progress));
        self.progress = progress;
        self.start.mark = mark;
        self.vertical.reset(&self.start);
        Ok(())
    }

    pub(super) async fn stop_red(&mut self, why: String) -> Exit {
        tracing::error!(group = V::GROUP.name, partition = self.start.partition, %why, "partition stopped");
        let mut delay = Duration::from_millis(100);
        for _ in 0..20 {
            let written = match self.connected().await {
                Ok(()) => match &self.session {
                    Some(session) => ownership::stop(session, &self.claim, &why).await,
                    None => Ok(()),
                },
                Err(failure) => Err(failure),
            };
            if written.is_ok() || self.pause(&mut delay).await.is_err() {
                break;
            }
        }
        Exit::Stopped(why)
    }
}
