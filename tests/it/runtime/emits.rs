//! Records for other topics: as rows for the relay, or straight into the Postgres log; either way once, and in order.

use super::{Sums, World};
use millrace::runtime::books::Emits;
use millrace::runtime::core::Core;
use millrace_schemas::emit::EmitSource;
use millrace_topics::pglog::{self, Connector, PgLogProducer, ProducerOptions};
use millrace_topics::relay::{Relay, accept};
use std::sync::Arc;

impl World {
    /// A world whose topic is one of the Postgres log.
    async fn on_postgres_log() -> World {
        let w = World::new().await;
        pglog::create_topic(&w.client, &w.topics[0]).await.unwrap();
        w
    }

    /// An owner that emits into the log itself.
    async fn direct(&self, url: &str) -> Core<Sums> {
        let core = self.core(url, &Arc::default()).await;
        core.emitting(Emits::Direct(self.topics.clone().into()))
    }

    /// Everything in the log, in its order: who emitted it as which, and what it says. All of it has one key.
    async fn log(&self) -> Vec<(EmitSource, String)> {
        #[derive(serde::Deserialize)]
        struct Said {
            said: String,
        }
        let mut all = Vec::new();
        for w in pglog::watermarks(&self.client, &self.topics).await.unwrap() {
            for offset in w.low..w.high {
                let at = pglog::record_at(&self.client, w.topic_no, w.partition, offset);
                let (key, payload) = at.await.unwrap().expect("no hole");
                assert_eq!(key, b"k");
                let said: Said = serde_json::from_slice(&payload).unwrap();
                all.push((EmitSource::of(&payload).unwrap(), said.said));
            }
        }
        all
    }

    /// Asserts that the log holds exactly this, numbered from 0, and that a receiver takes each of it; and that no row waits.
    async fn holds(&mut self, said: &[&str]) {
        let log = self.log().await;
        let got: Vec<&str> = log.iter().map(|(_, said)| said.as_str()).collect();
        assert_eq!(got, said);
        let numbers: Vec<i64> = log.iter().map(|(source, _)| source.seq).collect();
        assert_eq!(numbers, (0..log.len() as i64).collect::<Vec<_>>());
        let topic_no = self.topics[0].no;
        let arrived: Vec<_> = log
            .into_iter()
            .map(|(source, _)| (topic_no, source))
            .collect();
        let tx = self.client.transaction().await.unwrap();
        let new = accept(&tx, "receiver", 0, &arrived).await.unwrap();
        tx.rollback().await.unwrap();
        assert!(new.iter().all(|new| *new), "{new:?}");
        assert_eq!(self.count("SELECT count(*) FROM emits").await, 0);
    }
}

