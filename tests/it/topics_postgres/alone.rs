//! What only the Postgres log promises.
