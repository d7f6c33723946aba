//! Webhooks and the channel `stub` against real servers on loopback and a real PostgreSQL.

mod answers;
mod dispatched;
mod endpoint;
mod guard;
mod signed;
mod stub;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use millrace::delivery::address_guard::AddressGuard;
use millrace::delivery::channel::{Answer, Channel, Leased, Sent, Target, Unready};
use millrace::delivery::destination::Destination;
use millrace::delivery::webhook::WebhookChannel;
use millrace::delivery::webhook::settings::Webhook;
use millrace::runtime::clock::ManualClock;
use millrace::runtime::session::Session;
use millrace::sealing::Seals;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::TestDatabase;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const FORMER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const ID: &str = "wh_1";
/// 2026-01-01T00:00:00Z.
const START: Micros = Micros(1_767_225_600_000_000);
const SOON: Duration = Duration::from_secs(20);
const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

fn seals() -> Arc<Seals> {
    let key = "0101010101010101010101010101010101010101010101010101010101010101";
    Arc::new(Seals::from_texts(Some(key), None).unwrap())
}

fn other_seals() -> Arc<Seals> {
    let key = "0202020202020202020202020202020202020202020202020202020202020202";
    Arc::new(Seals::from_texts(Some(key), None).unwrap())
}

fn sealed(secret: &str) -> Vec<u8> {
    let purpose = format!("webhook-secret:{ID}");
    seals().seal(&purpose, secret.as_bytes()).unwrap()
}

fn loopback() -> AddressGuard {
    AddressGuard::new(&["127.0.0.0/8"]).unwrap()
}

fn quick() -> Webhook {
    Webhook {
        timeout_ms: 700,
        connect_timeout_ms: 300,
        ..Webhook::default()
    }
}

/// A workspace with one endpoint, its destination, and a channel over a clock that the test moves.
struct Ground {
    database: TestDatabase,
    session: Session,
    clock: Arc<ManualClock>,
    destination: Destination,
    channel: WebhookChannel,
}

impl Ground {
    async fn new(url: &str) -> Ground {
        let database = TestDatabase::create().await;
        let session = Session::new(database.client().await);
        let client = session.client();
        client
            .batch_execute("INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme')")
            .await
            .unwrap();
        client
            .execute(
                "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events, secret_sealed)
                 SELECT $1, workspace_id, 'hook', $2, '{click}', $3 FROM workspaces WHERE slug = 'acme'",
                &[&ID, &url, &sealed(SECRET)],
            )
            .await
            .unwrap();
        let row = client
            .query_one(
                "SELECT destination_no, workspace_id, channel, ref FROM destinations WHERE ref = $1",
                &[&ID],
            )
            .await
            .unwrap();
        let clock = ManualClock::at(START);
        Ground {
            destination: Destination {
                no: row.get(0),
                workspace: row.get(1),
                channel: row.get(2),
                reference: row.get(3),
            },
            channel: channel(quick(), loopback(), seals(), &clock),
            database,
            session,
            clock,
        }
    }

    async fn prepare(&self) -> Result<Rc<dyn Target>, Unready> {
        self.channel.prepare(&self.session, &self.destination).await
    }

    async fn target(&self) -> Rc<dyn Target> {
        self.prepare().await.map_err(|e| format!("{e:?}")).unwrap()
    }

    /// Prepares, sends one message, and notes what came of it, as a dispatcher does.
    async fn deliver(&self, message: &Leased) -> Answer {
        let target = self.target().await;
        let sent = target.send(vec![message.clone()]).await;
        self.note(&*target, &sent).await;
        sent.answers.into_iter().next().unwrap()
    }

    async fn note(&self, target: &dyn Target, sent: &Sent) {
        self.session.batch("BEGIN").await.unwrap();
        target.note(&self.session, sent).await.unwrap();
        self.session.batch("COMMIT").await.unwrap();
    }

    async fn sql(&self, sql: &str) {
        self.session.batch(sql).await.unwrap();
    }

    /// One text of the endpoint's row.
    async fn column(&self, expression: &str) -> Option<String> {
        let sql = format!("SELECT ({expression})::text FROM webhooks WHERE webhook_id = '{ID}'");
        let row = self.session.client().query_one(&sql, &[]).await.unwrap();
        row.get(0)
    }

    fn after(&self, seconds: i64) {
        self.clock.set(START.plus_secs(seconds));
    }
}

fn channel(
    settings: Webhook,
    guard: AddressGuard,
    seals: Arc<Seals>,
    clock: &Arc<ManualClock>,
) -> WebhookChannel {
    WebhookChannel::new(&settings, guard, seals, clock.clone()).unwrap()
}

fn message(attempt: u16) -> Leased {
    Leased {
        id: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        created_at: START,
        due_at: START,
        attempt,
        unsure_since: None,
        workspace: 1,
        payload: "{\"type\": \"click\",\n  \"amount\":1.50, \"name\":\"Zoë\"}".to_owned(),
    }
}

/// HMAC-SHA256 by its definition (RFC 2104), apart from the product's.
fn hmac(secret: &str, data: &[u8]) -> [u8; 32] {
    use sha2::{Digest, Sha256};
    let key = STANDARD
        .decode(secret.strip_prefix("whsec_").unwrap())
        .unwrap();
    let pad = |with: u8| {
        let mut block = [with; 64];
        for (b, k) in block.iter_mut().zip(&key) {
            *b ^= k;
        }
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(data);
    let outer = Sha256::new().chain_update(pad(0x5c));
    outer.chain_update(inner.finalize()).finalize().into()
}
