//! Mail, inboxes and push against real servers on loopback and a real PostgreSQL.

mod email;
mod inbox;
mod independent;
mod pages;
mod push;
mod replies;
mod tls;
mod whole;

use millrace::cli::demo::stand_ins::mail::Mail;
use millrace::delivery::address_guard::AddressGuard;
use millrace::delivery::channel::{Answer, Channel, Leased, Sent, Target, Unready};
use millrace::delivery::destination::Destination;
use millrace::delivery::email::EmailChannel;
use millrace::delivery::email::settings::Email;
use millrace::runtime::clock::{Clock, ManualClock};
use millrace::runtime::connector::connector;
use millrace::runtime::session::{Connect, Session};
use millrace::sealing::Seals;
use millrace_schemas::notification::{Action, GenericBody, Item, Notification};
use millrace_schemas::time::Micros;
use millrace_tests::postgres::TestDatabase;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// 2026-01-01T00:00:00Z.
const START: Micros = Micros(1_767_225_600_000_000);
const SOON: Duration = Duration::from_secs(60);
const PUBLIC_URL: &str = "https://m.example";
const TRANSPORT: &str = "mt_1";

fn seals() -> Arc<Seals> {
    let key = "0101010101010101010101010101010101010101010101010101010101010101";
    Arc::new(Seals::from_texts(Some(key), None).unwrap())
}

fn loopback() -> AddressGuard {
    AddressGuard::new(&["127.0.0.0/8"]).unwrap()
}

fn quick() -> Email {
    Email {
        timeout_ms: 4_000,
        connect_timeout_ms: 3_000,
        concurrency: 2,
        ..Email::default()
    }
}

/// A workspace with a user, and a clock that the test moves.
struct Ground {
    database: TestDatabase,
    session: Session,
    clock: Arc<ManualClock>,
    workspace: i32,
    messages: Cell<u128>,
}

impl Ground {
    async fn new() -> Ground {
        let database = TestDatabase::create().await;
        let session = Session::new(database.client().await);
        let sql =
            "INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme') RETURNING workspace_id";
        let workspace = session.client().query_one(sql, &[]).await.unwrap().get(0);
        let ground = Ground {
            database,
            session,
            clock: ManualClock::at(START),
            workspace,
            messages: Cell::new(1),
        };
        ground.user("dora", "Dora@Example.com").await;
        ground
    }

    /// An active user with a verified address, who wants all mail and every push at once.
    async fn user(&self, id: &str, email: &str) {
        self.session
            .client()
            .execute(
                "INSERT INTO users (workspace_id, user_id, email, email_verified, changed_at) VALUES ($1, $2, $3, true, now())",
                &[&self.workspace, &id, &email],
            )
            .await
            .unwrap();
        self.session
            .client()
            .execute(
                "INSERT INTO preferences (workspace_id, user_id, stream_id, channel, mode, changed_at)
                 SELECT $1, $2, 'core.news', channel, 'instant', now() FROM unnest('{email,push,inapp}'::text[]) AS channel",
                &[&self.workspace, &id],
            )
            .await
            .unwrap();
    }

