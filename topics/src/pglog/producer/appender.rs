//! The appender: takes what has come together, appends it in one statement, acknowledges.

use super::{Control, Job, ProducerOptions, Queue};
use crate::contract::{Position, ProduceError};
use crate::pglog::append::{Prepared, STATEMENT, TYPES};
use crate::pglog::{CHANNEL, Connector, describe};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};

/// At most one hint in this time.
const HINT_EVERY: Duration = Duration::from_millis(10);
/// How long the server may take to answer what is done at once.
const ANSWER: Duration = Duration::from_secs(3);
/// Pauses between attempts to connect, or to append again after a definite rollback.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

struct Session {
    client: Client,
    append: Statement,
}

/// How an append ended.
enum Failure {
    /// Rolled back for sure: it may be tried again.
    RolledBack(String),
    /// Nobody knows.
    Unknown(String),
}

pub(super) struct Appender {
    connector: Connector,
    options: ProducerOptions,
    queue: Arc<Queue>,
    jobs: mpsc::UnboundedReceiver<Job>,
    control: mpsc::UnboundedReceiver<Control>,
    pending: VecDeque<Job>,
    session: Option<Session>,
    /// Notifications are not for the appender.
    deaf: Arc<Notify>,
    hinted: Instant,
    hint_owed: bool,
    /// Set by close: give up then.
    until: Option<Instant>,
    closers: Vec<oneshot::Sender<()>>,
}

impl Appender {
    pub(super) fn new(
        connector: Connector,
        options: ProducerOptions,
        queue: Arc<Queue>,
        jobs: mpsc::UnboundedReceiver<Job>,
        control: mpsc::UnboundedReceiver<Control>,
    ) -> Appender {
        Appender {
            connector,
            options,
            queue,
            jobs,
            control,
            pending: VecDeque::new(),
            session: None,
            deaf: Arc::new(Notify::new()),
            hinted: Instant::now(),
            hint_owed: false,
            until: None,
            closers: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            while let Ok(control) = self.control.try_recv() {
                self.obey(control).await;
            }
            if self.pending.is_empty() {
                let hint_at = self.hinted + HINT_EVERY;
                tokio::select! {
                    biased;
                    Some(control) = self.control.recv() => self.obey(control).await,
                    job = self.jobs.recv() => match job {
                        Some(job) => self.pending.push_back(job),
                        None => break,
                    },
                    () = sleep_until(hint_at), if self.hint_owed => self.hint().await,
                }
                continue;
            }
            self.linger().await;
            self.append_pending().await;
        }
        if self.hint_owed {
            self.hint().await;
        }
        for done in self.closers {
            let _ = done.send(());
        }
    }

    async fn obey(&mut self, control: Control) {
        match control {
            Control::Ping(answer) => {
                let _ = answer.send(self.ping().await);
            }
            Control::Close(deadline, done) => self.closing(deadline, done),
        }
    }

    fn closing(&mut self, deadline: Instant, done: oneshot::Sender<()>) {
        self.until = Some(deadline);
        self.jobs.close();
        self.closers.push(done);
    }

