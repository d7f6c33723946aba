//! Unsubscribing by a link in a mail: no login, no list of tokens, and nothing that a link scanner could set off.
//!
//! [`token`] is what the link carries: signed, without a store. A GET shows a page and changes nothing; a POST acts, whatever its
//! body says or leaves out, and answers 200 without a redirect (RFC 8058). What may not live here: who is told what.

mod page;
pub mod token;

pub use page::{Pages, configure};
pub use token::{Key, Subscription};

use tokio_postgres::{Error, GenericClient};

/// The deployment's key for such links, made at its first use.
///
/// # Errors
/// The store's.
pub async fn key(client: &impl GenericClient) -> Result<Key, Error> {
    let mut fresh = [0u8; 32];
    // Without randomness nothing is made; one that is there is read all the same.
    if getrandom::fill(&mut fresh).is_ok() {
        client
            .execute(
                "INSERT INTO deployment_keys (purpose, bytes) VALUES ('unsubscribe', $1) ON CONFLICT DO NOTHING",
                &[&fresh.as_slice()],
            )
            .await?;
    }
    let row = client
        .query_one(
            "SELECT bytes FROM deployment_keys WHERE purpose = 'unsubscribe'",
            &[],
        )
        .await?;
    Ok(Key::new(row.try_get(0)?))
}

/// Turns a channel off for a user: in a scope, or (without one) for everything. It is said later than all that the user said of
/// that channel before, so that it wins over what they once asked for by name.
///
/// # Errors
/// The store's.
pub async fn turn_off(
    client: &impl GenericClient,
    subscription: &Subscription,
) -> Result<(), Error> {
    client
        .execute(
            "INSERT INTO preferences (workspace_id, user_id, stream_id, channel, scope, mode, changed_at, updated_by)
             SELECT $1::int4, $2::text, '', $3::text, $4::text, 'off',
                    greatest(now(), (SELECT max(changed_at) + interval '1 microsecond' FROM preferences
                                     WHERE workspace_id = $1 AND user_id = $2 AND channel = $3)), 'unsubscribe'
             ON CONFLICT (workspace_id, user_id, stream_id, channel, scope) DO UPDATE
             SET mode = 'off', changed_at = excluded.changed_at, changed_topic = 0, changed_offset = 0, updated_by = 'unsubscribe'",
            &[
                &subscription.workspace,
                &subscription.user,
                &subscription.channel,
                &subscription.scope,
            ],
        )
        .await?;
    Ok(())
}

/// The workspace of a link that names none (version 1): the one that has this user, if there is exactly one.
///
/// # Errors
/// The store's.
pub async fn workspace_of(client: &impl GenericClient, user: &str) -> Result<Option<i32>, Error> {
    let rows = client
        .query(
            "SELECT workspace_id FROM users WHERE user_id = $1 LIMIT 2",
            &[&user],
        )
        .await?;
    match rows.as_slice() {
        [one] => Ok(Some(one.try_get(0)?)),
        _ => Ok(None),
    }
}
