//! How one mail is handed to a server, and what each of its answers means.

use super::bounce::{self, Verdict as Judged};
use super::pool::Connections;
use super::settings::{CREDENTIALS_REFUSED, SENDER_REFUSED, Transport};
use crate::delivery::channel::{Answer, Verdict};
use crate::delivery::redaction::redact_recipient;
use lettre::Address;
use lettre::transport::smtp;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Rset};
use lettre::transport::smtp::extension::{Extension, MailParameter};
use lettre::transport::smtp::response::Response;
use std::borrow::Cow;
use std::cell::Cell;
use std::error::Error as _;
use std::time::Duration;

/// How far an exchange had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The server's name.
    Resolve,
    /// Its socket.
    Connect,
    /// Its greeting, or its answer to ours.
    Greeting,
    /// TLS.
    Tls,
    /// The login.
    Auth,
    /// `MAIL FROM`.
    Mail,
    /// `RCPT TO`.
    Rcpt,
    /// `DATA`.
    Data,
    /// The message itself: from here on it may have been taken.
    Body,
}

impl Stage {
    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Resolve => "resolve",
            Stage::Connect => "connect",
            Stage::Greeting => "greeting",
            Stage::Tls => "tls",
            Stage::Auth => "login",
            Stage::Mail => "mail from",
            Stage::Rcpt => "rcpt to",
            Stage::Data => "data",
            Stage::Body => "message",
        }
    }
}

/// What the server said, or that it said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A negative reply.
    Reply {
        /// Its three digits.
        code: u16,
        /// Its lines, joined.
        text: String,
    },
    /// Nothing that could be read: no connection, or it is gone.
    Lost {
        /// A name from a closed list.
        code: &'static str,
        /// For people.
        why: String,
    },
    /// It cannot take such a message.
    Unable(&'static str),
}

/// Why a mail was not taken, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// How far it had come.
    pub stage: Stage,
    /// What was said.
    pub said: Said,
}

impl Refusal {
    /// From lettre's error: a reply with its code and text, or a connection that failed.
    #[must_use]
    pub fn of(stage: Stage, error: &smtp::Error) -> Refusal {
        let code = error.status().and_then(|c| c.to_string().parse().ok());
        let said = match code {
            Some(code) => Said::Reply {
                code,
                text: error.source().map(ToString::to_string).unwrap_or_default(),
            },
            None => Said::Lost {
                code: match stage {
                    Stage::Resolve | Stage::Connect | Stage::Greeting => "no_connection",
                    Stage::Tls => "no_tls",
                    _ => "connection_lost",
                },
                why: error.to_string(),
            },
        };
        Refusal { stage, said }
    }

    /// No connection, or none any more.
    #[must_use]
    pub fn lost(stage: Stage, code: &'static str, why: &str) -> Refusal {
        let why = why.to_owned();
        Refusal {
            stage,
            said: Said::Lost { code, why },
        }
    }

    /// Whether the connection was closed, said or unsaid, before the message left: then nothing happened.
    fn is_closed(&self) -> bool {
        let gone = match &self.said {
            Said::Reply { code, .. } => *code == 421,
            Said::Lost { .. } => true,
            Said::Unable(_) => false,
        };
        gone && self.stage < Stage::Body
    }
}

/// Whom it is from and to, and its bytes.
pub(super) struct Envelope<'a> {
    pub from: &'a Address,
    pub to: &'a Address,
    /// Whether an address needs SMTPUTF8.
    pub utf8: bool,
    pub message: &'a [u8],
}

impl Connections {
    /// Hands one mail over within the channel's time. A kept connection may have been closed meanwhile: then once more, on a
    /// fresh one.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) async fn deliver(
        &self,
        transport: &Transport,
        envelope: &Envelope<'_>,
    ) -> Result<String, Refusal> {
        let stage = Cell::new(Stage::Connect);
        let limit = Duration::from_millis(self.settings().timeout_ms);
        match tokio::time::timeout(limit, self.try_both(transport, envelope, &stage)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Refusal::lost(stage.get(), "timeout", "no answer in time")),
        }
    }

    async fn try_both(
        &self,
        transport: &Transport,
        envelope: &Envelope<'_>,
        stage: &Cell<Stage>,
    ) -> Result<String, Refusal> {
        let pool = self.of(transport);
        let most = Duration::from_millis(self.settings().idle_ms);
        if let Some(mut kept) = pool.take(most) {
            let outcome = exchange(&mut kept, envelope, stage).await;
            match outcome {
                Err(refusal) if refusal.is_closed() => {
                    metrics::counter!("mail_reconnects_total").increment(1);
                }
                outcome => {
                    if is_clean(&mut kept, &outcome).await {
                        pool.put(kept);
                    }
                    return outcome;
                }
            }
        }
        stage.set(Stage::Connect);
        let mut fresh = self.open(transport, &pool, stage).await?;
        let outcome = exchange(&mut fresh, envelope, stage).await;
        if is_clean(&mut fresh, &outcome).await {
            pool.put(fresh);
        }
        outcome
    }
}

