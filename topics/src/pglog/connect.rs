//! Connections for threads with a runtime of their own.

use crate::contract::BoxFuture;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Socket};

/// Drives a connection until it ends; whoever connects spawns it on his runtime.
pub type Driver = BoxFuture<'static, ()>;

type Connect = dyn Fn(Config, Arc<Notify>) -> BoxFuture<'static, Result<(Client, Driver), tokio_postgres::Error>>
    + Send
    + Sync;

/// Opens connections with one configuration and one way of TLS. Cheap to clone.
#[derive(Clone)]
pub struct Connector {
    config: Config,
    connect: Arc<Connect>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration may hold a password, which its own Debug hides; nothing more is worth showing.
        f.debug_struct("Connector")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Connector {
    /// Connections with `config` over `tls`.
    pub fn new<T>(config: Config, tls: T) -> Connector
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        Connector {
            config,
            connect: Arc::new(move |config, hint| {
                let tls = tls.clone();
                Box::pin(async move {
                    let (client, connection) = config.connect(tls).await?;
                    let driver: Driver = Box::pin(drive(connection, hint));
                    Ok((client, driver))
                })
            }),
        }
    }

    /// Connections to `url` without TLS.
    ///
    /// # Errors
    /// `url` is none.
    pub fn plain(url: &str) -> Result<Connector, tokio_postgres::Error> {
        Ok(Connector::new(url.parse()?, NoTls))
    }

    /// Opens one and spawns its driver on the current runtime. Notifications, and the connection's end, wake `hint`.
    ///
    /// # Errors
    /// Nothing answers, or it refuses.
    pub async fn open(&self, hint: &Arc<Notify>) -> Result<Client, tokio_postgres::Error> {
        let (client, driver) = (self.connect)(self.config.clone(), Arc::clone(hint)).await?;
        tokio::spawn(driver);
        Ok(client)
    }
}

/// Polls messages to the end, waking `hint` at each notification.
async fn drive<S, T>(mut connection: Connection<S, T>, hint: Arc<Notify>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        match message {
            Ok(AsyncMessage::Notification(_)) => hint.notify_one(),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection of the log ended");
                break;
            }
        }
    }
    // Whoever waits for a hint is to notice.
    hint.notify_one();
}
