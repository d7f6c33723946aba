//! `[delivery.email]` of config/millrace.toml, and a workspace's mail transport as the store knows it. All SQL on
//! `mail_transports` that delivery needs.

use super::address;
use crate::delivery::channel::Unready;
use crate::delivery::destination::Destination;
use crate::runtime::session::{Session, describe};
use crate::sealing::Seals;
use crate::templates::Brand;
use lettre::Address;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tokio_postgres::Row;
use url::Url;

/// The channel `email`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Email {
    /// How long one send may take in all, connecting included, in milliseconds.
    pub timeout_ms: u64,
    /// How long resolving, connecting, TLS and greeting may take of it, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Connections to one server at once, at most.
    pub concurrency: usize,
    /// How long a connection is kept without a mail, in milliseconds; less than servers wait.
    pub idle_ms: u64,
    /// The pause after the first attempt that failed, in milliseconds; it doubles.
    pub retry_first_ms: u64,
    /// The longest pause between two attempts, in milliseconds.
    pub retry_most_ms: u64,
    /// What this machine calls itself to servers; unset: the domain of the transport's Message-IDs.
    pub hello_name: Option<String>,
    /// PEM file of certificate authorities that mail servers' certificates may lead to beside the system's.
    pub ca_file: Option<PathBuf>,
}

impl Default for Email {
    fn default() -> Email {
        Email {
            timeout_ms: 60_000,
            connect_timeout_ms: 15_000,
            concurrency: 8,
            idle_ms: 20_000,
            retry_first_ms: 60_000,
            retry_most_ms: 4 * 3_600_000,
            hello_name: None,
            ca_file: None,
        }
    }
}

/// How a connection is secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// TLS from the first byte.
    Tls,
    /// STARTTLS, before anything is said; a server without it is not talked to.
    StartTls,
    /// Not at all.
    None,
}

impl Security {
    /// By its name in the store.
    #[must_use]
    pub fn from_name(name: &str) -> Security {
        match name {
            "none" => Security::None,
            "starttls" => Security::StartTls,
            _ => Security::Tls,
        }
    }
}

/// A user and their password.
#[derive(Clone)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login(…)")
    }
}

/// A transport that may be sent through.
#[derive(Clone, Debug)]
pub struct Transport {
    /// `mt_…`.
    pub id: String,
    /// Its workspace.
    pub workspace: i32,
    /// Which of its versions this is.
    pub version: i64,
    /// The server's name or address.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// How the connection is secured.
    pub security: Security,
    /// Who we are to the server, if it wants to know.
    pub login: Option<Login>,
    /// The name of whoever sends.
    pub sender_name: Option<String>,
    /// The address of whoever sends.
    pub sender: Address,
    /// Whom answers go to, if not to the sender.
    pub reply_to: Option<Address>,
    /// How its mails look.
    pub brand: Brand,
    /// What stands behind the @ of its Message-IDs.
    pub message_domain: String,
}

/// What a transport's password is sealed for.
#[must_use]
pub fn seal_purpose(transport_id: &str) -> String {
    format!("mail-password:{transport_id}")
}

/// What the address of a test send is sealed for.
#[must_use]
pub fn test_purpose(transport_id: &str) -> String {
    format!("mail-test:{transport_id}")
}

/// The code of a channel that is not configured, or off: what waits for it waits.
pub const UNCONFIGURED: &str = "unconfigured";
/// The code of mail that could offer no unsubscription: `http.public_url` is not set. No look at the store mends it, so that it is
/// resumed by a process that has the setting, and by a person.
pub const NO_PUBLIC_URL: &str = "no_public_url";
/// The code of a server that refuses the transport's user or password, or asks for one (RFC 4954). A change of the transport
/// resumes it, and a person.
pub const CREDENTIALS_REFUSED: &str = "smtp_credentials";
/// The code of a server that refuses the transport's sender (5xx to `MAIL FROM`), and with it every mail. A change of the transport
/// resumes it, and a person, who may have mended its account at the provider.
pub const SENDER_REFUSED: &str = "smtp_sender";

const LOAD: &str = "
SELECT enabled, host, port, security, username, password_sealed, sender_name, sender_address, reply_to, brand_name, brand_accent,
       site_url, message_domain, version
FROM mail_transports WHERE transport_id = $1 AND workspace_id = $2";

/// Reads the transport that a destination stands for, with its password opened.
///
/// # Errors
/// [`Unready::Pause`] where it is off or cannot be used as it stands, [`Unready::Later`] where the store fails.
pub async fn load(
    session: &Session,
    destination: &Destination,
    seals: &Seals,
) -> Result<Transport, Unready> {
    let rows = session
        .query(LOAD, &[&destination.reference, &destination.workspace])
        .await
        .map_err(|e| Unready::Later(describe(&e)))?;
    let row = rows
        .first()
        .ok_or_else(|| unconfigured("the workspace has no mail transport"))?;
    if !row
        .try_get::<_, bool>(0)
        .map_err(|e| Unready::Later(describe(&e)))?
    {
        return Err(unconfigured("the mail transport is off"));
    }
    read(row, destination, seals)
}

/// A pause until it is configured; looked at again by itself.
#[must_use]
pub fn unconfigured(reason: &str) -> Unready {
    Unready::Pause {
        code: UNCONFIGURED,
        reason: reason.to_owned(),
    }
}

fn read(row: &Row, destination: &Destination, seals: &Seals) -> Result<Transport, Unready> {
    let later = |e: tokio_postgres::Error| Unready::Later(describe(&e));
    let id = destination.reference.clone();
    let text = |at: usize| row.try_get::<_, Option<String>>(at).map_err(later);
    let needed = |at: usize| text(at).map(Option::unwrap_or_default);
    let address_of = |at: usize| -> Result<Option<Address>, Unready> {
        let Some(written) = text(at)? else {
            return Ok(None);
        };
        match address::parse(&written) {
            Some(address) => Ok(Some(address)),
            None => Err(unconfigured(
                "the transport's sender or reply-to is no address",
            )),
        }
    };
    let sealed: Option<&[u8]> = row.try_get(5).map_err(later)?;
    let login = match (text(4)?, sealed) {
        (Some(user), Some(sealed)) => Some(Login {
            user,
            password: open(seals, &id, sealed)?,
        }),
        (Some(_), None) => return Err(unconfigured("the transport's user has no password")),
        (None, _) => None,
    };
    let port = row.try_get::<_, i32>(2).map_err(later)?;
    Ok(Transport {
        workspace: destination.workspace,
        version: row.try_get(13).map_err(later)?,
        host: needed(1)?,
        port: u16::try_from(port).map_err(|_| unconfigured("the transport's port is none"))?,
        security: Security::from_name(&needed(3)?),
        login,
        sender_name: text(6)?,
        sender: address_of(7)?.ok_or_else(|| unconfigured("the transport has no sender"))?,
        reply_to: address_of(8)?,
        brand: Brand {
            name: needed(9)?,
            accent: needed(10)?,
            site: text(11)?.and_then(|site| Url::parse(&site).ok()),
        },
        message_domain: needed(12)?,
        id,
    })
}

fn open(seals: &Seals, id: &str, sealed: &[u8]) -> Result<String, Unready> {
    let unreadable = |why: String| Unready::Pause {
        code: "secret_unreadable",
        reason: format!("the password of {id}: {why}"),
    };
    let text = seals
        .open(&seal_purpose(id), sealed)
        .map_err(|e| unreadable(e.to_string()))?;
    String::from_utf8(text).map_err(|_| unreadable("it opens, and is no text".to_owned()))
}