/// One mail over an open connection; answers what the server said when it took it.
async fn exchange(
    connection: &mut AsyncSmtpConnection,
    envelope: &Envelope<'_>,
    at: &Cell<Stage>,
) -> Result<String, Refusal> {
    let mut options = Vec::new();
    at.set(Stage::Mail);
    if envelope.utf8 {
        if !connection
            .server_info()
            .supports_feature(Extension::SmtpUtfEight)
        {
            return Err(Refusal {
                stage: Stage::Mail,
                said: Said::Unable("address_needs_smtputf8"),
            });
        }
        options.push(MailParameter::SmtpUtfEight);
    }
    let mail = Mail::new(Some(envelope.from.clone()), options);
    expect(Stage::Mail, &[250], connection.command(mail).await)?;
    at.set(Stage::Rcpt);
    let rcpt = Rcpt::new(envelope.to.clone(), Vec::new());
    expect(
        Stage::Rcpt,
        &[250, 251, 252],
        connection.command(rcpt).await,
    )?;
    at.set(Stage::Data);
    expect(Stage::Data, &[354], connection.command(Data).await)?;
    at.set(Stage::Body);
    let taken = connection.message(envelope.message).await;
    let taken = expect(Stage::Body, &[250], taken)?;
    Ok(taken.first_line().unwrap_or_default().to_owned())
}

/// A reply must be the one that the step asks for: a farewell (221) that waited in a closed connection is positive too.
fn expect(
    stage: Stage,
    codes: &[u16],
    reply: Result<Response, smtp::Error>,
) -> Result<Response, Refusal> {
    let reply = reply.map_err(|e| Refusal::of(stage, &e))?;
    if codes.iter().any(|code| reply.has_code(*code)) {
        return Ok(reply);
    }
    let why = format!("the reply {} is none to this", reply.code());
    Err(Refusal::lost(stage, "connection_lost", &why))
}

/// Whether the connection is good for another mail; a transaction that was refused on the way is taken back first.
async fn is_clean(connection: &mut AsyncSmtpConnection, outcome: &Result<String, Refusal>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(Refusal {
            said: Said::Reply { code: 421, .. } | Said::Lost { .. },
            ..
        }) => false,
        Err(Refusal {
            stage: Stage::Body, ..
        }) => true,
        Err(_) => connection.command(Rset).await.is_ok(),
    }
}

/// Replies that speak of our own credentials (RFC 4954), wherever they come.
const CREDENTIALS: [u16; 4] = [530, 534, 535, 538];

/// Replies to `MAIL FROM` that speak of its parameters, which are this one mail's (RFC 5321, 4.2.2).
const PARAMETERS: [u16; 2] = [504, 555];

/// What became of a mail, and whether its server seemed dead. Of a refusal it is asked first whether it speaks of us (our
/// credentials and our sender pause the transport, the session is tried again), and only then whether it speaks of the mailbox:
/// nobody is suppressed for a password that has expired. `local` is the recipient's, which is not kept of what was said.
#[must_use]
pub fn judge(outcome: &Result<String, Refusal>, local: &str) -> (Answer, bool) {
    let fit = |text: &str| redact_recipient(text, local);
    // The code is no word of anybody's.
    let reply = |code: u16, text: &str| format!("{code} {}", fit(text)).trim_end().to_owned();
    // Where it is not said by the reply itself, the step is named: whoever sets a server up looks for it.
    let at = |stage: Stage, said: String| format!("{}: {said}", stage.name());
    let again = |unsure| Verdict::RetryAt {
        after: None,
        unsure,
    };
    let refusal = match outcome {
        Ok(said) => {
            let answer = Answer::new(Verdict::Delivered, "250").said(fit(said));
            return (answer, false);
        }
        Err(refusal) => refusal,
    };
    let before = refusal.stage < Stage::Mail;
    match &refusal.said {
        Said::Unable(code) => (Answer::new(Verdict::Rejected, *code), false),
        Said::Lost { code, why } => {
            // Once the message has left, its server may have it: the next attempt bears the same Message-ID.
            let unsure = refusal.stage == Stage::Body;
            let said = at(refusal.stage, fit(why));
            (Answer::new(again(unsure), *code).said(said), true)
        }
        Said::Reply { code, text } => {
            let name: Cow<'static, str> = code.to_string().into();
            let said = match before {
                true => at(refusal.stage, reply(*code, text)),
                false => reply(*code, text),
            };
            let verdict = if *code < 500 {
                again(false)
            } else if refusal.stage == Stage::Auth || CREDENTIALS.contains(code) {
                let answer = Answer::new(Verdict::PauseDestination, CREDENTIALS_REFUSED);
                return (answer.said(said), false);
            } else if before {
                again(false)
            } else if refusal.stage == Stage::Mail && PARAMETERS.contains(code) {
                Verdict::Rejected
            } else if refusal.stage == Stage::Mail {
                // It has heard nothing yet but whom mail is from: it would say the same to the next one.
                let answer = Answer::new(Verdict::PauseDestination, SENDER_REFUSED);
                return (answer.said(said), false);
            } else {
                match bounce::classify(&format!("{code} {text}")) {
                    Judged::Suppress(_) => Verdict::Bounced,
                    Judged::Keep(_) => Verdict::Rejected,
                }
            };
            let dead = before || *code == 421;
            (Answer::new(verdict, name).said(said), dead)
        }
    }
}

#[cfg(test)]
mod tests;
