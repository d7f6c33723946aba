//! One connection of an actor with its prepared statements, and the verdict on an error of it.

use crate::postgres::copy::Rows;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

/// Makes a connection whose session settings are in place and whose driver task is spawned.
pub type Connect = Arc<
    dyn Fn() -> millrace_topics::contract::BoxFuture<'static, Result<Client, String>> + Send + Sync,
>;

/// A connection with its prepared statements. Not shared between threads.
pub struct Session {
    client: Client,
    statements: RefCell<HashMap<&'static str, Statement>>,
}

impl Session {
    /// Wraps a fresh connection.
    #[must_use]
    pub fn new(client: Client) -> Session {
        Session {
            client,
            statements: RefCell::default(),
        }
    }

    /// The bare connection.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The bare connection, for whoever has his own statements.
    #[must_use]
    pub fn into_client(self) -> Client {
        self.client
    }

    async fn statement(&self, sql: &'static str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(found) = self.statements.borrow().get(sql) {
            return Ok(found.clone());
        }
        let made = self.client.prepare(sql).await?;
        self.statements.borrow_mut().insert(sql, made.clone());
        Ok(made)
    }

    /// Rows of a query, prepared once a connection.
    ///
    /// # Errors
    /// The store's.
    pub async fn query(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statement = self.statement(sql).await?;
        self.client.query(&statement, params).await
    }

    /// Rows touched by a statement, prepared once a connection.
    ///
    /// # Errors
    /// The store's.
    pub async fn execute(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, tokio_postgres::Error> {
        let statement = self.statement(sql).await?;
        self.client.execute(&statement, params).await
    }

    /// A text of statements without parameters.
    ///
    /// # Errors
    /// The store's.
    pub async fn batch(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }

    /// Rows by COPY.
    ///
    /// # Errors
    /// The store's.
    pub async fn copy(&self, sql: &'static str, rows: Rows) -> Result<u64, tokio_postgres::Error> {
        self.copy_while(sql, rows, || ()).await.map(|r| r.0)
    }

    /// Rows by COPY; what is done while the server works on them.
    ///
    /// # Errors
    /// The store's.
    pub async fn copy_while<T>(
        &self,
        sql: &'static str,
        rows: Rows,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<(u64, T), tokio_postgres::Error> {
        if rows.is_empty() {
            return Ok((0, meanwhile()));
        }
        let statement = self.statement(sql).await?;
        rows.copy_into_while(&self.client, &statement, meanwhile)
            .await
    }
}

/// Why an attempt at a batch failed, which decides what follows (DESIGN § The partition actor).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It was surely rolled back: run the batch again on a fresh overlay.
    RolledBack(String),
    /// The COMMIT's reply is missing: the store alone knows. Drop the slice, claim again, go on from the stored position.
    Unknown(String),
    /// Another owner holds the partition: drop everything and stop.
    Fenced,
    /// The store refuses the data of some record: isolate it.
    Data(String),
    /// What the range brings about is too much for one transaction: its halves are run. Never said of a record alone.
    TooMuch(String),
    /// `decide` panicked on the record at this index of the batch.
    Panicked(usize, String),
    /// Nothing that a retry would mend: stop the partition, a person looks.
    Stop(String),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Failure {
        let text = describe(&error);
        let Some(db) = error.as_db_error() else {
            // A connection that broke before COMMIT was sent: the server rolls back.
            return Failure::RolledBack(text);
        };
        refused(db.code().code(), db.routine(), text)
    }
}

/// What a refusal of the server's means: its SQLSTATE, and the place in its own source that says so.
fn refused(code: &str, routine: Option<&str>, text: String) -> Failure {
    match code {
        // A row without a partition for its day: retention has just dropped it, or nobody has made it yet. No fault of the
        // row's; the server's own place tells it from a check that a trigger makes.
        "23514" if routine == Some("ExecFindPartition") => Failure::RolledBack(text),
        "40P01" | "40001" | "55P03" | "25P03" => Failure::RolledBack(text),
        _ => match code.get(..2) {
            Some("08" | "53" | "57" | "58") => Failure::RolledBack(text),
            // 54: past a limit of the server's, such as a text that is too long for an index. Some record brings it along.
            Some("22" | "23" | "54") => Failure::Data(text),
            _ => Failure::Stop(text),
        },
    }
}

/// The server's message and code; never its detail, which may hold a contact.
#[must_use]
pub fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} (SQLSTATE {})", db.message(), db.code().code()),
        None => {
            let mut text = error.to_string();
            if let Some(source) = std::error::Error::source(error) {
                text.push_str(": ");
                text.push_str(&source.to_string());
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_record_s_data_stops_no_partition() {
        let of = |code, routine| refused(code, routine, String::new());
        let (again, data) = (
            Failure::RolledBack(String::new()),
            Failure::Data(String::new()),
        );
        assert_eq!(of("40001", None), again);
        assert_eq!(of("57P01", None), again);
        assert_eq!(of("23514", Some("ExecFindPartition")), again);
        assert_eq!(of("23514", Some("ExecConstraints")), data);
        assert_eq!(of("22021", None), data);
        // "index row size 4120 exceeds btree version 4 maximum 2704".
        assert_eq!(of("54000", Some("_bt_check_third_page")), data);
        assert_eq!(of("42P01", None), Failure::Stop(String::new()));
    }
}
