//! A pixel in a real store, its channel, and a stand-in for Meta.

use millrace::delivery::channel::{Channel, Leased, Sent, Target, Traits, Unready, Verdict};
use millrace::delivery::destination::Destination;
use millrace::delivery::meta::channel::MetaChannel;
use millrace::delivery::meta::event::{Occasion, freeze};
use millrace::delivery::meta::settings::Meta;
use millrace::runtime::clock::{Clock, SystemClock};
use millrace::runtime::session::Session;
use millrace::sealing::Seals;
use millrace_schemas::time::Micros;
use millrace_tests::meta_stand_in::MetaStandIn;
use millrace_tests::postgres::{TestDatabase, connect};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

pub const PIXEL: &str = "px_1";
pub const TOKEN: &str = "EAAB\"secret/token+0123456789";
pub const SECRET: &str = "app-secret-0123456789";
pub const KEY: &str = "0101010101010101010101010101010101010101010101010101010101010101";
pub const OTHER_KEY: &str = "0202020202020202020202020202020202020202020202020202020202020202";

pub struct Bench {
    pub database: TestDatabase,
    pub session: Session,
    pub meta: MetaStandIn,
    settings: Meta,
    seals: Arc<Seals>,
    workspace: i32,
    no: i32,
}

pub fn seals(key: &str) -> Arc<Seals> {
    Arc::new(Seals::from_texts(Some(key), None).unwrap())
}

/// A purchase of now, frozen as the product freezes it.
pub fn frozen(id: &str) -> String {
    let now = SystemClock.wall().0 / 1_000_000;
    let frozen = freeze(&Occasion {
        dataset: "0123",
        event_id: id,
        event_name: "Purchase",
        event_time: now,
        now,
        action_source: "website",
        event_source_url: Some("https://shop.example/offer?a=b"),
        client_user_agent: Some("Mozilla/5.0"),
        client_ip: Some("203.0.113.7"),
        fbp: Some("fb.1.1554763741205.234567890"),
        fbclid: Some("IwAR2F4-dbP0l7Mn1IawQQ"),
        clicked_ms: Some(now * 1_000),
        email_hash: Some("62a14e44f765419d10fea99367361a727c12365e2520f32218d505ed9aa0f62f"),
        click_id: Some("c1"),
        value: Some("12.50".parse().unwrap()),
        currency: Some("USD"),
        ..Occasion::default()
    });
    assert_eq!(frozen.refused, None);
    frozen.payload
}

/// One that Meta refuses and the product does not see through: no value that is a number.
pub fn bad(id: &str) -> String {
    let text = frozen(id).replace("\"value\":12.50", "\"value\":\"12.50\"");
    assert!(text.contains("\"12.50\""));
    text
}

pub fn is_retry(verdict: &Verdict, expected_unsure: bool) -> bool {
    matches!(verdict, Verdict::RetryAt { unsure, .. } if *unsure == expected_unsure)
}

impl Bench {
    pub async fn new() -> Bench {
        let database = TestDatabase::create().await;
        let session = Session::new(connect(database.url()).await);
        let meta = MetaStandIn::start().unwrap();
        meta.dataset("0123", TOKEN, None);
        let store = session.client();
        let workspace = millrace_tests::outbox::workspace(store, "acme")
            .await
            .unwrap();
        store
            .execute(
                "INSERT INTO pixels (pixel_id, workspace_id, name, dataset_id) VALUES ($1, $2, 'p', '0123')",
                &[&PIXEL, &workspace],
            )
            .await
            .unwrap();
        let no = millrace_tests::outbox::destination(store, workspace, "meta", PIXEL)
            .await
            .unwrap();
        let settings = Meta {
            graph_url: meta.url(),
            timeout_ms: 2_000,
            connect_timeout_ms: 1_000,
            ..Meta::default()
        };
        let bench = Bench {
            database,
            session,
            meta,
            settings,
            seals: seals(KEY),
            workspace,
            no,
        };
        let token = bench.sealed("pixel-access-token", TOKEN);
        bench.set("access_token_sealed", Some(token)).await;
        bench
    }

    /// One request may take so long.
    pub fn timeout(&mut self, timeout: Duration) {
        self.settings.timeout_ms = u64::try_from(timeout.as_millis()).unwrap();
    }

    pub fn key(&mut self, key: &str) {
        self.seals = seals(key);
    }

    pub fn meta_gone(&mut self) {
        self.meta = MetaStandIn::start().unwrap();
    }

    pub fn sealed(&self, what: &str, secret: &str) -> Vec<u8> {
        self.seals
            .seal(&format!("{what}:{PIXEL}"), secret.as_bytes())
            .unwrap()
    }

    pub async fn set(&self, column: &str, value: Option<Vec<u8>>) {
        let sql = format!("UPDATE pixels SET {column} = $1 WHERE pixel_id = $2");
        self.session
            .client()
            .execute(&sql, &[&value, &PIXEL])
            .await
            .unwrap();
    }

    pub async fn run(&self, sql: &str) {
        self.session.client().batch_execute(sql).await.unwrap();
    }

    pub async fn test_code(&self, code: &str) {
        self.run(&format!("UPDATE pixels SET test_event_code = '{code}'"))
            .await;
    }

    pub fn destination(&self) -> Destination {
        Destination {
            no: self.no,
            workspace: self.workspace,
            channel: "meta".to_owned(),
            reference: PIXEL.to_owned(),
        }
    }

    fn channel(&self) -> MetaChannel {
        MetaChannel::new(&self.settings, self.seals.clone(), Arc::new(SystemClock)).unwrap()
    }

    pub fn traits(&self) -> Traits {
        assert_eq!(self.channel().name(), "meta");
        self.channel().traits()
    }

    pub fn backoff(&self, attempt: u16) -> Duration {
        self.channel().backoff(attempt)
    }

    pub async fn prepare(&self) -> Result<Rc<dyn Target>, Unready> {
        self.prepare_for(&self.destination()).await
    }

    pub async fn prepare_for(&self, destination: &Destination) -> Result<Rc<dyn Target>, Unready> {
        self.channel().prepare(&self.session, destination).await
    }

    pub async fn target(&self) -> Rc<dyn Target> {
        self.prepare().await.unwrap_or_else(|e| panic!("{e:?}"))
    }

    pub fn wall(&self) -> Micros {
        SystemClock.wall()
    }

    pub fn leased(&self, payload: String) -> Leased {
        Leased {
            id: Uuid::nil(),
            created_at: self.wall(),
            due_at: self.wall(),
            attempt: 1,
            unsure_since: None,
            workspace: self.workspace,
            payload,
        }
    }

    /// Sends payloads in one request, as the dispatcher would.
    pub async fn send(&self, payloads: Vec<String>) -> Sent {
        let target = self.target().await;
        let n = payloads.len();
        let messages: Vec<Leased> = payloads.into_iter().map(|p| self.leased(p)).collect();
        for message in &messages {
            assert_eq!(target.admit(message, self.wall()), None);
        }
        let sent = target.send(messages).await;
        assert_eq!(sent.answers.len(), n);
        for answer in &sent.answers {
            let said = answer.excerpt.as_deref().unwrap_or_default();
            for secret in ["EAAB", TOKEN, SECRET, "62a14e44", "203.0.113"] {
                assert!(!said.contains(secret), "{said}");
            }
        }
        sent
    }
}
