//! Answers of POSTs by idempotency key: written in the effect's own transaction, kept 24 hours.

use super::call::Answer;
use super::problem::Problem;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_postgres::Transaction;

/// One use of a key.
#[derive(Clone, Debug)]
pub struct Use {
    /// Who asks.
    pub actor: String,
    /// The operation.
    pub operation: &'static str,
    /// The key.
    pub key: String,
    /// Digest of path, query and body.
    pub digest: [u8; 32],
}

impl Use {
    /// Of a request.
    #[must_use]
    pub fn new(actor: &str, operation: &'static str, key: String, uri: &str, body: &[u8]) -> Use {
        let mut hash = Sha256::new();
        hash.update(uri.as_bytes());
        hash.update([0]);
        hash.update(body);
        Use {
            actor: actor.to_owned(),
            operation,
            key,
            digest: hash.finalize().into(),
        }
    }

    /// Takes the key for this transaction; answers what was answered before, if anything.
    ///
    /// # Errors
    /// `idempotency_in_progress`, `idempotency_conflict`, or the store failed.
    pub async fn begin(&self, tx: &Transaction<'_>) -> Result<Option<Answer>, Problem> {
        // Held to the end of the transaction; never waited for.
        let name = format!("{}\u{1}{}\u{1}{}", self.actor, self.operation, self.key);
        let free: bool = tx
            .query_one(
                "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 7))",
                &[&name],
            )
            .await?
            .try_get(0)?;
        if !free {
            return Err(Problem::new(
                "idempotency_in_progress",
                "a request with this idempotency key is still running",
            ));
        }
        let Some(row) = tx
            .query_opt(
                "SELECT body_digest, answer FROM idempotency_keys
                 WHERE actor = $1 AND operation = $2 AND key = $3 AND created_at > now() - interval '24 hours'",
                &[&self.actor, &self.operation, &self.key],
            )
            .await?
        else {
            return Ok(None);
        };
        let digest: &[u8] = row.try_get(0)?;
        if digest != self.digest {
            return Err(Problem::new(
                "idempotency_conflict",
                "this idempotency key was used for another request",
            ));
        }
        let stored: Value = row.try_get(1)?;
        Ok(Some(Answer {
            body: stored.get("body").cloned().unwrap_or_default(),
            version: stored.get("version").and_then(Value::as_i64),
            location: stored
                .get("location")
                .and_then(Value::as_str)
                .map(str::to_owned),
            ..Answer::default()
        }))
    }

    /// Stores the answer (its secrets taken out by the caller), and drops a few that are too old.
    ///
    /// # Errors
    /// The store failed.
    pub async fn finish(
        &self,
        tx: &Transaction<'_>,
        status: u16,
        answer: &Answer,
        body: &Value,
    ) -> Result<(), Problem> {
        let stored = json!({"body": body, "version": answer.version, "location": answer.location});
        tx.execute(
            "INSERT INTO idempotency_keys (actor, operation, key, body_digest, status, answer)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (actor, operation, key) DO UPDATE
             SET body_digest = excluded.body_digest, status = excluded.status, answer = excluded.answer, created_at = now()",
            &[
                &self.actor,
                &self.operation,
                &self.key,
                &self.digest.as_slice(),
                &i16::try_from(status).unwrap_or(200),
                &stored,
            ],
        )
        .await?;
        tx.execute(
            "DELETE FROM idempotency_keys WHERE ctid IN (SELECT ctid FROM idempotency_keys
             WHERE created_at < now() - interval '25 hours' ORDER BY created_at LIMIT 20 FOR UPDATE SKIP LOCKED)",
            &[],
        )
        .await?;
        Ok(())
    }
}