    /// Mail goes to this server.
    async fn mails_to(&self, port: u16) -> Destination {
        self.session
            .client()
            .execute(
                "INSERT INTO mail_transports (workspace_id, transport_id, enabled, host, port, security, sender_name, sender_address,
                        brand_name, site_url, message_domain)
                 VALUES ($1, $2, true, '127.0.0.1', $3, 'none', 'Sosaria', 'news@sender.example', 'Sosaria', 'https://site.example',
                         'sender.example')",
                &[&self.workspace, &TRANSPORT, &i32::from(port)],
            )
            .await
            .unwrap();
        self.destination("email").await
    }

    async fn destination(&self, channel: &str) -> Destination {
        if channel != "email" {
            let sql = "SELECT notification_destination($1, $2)";
            let client = self.session.client();
            client
                .query_one(sql, &[&self.workspace, &channel])
                .await
                .unwrap();
        }
        let row = self
            .session
            .client()
            .query_one(
                "SELECT destination_no, workspace_id, channel, ref FROM destinations WHERE channel = $1",
                &[&channel],
            )
            .await
            .unwrap();
        Destination {
            no: row.get(0),
            workspace: row.get(1),
            channel: row.get(2),
            reference: row.get(3),
        }
    }

    fn connect(&self) -> Connect {
        let settings = millrace::settings::Database {
            url: Some(self.database.url().to_owned()),
            ..Default::default()
        };
        let database = millrace::postgres::pool::Database::new(&settings, "delivery").unwrap();
        connector(&database, Duration::from_secs(2))
    }

    fn email(&self, settings: &Email) -> EmailChannel {
        let url = Some(PUBLIC_URL.to_owned());
        let clock = self.clock.clone();
        EmailChannel::new(settings, loopback(), seals(), clock, self.connect(), url).unwrap()
    }

    /// A message of its own id with this notice.
    fn message(&self, notice: &Notification) -> Leased {
        let n = self.messages.get();
        self.messages.set(n + 1);
        Leased {
            id: Uuid::from_u128(0x0190_0000_0000_8000_8000_0000_0000_0000 | n),
            created_at: START,
            due_at: START,
            attempt: 1,
            unsure_since: None,
            workspace: self.workspace,
            payload: serde_json::to_string(notice).unwrap(),
        }
    }

    /// Prepares, asks, sends and notes one message, as a dispatcher does.
    async fn deliver(&self, channel: &dyn Channel, to: &Destination, message: &Leased) -> Answer {
        let target = channel.prepare(&self.session, to).await;
        let target = target.map_err(|e| format!("{e:?}")).unwrap();
        self.hand_over(&*target, message).await
    }

    async fn hand_over(&self, target: &dyn Target, message: &Leased) -> Answer {
        let one = std::slice::from_ref(message);
        let asked = target.ask(one, self.clock.wall()).await.unwrap();
        if let Some(answer) = asked.into_iter().next().unwrap() {
            return answer;
        }
        let sent = target.send(vec![message.clone()]).await;
        self.note(target, &sent).await;
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

    async fn count(&self, sql: &str) -> i64 {
        let row = self.session.client().query_one(sql, &[]).await.unwrap();
        row.get(0)
    }
}

/// News for a user.
fn news(user: &str) -> Notification {
    Notification {
        v: 1,
        user: user.to_owned(),
        trigger: "core.news".to_owned(),
        rule: Some("ru_1".to_owned()),
        firing: "1-0-1-0".to_owned(),
        scope: "team:12".to_owned(),
        dedupe_key: "core.news:1".to_owned(),
        at: START,
        body: GenericBody {
            title: "A house falls: Ünal's Häuschen".to_owned(),
            intro: "First line\n.second line with a dot".to_owned(),
            items: vec![Item {
                text: "one".to_owned(),
                url: Some("/items/1".to_owned()),
            }],
            action: Some(Action {
                label: "Look".to_owned(),
                url: "/houses/1".to_owned(),
            }),
        },
        ..Notification::default()
    }
}

/// A server, and everything that mails to it.
struct Bench {
    ground: Ground,
    mail: Mail,
    destination: Destination,
    channel: EmailChannel,
}

impl Bench {
    async fn new() -> Bench {
        let ground = Ground::new().await;
        let mail = Mail::start().unwrap();
        let destination = ground.mails_to(mail.address().port()).await;
        let channel = ground.email(&quick());
        Bench {
            ground,
            mail,
            destination,
            channel,
        }
    }

    async fn send(&self, notice: &Notification) -> Answer {
        let message = self.ground.message(notice);
        self.deliver(&message).await
    }

    async fn deliver(&self, message: &Leased) -> Answer {
        self.ground
            .deliver(&self.channel, &self.destination, message)
            .await
    }

    async fn prepare(&self) -> Result<Rc<dyn Target>, Unready> {
        self.channel
            .prepare(&self.ground.session, &self.destination)
            .await
    }
}
