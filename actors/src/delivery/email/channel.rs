//! What a workspace's transport is, whether a mail may still go, and what its outcomes leave in the store.

use super::address::{self, mask};
use super::client::{Envelope, judge};
use super::message::{self, Parts};
use super::pool::Connections;
use super::settings::{self, Email, Transport};
use super::suppression::{self, DeadAddress};
use crate::delivery::address_guard::AddressGuard;
use crate::delivery::channel::{
    Answer, Channel, Leased, MENDED_BY_LOOKING, Sent, Target, Traits, Unready, Verdict,
};
use crate::delivery::destination::Destination;
use crate::delivery::outbound::ClientError;
use crate::delivery::recheck::{self, Recheck, Standing};
use crate::delivery::schedule;
use crate::runtime::clock::SharedClock;
use crate::runtime::session::{Connect, Session, describe};
use crate::sealing::Seals;
use crate::templates;
use crate::unsubscribe::{self, Key, Subscription};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::LocalBoxFuture;
use millrace_schemas::channel::Channel as Told;
use millrace_schemas::notification::Notification;
use millrace_schemas::time::Micros;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Its name, as in `outbox.channel`.
pub const NAME: &str = "email";
/// Attempts of one mail at most: with the default pauses the last is made a day after the first.
const ATTEMPTS: u16 = 14;

/// The channel `email`.
pub struct EmailChannel {
    traits: Traits,
    own: Rc<Own>,
}

/// What the channel's targets share.
struct Own {
    settings: Email,
    connections: Connections,
    recheck: Rc<Recheck>,
    seals: Arc<Seals>,
    clock: SharedClock,
    /// Where unsubscriptions are taken, as the world sees it.
    public_url: Option<String>,
    /// What signs them; read once.
    key: RefCell<Option<Rc<Key>>>,
}

impl EmailChannel {
    /// With connections of its own.
    ///
    /// # Errors
    /// The resolver or TLS cannot be set up.
    pub fn new(
        settings: &Email,
        guard: AddressGuard,
        seals: Arc<Seals>,
        clock: SharedClock,
        connect: Connect,
        public_url: Option<String>,
    ) -> Result<EmailChannel, ClientError> {
        Ok(EmailChannel {
            traits: Traits {
                idempotent: true,
                batch: 1,
                concurrency: settings.concurrency.max(1),
                max_attempts: ATTEMPTS,
                timeout: Duration::from_millis(settings.timeout_ms),
            },
            own: Rc::new(Own {
                settings: settings.clone(),
                connections: Connections::new(settings, guard)?,
                recheck: Recheck::new(Told::Email, connect),
                seals,
                clock,
                public_url,
                key: RefCell::new(None),
            }),
        })
    }
}

impl Channel for EmailChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn waits_for_a_destination(&self) -> bool {
        true
    }

    fn resumes(&self) -> &'static [&'static str] {
        resumes(self.own.public_url.as_deref())
    }

    fn backoff(&self, attempt: u16) -> Duration {
        let own = &self.own.settings;
        schedule::exponential(
            Duration::from_millis(own.retry_first_ms),
            attempt,
            Duration::from_millis(own.retry_most_ms),
        )
    }

    fn prepare<'a>(
        &'a self,
        session: &'a Session,
        destination: &'a Destination,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>> {
        Box::pin(async move {
            let transport = settings::load(session, destination, &self.own.seals).await?;
            let known = self.own.key.borrow().clone();
            let key = match known {
                Some(key) => key,
                None => {
                    let read = unsubscribe::key(session.client()).await;
                    let key = Rc::new(read.map_err(|e| Unready::Later(describe(&e)))?);
                    self.own.key.replace(Some(Rc::clone(&key)));
                    key
                }
            };
            Ok(Rc::new(EmailTarget {
                transport,
                own: Rc::clone(&self.own),
                key,
                standings: RefCell::default(),
            }) as Rc<dyn Target>)
        })
    }
}

/// Codes of pauses that end by themselves. Without `http.public_url`, one for the lack of it would come back at once, for ever.
const fn resumes(public_url: Option<&str>) -> &'static [&'static str] {
    match public_url {
        Some(_) => &["secret_unreadable", "unconfigured", settings::NO_PUBLIC_URL],
        None => MENDED_BY_LOOKING,
    }
}

/// A message that may go, and where to.
struct Ready {
    notice: Notification,
    address: String,
    hash: Option<Vec<u8>>,
}

