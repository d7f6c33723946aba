//! Whom the demo delivers to: a stand-in for Meta, a receiver of webhooks and a catcher of mail, on loopback, in this process. They
//! take messages as the real ones would, some not at the first try, and count for themselves: the recount holds the outbox against
//! that. What the catcher took can be read at a URL.

pub mod hook;
pub mod mail;
pub mod meta;

use crate::settings::Settings;
use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::http::header::RETRY_AFTER;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use anyhow::Context;
use hook::{Hook, HookCounts};
use mail::{Mail, MailCounts};
use meta::{Meta, MetaCounts};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a request at most: a thousand events have room.
const BODY_AT_MOST: usize = 8 << 20;

/// What a stand-in answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// The body.
    pub body: serde_json::Value,
}

impl Reply {
    /// A status and a body.
    #[must_use]
    pub fn new(status: u16, body: serde_json::Value) -> Reply {
        Reply {
            status,
            retry_after: None,
            body,
        }
    }
}

/// What they have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The stand-in for Meta.
    pub meta: MetaCounts,
    /// The receiver of webhooks.
    pub hook: HookCounts,
    /// The catcher of mail.
    pub mail: MailCounts,
}

/// All of them, listening.
pub struct StandIns {
    /// The catcher of mail.
    pub mail: Arc<Mail>,
    /// Where what it caught can be read.
    pub mail_url: String,
    /// The stand-in for Meta.
    pub meta: Arc<Meta>,
    /// The receiver of webhooks.
    pub hook: Arc<Hook>,
    /// What `delivery.meta.graph_url` is set to.
    pub graph_url: String,
    /// Where the webhook listens.
    pub hook_url: String,
    handles: [ServerHandle; 3],
}

impl StandIns {
    /// Starts them on free ports of loopback. Needs a running actix system.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn start() -> anyhow::Result<StandIns> {
        let (meta, hook) = (Arc::new(Meta::default()), Arc::new(Hook::default()));
        let taking = meta.clone();
        let (graph, graph_handle) = serve(move |request: &HttpRequest, body: &[u8]| {
            taking.take(request.path(), body, now_secs())
        })
        .context("the stand-in for Meta")?;
        let hearing = hook.clone();
        let (heard, hook_handle) = serve(move |request: &HttpRequest, body: &[u8]| {
            let headers = request.headers();
            hearing.take(|name| headers.get(name)?.to_str().ok(), body, now_secs())
        })
        .context("the receiver of webhooks")?;
        let mail = Arc::new(Mail::start().context("the catcher of mail")?);
        let shown = mail.clone();
        let (page, page_handle) =
            serve(move |request: &HttpRequest, _: &[u8]| shown.page(request.path()))
                .context("the page of caught mail")?;
        Ok(StandIns {
            mail,
            mail_url: format!("http://{page}/"),
            meta,
            hook,
            graph_url: format!("http://{graph}"),
            hook_url: format!("http://{heard}/millrace"),
            handles: [graph_handle, hook_handle, page_handle],
        })
    }

    /// Sets what delivery must know of them, and lets Meta's first retry come soon.
    pub fn furnish(&self, settings: &mut Settings) {
        let delivery = &mut settings.delivery;
        delivery.allowed_networks = vec!["127.0.0.0/8".to_owned()];
        delivery.meta.graph_url.clone_from(&self.graph_url);
        delivery.meta.retry_first_ms = 250;
        delivery.meta.retry_most_ms = 2_000;
    }

    /// What they have counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            meta: self.meta.counts(),
            hook: self.hook.counts(),
            mail: self.mail.counts(),
        }
    }

    /// They end.
    pub async fn stop(&self) {
        futures::future::join_all(self.handles.iter().map(|h| h.stop(false))).await;
    }
}

fn now_secs() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_secs()).unwrap_or(i64::MAX)
}

/// Serves every request by `take`.
fn serve<F>(take: F) -> std::io::Result<(SocketAddr, ServerHandle)>
where
    F: Fn(&HttpRequest, &[u8]) -> Reply + Clone + Send + 'static,
{
    let server = HttpServer::new(move || {
        let take = take.clone();
        App::new()
            .app_data(web::PayloadConfig::new(BODY_AT_MOST))
            .default_service(web::to(move |request: HttpRequest, body: web::Bytes| {
                let reply = take(&request, &body);
                async move { http(&reply) }
            }))
    })
    .workers(1)
    .disable_signals()
    .bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let address = server.addrs().first().copied();
    let address = address.ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    let server = server.run();
    let handle = server.handle();
    actix_rt::spawn(server);
    Ok((address, handle))
}

fn http(reply: &Reply) -> HttpResponse {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = HttpResponse::build(status);
    if let Some(seconds) = reply.retry_after {
        answer.insert_header((RETRY_AFTER, seconds.to_string()));
    }
    answer.json(&reply.body)
}
