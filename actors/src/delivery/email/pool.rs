//! Connections to a workspace's server: opened past the address guard, kept for the next mail, and never trusted to be alive.

use super::client::{Refusal, Said, Stage};
use super::settings::{Email, Security, Transport};
use super::tls::Encrypted;
use crate::delivery::address_guard::{AddressGuard, AddressRefused, GuardedResolver};
use crate::delivery::outbound::{self, ClientError};
use lettre::transport::smtp;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use rustls::pki_types::{CertificateDer, ServerName};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Opens connections and keeps them by transport.
pub struct Connections {
    settings: Email,
    resolver: GuardedResolver,
    tls: TlsConnector,
    /// Authorities beside the system's.
    authorities: Vec<CertificateDer<'static>>,
    /// By the transport's id.
    pools: RefCell<HashMap<String, Rc<Pool>>>,
}

/// What is kept of one transport, as of one of its versions.
pub(super) struct Pool {
    version: i64,
    idle: RefCell<Vec<(AsyncSmtpConnection, Instant)>>,
    /// Reading the system's authorities takes a while: once a version.
    starttls: OnceCell<TlsParameters>,
}

impl Pool {
    /// A connection that was idle for less than `most`, the last one used first.
    pub fn take(&self, most: Duration) -> Option<AsyncSmtpConnection> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|(_, since)| since.elapsed() < most);
        idle.pop().map(|(connection, _)| connection)
    }

    /// Keeps one for the next mail.
    pub fn put(&self, connection: AsyncSmtpConnection) {
        if !connection.has_broken() {
            self.idle.borrow_mut().push((connection, Instant::now()));
        }
    }
}

impl Connections {
    /// None yet.
    ///
    /// # Errors
    /// The resolver or TLS cannot be set up, or the file of authorities cannot be read.
    pub fn new(settings: &Email, guard: AddressGuard) -> Result<Connections, ClientError> {
        let authorities = match &settings.ca_file {
            Some(file) => crate::postgres::tls::authorities(file)?,
            None => Vec::new(),
        };
        Ok(Connections {
            settings: settings.clone(),
            resolver: GuardedResolver::new(guard).map_err(ClientError::Resolver)?,
            tls: TlsConnector::from(Arc::new(outbound::tls(&authorities)?)),
            authorities,
            pools: RefCell::default(),
        })
    }

    /// How the channel is set.
    #[must_use]
    pub fn settings(&self) -> &Email {
        &self.settings
    }

    /// The connections of a transport; those of its former versions are let go.
    pub(super) fn of(&self, transport: &Transport) -> Rc<Pool> {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.get(&transport.id);
        let newer = pool.is_some_and(|p| p.version > transport.version);
        if let Some(pool) = pool.filter(|p| p.version == transport.version) {
            return Rc::clone(pool);
        }
        let fresh = Rc::new(Pool {
            version: transport.version,
            idle: RefCell::default(),
            starttls: OnceCell::new(),
        });
        // Who still sends by an older version leaves no connection of it among those of the new one.
        if !newer {
            pools.insert(transport.id.clone(), Rc::clone(&fresh));
        }
        fresh
    }

    /// A fresh connection, greeted, secured and logged in. `at` says meanwhile how far it is.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) async fn open(
        &self,
        transport: &Transport,
        pool: &Pool,
        at: &Cell<Stage>,
    ) -> Result<AsyncSmtpConnection, Refusal> {
        let limit = Duration::from_millis(self.settings.connect_timeout_ms);
        match tokio::time::timeout(limit, self.greet(transport, pool, at)).await {
            Ok(opened) => opened,
            Err(_) => Err(Refusal::lost(at.get(), "timeout", "no answer in time")),
        }
    }

    async fn greet(
        &self,
        transport: &Transport,
        pool: &Pool,
        at: &Cell<Stage>,
    ) -> Result<AsyncSmtpConnection, Refusal> {
        let stream = self.dial(transport, at).await?;
        let name = self.settings.hello_name.as_ref();
        let hello = ClientId::Domain(name.unwrap_or(&transport.message_domain).clone());
        let greeted = match transport.security {
            Security::Tls => {
                at.set(Stage::Tls);
                let stream = self.encrypt(transport, stream).await?;
                at.set(Stage::Greeting);
                AsyncSmtpConnection::connect_with_transport(Box::new(stream), &hello).await
            }
            Security::StartTls | Security::None => {
                at.set(Stage::Greeting);
                AsyncSmtpConnection::connect_with_transport(Box::new(stream), &hello).await
            }
        };
        let mut connection = greeted.map_err(|e| Refusal::of(Stage::Greeting, &e))?;
        if transport.security == Security::StartTls {
            at.set(Stage::Tls);
            if !connection.can_starttls() {
                let why = "the server offers no STARTTLS, and nothing is said in the clear";
                return Err(Refusal::lost(Stage::Tls, "no_tls", why));
            }
            let parameters = match pool.starttls.get() {
                Some(parameters) => parameters.clone(),
                None => {
                    let made = self.parameters(transport);
                    let made = made.map_err(|e| Refusal::of(Stage::Tls, &e))?;
                    pool.starttls.get_or_init(|| made).clone()
                }
            };
            let secured = connection.starttls(parameters, &hello).await;
            secured.map_err(|e| Refusal::of(Stage::Tls, &e))?;
        }
        if let Some(login) = &transport.login {
            at.set(Stage::Auth);
            let credentials = Credentials::new(login.user.clone(), login.password.clone());
            let ways = [Mechanism::Plain, Mechanism::Login];
            let known = connection.auth(&ways, &credentials).await;
            known.map_err(|e| Refusal::of(Stage::Auth, &e))?;
        }
        Ok(connection)
    }

    /// What STARTTLS asks of a server's certificate: as [`Connections::encrypt`] does.
    fn parameters(&self, transport: &Transport) -> Result<TlsParameters, smtp::Error> {
        let mut parameters = TlsParameters::builder(transport.host.clone());
        for authority in &self.authorities {
            parameters =
                parameters.add_root_certificate(Certificate::from_der(authority.to_vec())?);
        }
        parameters.build()
    }

    async fn dial(&self, transport: &Transport, at: &Cell<Stage>) -> Result<TcpStream, Refusal> {
        at.set(Stage::Resolve);
        let found = self.resolver.addresses(&transport.host).await;
        let addresses = found.map_err(|error| {
            let refused = error.downcast_ref::<AddressRefused>().is_some();
            let code = if refused {
                "address_refused"
            } else {
                "unresolved"
            };
            Refusal::lost(Stage::Resolve, code, &error.to_string())
        })?;
        at.set(Stage::Connect);
        let mut why = String::new();
        for address in addresses {
            match TcpStream::connect((address, transport.port)).await {
                Ok(stream) => {
                    // A body and the dot behind it are two writes: without this the second may wait for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => why = error.to_string(),
            }
        }
        Err(Refusal::lost(Stage::Connect, "no_connection", &why))
    }

    async fn encrypt(
        &self,
        transport: &Transport,
        stream: TcpStream,
    ) -> Result<Encrypted, Refusal> {
        let refused = |why: &str| Refusal {
            stage: Stage::Tls,
            said: Said::Lost {
                code: "no_tls",
                why: why.to_owned(),
            },
        };
        let name = ServerName::try_from(transport.host.clone());
        let name = name.map_err(|_| refused("no certificate can bear the server's name"))?;
        let secured = self.tls.connect(name, stream).await;
        secured.map(Encrypted).map_err(|e| refused(&e.to_string()))
    }
}