struct EmailTarget {
    transport: Transport,
    own: Rc<Own>,
    key: Rc<Key>,
    /// What was asked of messages that are just being sent.
    standings: RefCell<HashMap<Uuid, Ready>>,
}

impl Target for EmailTarget {
    fn admit(&self, _message: &Leased, _wall: Micros) -> Option<Answer> {
        None
    }

    fn ask<'a>(
        &'a self,
        messages: &'a [Leased],
        wall: Micros,
    ) -> LocalBoxFuture<'a, Result<Vec<Option<Answer>>, String>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(messages.len());
            for message in messages {
                answers.push(self.ask_one(message, wall).await?);
            }
            Ok(answers)
        })
    }

    fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent> {
        Box::pin(async move {
            let mut sent = Sent {
                answers: Vec::with_capacity(messages.len()),
                dead: false,
            };
            for message in messages {
                let ready = self.standings.borrow_mut().remove(&message.id);
                let Some(ready) = ready else {
                    // It was not asked about; nothing leaves unasked.
                    let again = Verdict::RetryAt {
                        after: None,
                        unsure: false,
                    };
                    sent.answers.push(Answer::new(again, "not_asked"));
                    continue;
                };
                let (answer, dead) = self.deliver(&message, &ready).await;
                sent.answers.push(answer);
                sent.dead |= dead;
            }
            sent
        })
    }

    fn note<'a>(
        &'a self,
        session: &'a Session,
        sent: &'a Sent,
    ) -> LocalBoxFuture<'a, Result<(), tokio_postgres::Error>> {
        Box::pin(async move {
            for dead in sent.answers.iter().filter_map(|a| a.dead_address.as_ref()) {
                if suppression::bury(session, dead).await? {
                    metrics::counter!("addresses_suppressed_total").increment(1);
                }
            }
            Ok(())
        })
    }
}

impl EmailTarget {
    /// Whether a message may still go; where to is kept for [`Target::send`].
    async fn ask_one(&self, message: &Leased, wall: Micros) -> Result<Option<Answer>, String> {
        let notice = match recheck::payload(message) {
            Ok(notice) => notice,
            Err(answer) => return Ok(Some(answer)),
        };
        if let Some(sealed) = &notice.to_sealed {
            return Ok(match self.unseal(sealed) {
                Some(address) => self.ready(message.id, notice, address, None),
                None => Some(Answer::new(Verdict::Rejected, "address_unreadable")),
            });
        }
        if !notice.transactional && self.own.public_url.is_none() {
            let why = "http.public_url is not set: a mail could offer no unsubscription";
            let answer = Answer::new(Verdict::PauseDestination, settings::NO_PUBLIC_URL);
            return Ok(Some(answer.said(why)));
        }
        let asked = self.own.recheck.ask(&[(message, &notice)]).await?;
        let standing = asked.into_iter().next().unwrap_or_default();
        if let Some(answer) = refuse(&notice, &standing, wall) {
            let target = standing.email.as_deref().map(mask);
            return Ok(Some(Answer { target, ..answer }));
        }
        let address = standing.email.unwrap_or_default();
        Ok(self.ready(message.id, notice, address, standing.email_hash))
    }

    fn ready(
        &self,
        id: Uuid,
        notice: Notification,
        address: String,
        hash: Option<Vec<u8>>,
    ) -> Option<Answer> {
        let ready = Ready {
            notice,
            address,
            hash,
        };
        self.standings.borrow_mut().insert(id, ready);
        None
    }

    fn unseal(&self, sealed: &str) -> Option<String> {
        let blob = STANDARD.decode(sealed).ok()?;
        let purpose = settings::test_purpose(&self.transport.id);
        String::from_utf8(self.own.seals.open(&purpose, &blob).ok()?).ok()
    }

