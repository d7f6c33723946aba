//! The admin API, mounted from one registry of operations. What may not: decide anything about records (that is the
//! actors'), or open a socket (that is the command line's).
//!
//! Who may: [`keys`], [`key_store`], [`scopes`], [`workspaces`].
//! What there is: [`registry`] lists it, [`operations`] holds the handlers, [`entity`] what all objects have in common,
//! [`page`] what all lists have. How a request passes: [`mounter`] → [`serve`] → a handler on a [`call`]; [`request`],
//! [`json`], [`schema`], [`idempotency`], [`problem`] and [`faults`] are its steps. [`openapi`] is the document.
//!
//! A new operation: a handler in `operations/`, an entry in its `all()`, the document written anew. Users, sessions, OAuth,
//! MCP, audit and step-up are later; actors, tools and `step_up` have their places in the registry.

pub mod call;
pub mod entity;
pub mod faults;
pub mod idempotency;
pub mod json;
pub mod key_store;
pub mod keys;
pub mod mounter;
pub mod openapi;
pub mod operations;
pub mod page;
pub mod problem;
pub mod registry;
pub mod request;
pub mod schema;
pub mod scopes;
pub mod serve;
pub mod workspaces;

pub use mounter::{configure, mount_exempt, not_found};

use crate::modules::Live;
use crate::postgres::Pool;
use crate::runtime::clock::SharedClock;
use crate::sealing::Seals;
use actix_web::HttpRequest;
use keys::KeyCache;
use millrace_schemas::ids;
use page::CursorKey;
use problem::Problem;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Finds a request's client address.
pub type ClientAddress = Box<dyn Fn(&HttpRequest) -> Option<IpAddr> + Send + Sync>;

/// What every operation shares; one a process, behind [`actix_web::web::Data`].
pub struct ApiState {
    /// Connections.
    pub pool: Pool,
    /// The wall clock.
    pub clock: SharedClock,
    /// Sealing keys.
    pub seals: Arc<Seals>,
    /// Resolved keys; the batch doors may share it.
    pub keys: Arc<KeyCache>,
    /// The doors' URL as the world sees it, without a slash at its end.
    pub public_url: Option<String>,
    /// What the enabled modules declare; none, unless the process says so.
    pub modules: Live,
    /// The client's address: the peer's, unless proxies are trusted.
    pub client_address: ClientAddress,
    /// Where firings from outside go; none: no module is enabled.
    pub events: Option<operations::events::Events>,
    cursor_key: OnceCell<CursorKey>,
}

impl ApiState {
    /// The state of a process; the client's address is the peer's.
    #[must_use]
    pub fn new(
        pool: Pool,
        clock: SharedClock,
        seals: Arc<Seals>,
        keys: Arc<KeyCache>,
        public_url: Option<String>,
    ) -> ApiState {
        ApiState {
            pool,
            clock,
            seals,
            keys,
            public_url: public_url.map(|u| u.trim_end_matches('/').to_owned()),
            modules: Live::default(),
            client_address: Box::new(|request| request.peer_addr().map(|a| a.ip())),
            events: None,
            cursor_key: OnceCell::new(),
        }
    }

    /// The deployment's key of cursors, read once.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn cursor_key(&self) -> Result<&CursorKey, Problem> {
        self.cursor_key
            .get_or_try_init(|| async {
                let client = self.pool.get().await.map_err(|_| Problem::unavailable())?;
                CursorKey::load(&**client).await
            })
            .await
    }

    fn mint_request_id(&self) -> String {
        ids::mint(self.clock.wall()).map_or_else(|_| "unminted".to_owned(), ids::encode)
    }
}
