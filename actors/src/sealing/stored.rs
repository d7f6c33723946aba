//! Every place where a sealed secret is stored: looked at by the doctor, sealed anew when the key has changed. A test holds the
//! list against the columns of the schema.

use super::{SealError, Seals, Under};
use tokio_postgres::{Client, Error};

/// A column of sealed secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The table.
    pub table: &'static str,
    /// The column of what the secret belongs to.
    pub id: &'static str,
    /// The column of blobs.
    pub column: &'static str,
    /// What the seal is bound to, before the id.
    pub purpose: &'static str,
    /// For people, after the id.
    pub what: &'static str,
    /// Whether the secret is in use: SQL over the row. What is not may stay shut without harm.
    used: &'static str,
}

/// All of them.
pub const PLACES: &[Place] = &[
    Place {
        table: "networks",
        id: "network_id",
        column: "secret_sealed",
        purpose: "network-secret:",
        what: "secret",
        used: "true",
    },
    Place {
        table: "pixels",
        id: "pixel_id",
        column: "access_token_sealed",
        purpose: "pixel-access-token:",
        what: "access token",
        used: "status = 'active'",
    },
    Place {
        table: "pixels",
        id: "pixel_id",
        column: "app_secret_sealed",
        purpose: "pixel-app-secret:",
        what: "app secret",
        used: "status = 'active'",
    },
    Place {
        table: "webhooks",
        id: "webhook_id",
        column: "secret_sealed",
        purpose: "webhook-secret:",
        what: "secret",
        used: "status <> 'archived'",
    },
    Place {
        table: "webhooks",
        id: "webhook_id",
        column: "previous_secret_sealed",
        purpose: "webhook-secret:",
        what: "previous secret",
        used: "status <> 'archived' AND coalesce(previous_until > now(), false)",
    },
    Place {
        table: "mail_transports",
        id: "transport_id",
        column: "password_sealed",
        purpose: "mail-password:",
        what: "password",
        used: "enabled",
    },
];

/// One sealed secret.
#[derive(Clone, Debug)]
pub struct Stored {
    place: &'static Place,
    id: String,
    blob: Vec<u8>,
    /// Whether it is in use.
    pub used: bool,
}

impl Stored {
    /// For people: `nw_… secret`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {}", self.id, self.place.what)
    }

    /// Which key it is sealed under.
    ///
    /// # Errors
    /// It does not open.
    pub fn under(&self, seals: &Seals) -> Result<Under, SealError> {
        seals.open(&self.purpose(), &self.blob)?;
        Ok(seals.under(&self.blob))
    }

    fn purpose(&self) -> String {
        format!("{}{}", self.place.purpose, self.id)
    }
}

/// Every sealed secret, by name.
///
/// # Errors
/// The store's.
pub async fn all(client: &Client) -> Result<Vec<Stored>, Error> {
    let mut found = Vec::new();
    for place in PLACES {
        let Place {
            table,
            id,
            column,
            used,
            ..
        } = place;
        let sql = format!("SELECT {id}, {column}, {used} FROM {table} WHERE {column} IS NOT NULL");
        for row in client.query(&sql, &[]).await? {
            found.push(Stored {
                place,
                id: row.try_get(0)?,
                blob: row.try_get(1)?,
                used: row.try_get(2)?,
            });
        }
    }
    found.sort_by_key(Stored::name);
    Ok(found)
}

/// What was done.
#[derive(Debug, Default)]
pub struct Resealed {
    /// Sealed under the current key now, and not before.
    pub resealed: usize,
    /// Were so already.
    pub current: usize,
    /// Stay as they are: they do not open.
    pub shut: Vec<(Stored, SealError)>,
    /// Were given another secret meanwhile, which is sealed under the current key of whoever did it.
    pub moved: usize,
}

/// Why it ended early; what is resealed stays so, and the next run goes on.
#[derive(Debug, thiserror::Error)]
pub enum ResealError {
    /// There is no current key, or no random bytes.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The store failed.
    #[error("the store: {0}")]
    Store(#[from] Error),
}

/// Seals every secret under the current key. Each is written only where it is still what was read, so that a secret rotated
/// meanwhile stays the new one.
///
/// # Errors
/// [`ResealError`].
pub async fn reseal(client: &Client, seals: &Seals) -> Result<Resealed, ResealError> {
    if !seals.is_configured() {
        return Err(SealError::Unconfigured.into());
    }
    let mut done = Resealed::default();
    for stored in all(client).await? {
        let purpose = stored.purpose();
        let secret = match seals.open(&purpose, &stored.blob) {
            Ok(secret) => secret,
            Err(why) => {
                done.shut.push((stored, why));
                continue;
            }
        };
        if seals.under(&stored.blob) == Under::Current {
            done.current += 1;
            continue;
        }
        let blob = seals.seal(&purpose, &secret)?;
        let Place {
            table, id, column, ..
        } = stored.place;
        let sql = format!("UPDATE {table} SET {column} = $1 WHERE {id} = $2 AND {column} = $3");
        let written = client
            .execute(&sql, &[&blob, &stored.id, &stored.blob])
            .await?;
        match written {
            0 => done.moved += 1,
            _ => done.resealed += 1,
        }
    }
    Ok(done)
}