    async fn deliver(&self, message: &Leased, ready: &Ready) -> (Answer, bool) {
        let target = Some(mask(&ready.address));
        let Some(to) = address::parse(&ready.address) else {
            let answer = Answer::new(Verdict::Rejected, "address_invalid");
            return (Answer { target, ..answer }, false);
        };
        let unsubscribe = match ready.notice.transactional {
            true => None,
            false => self.unsubscribe_url(message.workspace, &ready.notice),
        };
        let body = ready.notice.said();
        let mail = templates::mail(&body, &self.transport.brand, unsubscribe.as_deref());
        let composed = message::compose(&Parts {
            id: message.id,
            domain: &self.transport.message_domain,
            at: self.own.clock.wall(),
            from: (
                self.transport.sender_name.as_deref(),
                &self.transport.sender,
            ),
            reply_to: self.transport.reply_to.as_ref(),
            to: &to,
            subject: &mail.subject,
            text: &mail.text,
            html: &mail.html,
            unsubscribe: unsubscribe.as_deref(),
        });
        let envelope = Envelope {
            from: &self.transport.sender,
            to: &to,
            utf8: address::needs_utf8(&to) || address::needs_utf8(&self.transport.sender),
            message: &composed,
        };
        let outcome = self
            .own
            .connections
            .deliver(&self.transport, &envelope)
            .await;
        let (mut answer, dead) = judge(&outcome, to.user());
        if answer.verdict == Verdict::Bounced
            && let Some(hash) = &ready.hash
        {
            answer.dead_address = Some(Box::new(DeadAddress {
                workspace: message.workspace,
                hash: hash.clone(),
                masked: mask(&ready.address),
                message: message.id,
                said: answer.excerpt.clone().unwrap_or_default(),
            }));
        }
        (Answer { target, ..answer }, dead)
    }

    /// Where one click turns this channel off for whom it is sent to, in the message's scope.
    fn unsubscribe_url(&self, workspace: i32, notice: &Notification) -> Option<String> {
        let subscription = Subscription {
            workspace,
            user: notice.user.clone(),
            channel: NAME.to_owned(),
            scope: notice.scope.clone(),
        };
        let token = self.key.sign(&subscription)?;
        let base = self.own.public_url.as_ref()?;
        Some(format!(
            "{}/unsubscribe/{token}",
            base.trim_end_matches('/')
        ))
    }
}

/// Why a mail may not go: what holds for every channel, and what holds for addresses. Suppression is asked last and ignored by
/// what its user asked for.
fn refuse(notice: &Notification, standing: &Standing, wall: Micros) -> Option<Answer> {
    if let Some(answer) = recheck::refuse(Told::Email, notice, standing, wall) {
        return Some(answer);
    }
    let no = |code: &'static str| Some(Answer::new(Verdict::Suppressed, code));
    if standing.email.is_none() {
        return no("no_address");
    }
    if notice.transactional {
        return None;
    }
    if !standing.verified {
        return no("unverified");
    }
    match standing.suppressed.as_deref() {
        Some("hard_bounce") => no("address_bounced"),
        Some(_) => no("address_suppressed"),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_for_the_lack_of_a_public_url_ends_once_there_is_one() {
        let set = resumes(Some("https://t.example.com"));
        assert!(set.contains(&settings::NO_PUBLIC_URL));
        assert!(MENDED_BY_LOOKING.iter().all(|code| set.contains(code)));
        assert!(!resumes(None).contains(&settings::NO_PUBLIC_URL));
    }

    #[test]
    fn an_address_is_asked_after_its_user_and_transactional_mail_ignores_the_list() {
        let notice = Notification::default();
        let asked = Notification {
            transactional: true,
            ..Notification::default()
        };
        let good = Standing {
            active: true,
            known: true,
            email: Some("dora@example.com".to_owned()),
            verified: true,
            ..Standing::default()
        };
        let wall = Micros(0);
        let code = |notice: &Notification, standing: &Standing| {
            refuse(notice, standing, wall).map(|a| a.code.into_owned())
        };
        assert_eq!(code(&notice, &good), None);
        let none = Standing {
            email: None,
            ..good.clone()
        };
        assert_eq!(code(&notice, &none).as_deref(), Some("no_address"));
        assert_eq!(code(&asked, &none).as_deref(), Some("no_address"));
        let unverified = Standing {
            verified: false,
            ..good.clone()
        };
        assert_eq!(code(&notice, &unverified).as_deref(), Some("unverified"));
        assert_eq!(code(&asked, &unverified), None);
        for (reason, why) in [
            ("hard_bounce", "address_bounced"),
            ("manual", "address_suppressed"),
        ] {
            let dead = Standing {
                suppressed: Some(reason.to_owned()),
                ..good.clone()
            };
            assert_eq!(code(&notice, &dead).as_deref(), Some(why));
            assert_eq!(code(&asked, &dead), None);
        }
    }
}