    /// Takes what has come; waits for more if that is little. The wait counts from the first record's arrival, so that what
    /// came during the former append has waited already.
    async fn linger(&mut self) {
        let most = self.options.batch_records.max(1);
        let enough = self.options.linger_records.min(most);
        while self.pending.len() < most
            && let Ok(job) = self.jobs.try_recv()
        {
            self.pending.push_back(job);
        }
        let Some(due) = self.pending.front().map(|j| j.since + self.options.linger) else {
            return;
        };
        while self.pending.len() < enough {
            match timeout_at(due, self.jobs.recv()).await {
                Ok(Some(job)) => self.pending.push_back(job),
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// Appends one batch of what is pending; returns when it is settled, or when it must be tried again.
    async fn append_pending(&mut self) {
        let mut pause = BACKOFF.0;
        loop {
            self.expire("PostgreSQL is away");
            if self.pending.is_empty() {
                return;
            }
            if let Err(reason) = self.connect().await {
                tracing::warn!(%reason, "the Postgres log is away");
                self.rest(&mut pause).await;
                continue;
            }
            let (mut n, mut bytes) = (0, 0);
            for job in self.pending.iter().take(self.options.batch_records.max(1)) {
                bytes += job.bytes();
                if n > 0 && bytes > self.options.batch_bytes {
                    break;
                }
                n += 1;
            }
            let batch: Vec<Job> = self.pending.drain(..n).collect();
            let prepared = Prepared::new(
                batch
                    .iter()
                    .map(|j| (j.topic_no, j.partition, &j.key[..], &j.payload[..])),
            );
            match self.append(&prepared).await {
                Ok(rows) => {
                    metrics::histogram!("millrace_log_append_records").record(count(n));
                    let positions: Vec<_> = prepared.positions(&rows).collect();
                    for (job, position) in batch.into_iter().zip(positions) {
                        let unknown = ProduceError::UnknownTopic(job.topic_no);
                        self.settle(job, position.ok_or(unknown));
                    }
                    self.hint_owed = true;
                    if self.hinted.elapsed() >= HINT_EVERY {
                        self.hint().await;
                    }
                    return;
                }
                Err(Failure::RolledBack(reason)) => {
                    tracing::warn!(%reason, records = n, "an append was rolled back; it is tried again");
                    for job in batch.into_iter().rev() {
                        self.pending.push_front(job);
                    }
                    self.expire(&reason);
                    self.rest(&mut pause).await;
                }
                Err(Failure::Unknown(reason)) => {
                    tracing::warn!(%reason, records = n, "nobody knows how an append ended");
                    self.session = None;
                    for job in batch {
                        self.settle(job, Err(ProduceError::Unavailable(reason.clone())));
                    }
                    return;
                }
            }
        }
    }

    async fn append(&self, prepared: &Prepared) -> Result<Vec<tokio_postgres::Row>, Failure> {
        let Some(session) = &self.session else {
            return Err(Failure::RolledBack("not connected".to_owned()));
        };
        let parameters = prepared.parameters();
        let query = session.client.query(&session.append, &parameters);
        // The server bounds statements; this bounds a connection that says nothing at all.
        match timeout(self.options.give_up_after, query).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(failure(&error)),
            Err(_) => Err(Failure::Unknown("no answer in time".to_owned())),
        }
    }

    async fn connect(&mut self) -> Result<(), String> {
        if self.session.as_ref().is_some_and(|s| !s.client.is_closed()) {
            return Ok(());
        }
        self.session = None;
        let open = async {
            let client = self.connector.open(&self.deaf).await?;
            let append = client.prepare_typed(STATEMENT, &TYPES).await?;
            Ok::<_, tokio_postgres::Error>(Session { client, append })
        };
        match timeout(ANSWER, open).await {
            Ok(Ok(session)) => {
                self.session = Some(session);
                Ok(())
            }
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err("PostgreSQL does not answer".to_owned()),
        }
    }

    async fn ping(&mut self) -> Result<(), String> {
        self.connect().await?;
        let Some(session) = &self.session else {
            return Err("not connected".to_owned());
        };
        let result = match timeout(ANSWER, session.client.batch_execute("")).await {
            Ok(result) => result.map_err(|e| describe(&e)),
            Err(_) => Err("PostgreSQL does not answer".to_owned()),
        };
        if result.is_err() {
            self.session = None;
        }
        result
    }

    /// Tells readers to look. Beside the append, so that its commit takes no lock of the notification queue.
    async fn hint(&mut self) {
        self.hint_owed = false;
        self.hinted = Instant::now();
        if let Some(session) = &self.session {
            // A lost hint costs a reader at most its polling interval; a connection that says nothing is given up.
            let notify = format!("NOTIFY {CHANNEL}");
            let sent = session.client.batch_execute(&notify);
            if timeout(ANSWER, sent).await.is_err() {
                self.session = None;
            }
        }
    }

    /// Gives up what has waited too long.
    fn expire(&mut self, reason: &str) {
        while let Ok(job) = self.jobs.try_recv() {
            self.pending.push_back(job);
        }
        let now = Instant::now();
        let closed = self.until.is_some_and(|u| now >= u);
        while self
            .pending
            .front()
            .is_some_and(|j| closed || now.duration_since(j.since) >= self.options.give_up_after)
        {
            if let Some(job) = self.pending.pop_front() {
                self.settle(job, Err(ProduceError::Unavailable(reason.to_owned())));
            }
        }
    }

    /// Pauses before another attempt, answering controls meanwhile.
    async fn rest(&mut self, pause: &mut Duration) {
        let end = Instant::now() + *pause;
        *pause = (*pause * 2).min(BACKOFF.1);
        loop {
            tokio::select! {
                () = sleep_until(end) => return,
                control = self.control.recv() => match control {
                    Some(Control::Ping(answer)) => {
                        let _ = answer.send(Err("PostgreSQL is away".to_owned()));
                    }
                    Some(Control::Close(deadline, done)) => self.closing(deadline, done),
                    None => {
                        sleep(end.duration_since(Instant::now())).await;
                        return;
                    }
                },
            }
        }
    }

    fn settle(&self, job: Job, result: Result<Position, ProduceError>) {
        self.queue.records.fetch_sub(1, Ordering::Relaxed);
        self.queue.bytes.fetch_sub(job.bytes(), Ordering::Relaxed);
        // Whoever asked may have gone.
        let _ = job.acknowledge.send(result);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric of small numbers")]
fn count(n: usize) -> f64 {
    n as f64
}

/// What an error of the append says of its outcome. A statement outside of a transaction is rolled back by every error the
/// server reports of it; an error that ends the session (class 57) may have met a commit that was already written.
fn failure(error: &tokio_postgres::Error) -> Failure {
    match error.code() {
        Some(code)
            if *code == SqlState::QUERY_CANCELED
                || !matches!(code.code().get(..2), Some("57" | "08")) =>
        {
            Failure::RolledBack(describe(error))
        }
        _ => Failure::Unknown(describe(error)),
    }
}
