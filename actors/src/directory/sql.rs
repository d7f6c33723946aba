//! The two that write the directory: a batch's session, and the transaction of an operation of the API. Both run the same
//! statements.

use crate::runtime::session::Session;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Transaction};

/// Parameters of a statement.
pub type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Whatever statements of the directory can be run on.
#[allow(async_fn_in_trait, reason = "futures stay on their caller's thread")]
pub trait Sql {
    /// Rows of a query.
    ///
    /// # Errors
    /// The store's.
    async fn rows(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Error>;

    /// Rows touched by a statement.
    ///
    /// # Errors
    /// The store's.
    async fn run(&self, sql: &'static str, params: Params<'_>) -> Result<u64, Error>;
}

impl Sql for Session {
    async fn rows(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        self.query(sql, params).await
    }

    async fn run(&self, sql: &'static str, params: Params<'_>) -> Result<u64, Error> {
        self.execute(sql, params).await
    }
}

impl Sql for Transaction<'_> {
    async fn rows(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        self.query(sql, params).await
    }

    async fn run(&self, sql: &'static str, params: Params<'_>) -> Result<u64, Error> {
        self.execute(sql, params).await
    }
}