#[tokio::test]
async fn emits_are_frozen_and_numbered_in_the_batch_s_transaction() {
    let mut w = World::new().await;
    let mut core = w.core(w.database.url(), &Arc::default()).await;
    let batch = w.batch(&["emit=1", "a=1", "emit=2"]);
    core.process(&batch).await.unwrap();
    let batch = w.batch(&["emit=3"]);
    core.process(&batch).await.unwrap();
    let rows = w
        .client
        .query("SELECT seq, payload FROM emits ORDER BY seq", &[])
        .await
        .unwrap();
    let got: Vec<(i64, Vec<u8>)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
    assert_eq!(
        got,
        [
            (0, br#"{"said":"emit=1"}"#.to_vec()),
            (1, br#"{"said":"emit=2"}"#.to_vec()),
            (2, br#"{"said":"emit=3"}"#.to_vec())
        ]
    );
}

#[tokio::test]
async fn on_the_postgres_log_emits_are_appended_by_the_batch_itself() {
    let mut w = World::on_postgres_log().await;
    let mut core = w.direct(w.database.url()).await;
    let batch = w.batch(&["emit=1", "a=1", "emit=2"]);
    core.process(&batch).await.unwrap();
    w.holds(&["emit=1", "emit=2"]).await;
    let batch = w.batch(&["a=1", "emit=3"]);
    core.process(&batch).await.unwrap();
    // Another owner goes on where this one stood.
    let mut core = w.direct(w.database.url()).await;
    let batch = w.batch(&["emit=4"]);
    core.process(&batch).await.unwrap();
    w.holds(&["emit=1", "emit=2", "emit=3", "emit=4"]).await;
}

/// What fails at the COMMIT itself, behind the append: once for no reason of the data, then for good because of one record.
#[tokio::test]
async fn an_attempt_that_is_rolled_back_leaves_nothing_in_the_log() {
    let mut w = World::on_postgres_log().await;
    w.client
        .batch_execute(
            "CREATE SEQUENCE passages;
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 -- A sequence counts attempts that were rolled back, too.
                 IF nextval('passages') = 1 THEN
                     RAISE EXCEPTION 'not this time' USING ERRCODE = 'serialization_failure';
                 ELSIF new.name = 'bad' THEN
                     RAISE EXCEPTION 'never' USING ERRCODE = 'check_violation';
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON sums
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await
        .unwrap();
    let mut core = w.direct(w.database.url()).await;
    let batch = w.batch(&["emit=1", "a=1", "emit=2"]);
    core.process(&batch).await.unwrap();
    let attempts = w.count("SELECT last_value FROM passages").await;
    assert!(attempts > 2, "{attempts}: nothing was rolled back");
    w.holds(&["emit=1", "emit=2"]).await;
    let batch = w.batch(&["emit=3", "bad=1", "emit=4", "emit=5"]);
    core.process(&batch).await.unwrap();
    w.holds(&["emit=1", "emit=2", "emit=3", "emit=4", "emit=5"])
        .await;
    let dead = "SELECT count(*) FROM dead_letters WHERE reason = 'data_refused'";
    assert_eq!(w.count(dead).await, 1);
    assert_eq!(w.sum("emit").await, 15);
}

#[tokio::test]
async fn a_lost_reply_to_a_commit_emits_once() {
    let mut w = World::on_postgres_log().await;
    let (proxy, url) = w.proxy();
    proxy.eat_only_after("UPDATE positions");
    let mut core = w.direct(&url).await;
    proxy.eat_commit_reply(0);
    let batch = w.batch(&["emit=1", "emit=2"]);
    core.process(&batch).await.unwrap();
    assert_eq!(proxy.eaten(), 1);
    let batch = w.batch(&["emit=3"]);
    core.process(&batch).await.unwrap();
    w.holds(&["emit=1", "emit=2", "emit=3"]).await;
}

/// Rows of a build or a log that relayed: what is emitted since stays behind them, however late they leave.
#[tokio::test]
async fn what_waits_for_the_relay_leaves_before_what_comes_after() {
    let mut w = World::on_postgres_log().await;
    let mut core = w.core(w.database.url(), &Arc::default()).await;
    let batch = w.batch(&["emit=1", "emit=2"]);
    core.process(&batch).await.unwrap();
    let mut core = w.direct(w.database.url()).await;
    let batch = w.batch(&["emit=3"]);
    core.process(&batch).await.unwrap();
    assert_eq!(w.count("SELECT count(*) FROM emits").await, 3);
    let connector = Connector::plain(w.database.url()).unwrap();
    let producer = PgLogProducer::start(connector, &w.topics, ProducerOptions::default()).unwrap();
    let relay = Relay::new(Arc::new(producer), &w.topics, "sums", 0);
    assert_eq!(relay.turn(&w.client).await.unwrap().relayed, 3);
    let batch = w.batch(&["emit=4"]);
    core.process(&batch).await.unwrap();
    w.holds(&["emit=1", "emit=2", "emit=3", "emit=4"]).await;
}

/// A payload that cannot say where it comes from would block all behind it: its record is set aside instead.
#[tokio::test]
async fn an_emit_that_no_topic_takes_is_isolated() {
    for direct in [false, true] {
        let mut w = World::on_postgres_log().await;
        let mut core = match direct {
            true => w.direct(w.database.url()).await,
            false => w.core(w.database.url(), &Arc::default()).await,
        };
        let batch = w.batch(&["emit=1", "mumble=1", "a=1", "emit=2"]);
        core.process(&batch).await.unwrap();
        let dead =
            "SELECT count(*) FROM dead_letters WHERE reason = 'data_refused' AND \"offset\" = 1";
        assert_eq!(w.count(dead).await, 1);
        assert_eq!((w.sum("a").await, w.sum("mumble").await), (1, 0));
        if direct {
            w.holds(&["emit=1", "emit=2"]).await;
        } else {
            assert_eq!(w.count("SELECT count(*) FROM emits").await, 2);
        }
    }
}
