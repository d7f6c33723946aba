//! The page behind a link.

use super::token::{Key, Subscription};
use crate::api::mounter::mount_exempt;
use crate::postgres::Pool;
use crate::runtime::session::describe;
use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
};
use actix_web::web::{self, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// Bytes of a POST's body at most. What it says changes nothing: some send `List-Unsubscribe=One-Click` in one form or another,
/// some send nothing, and all of them mean the same.
const BODY_AT_MOST: usize = 64 << 10;
/// How long such a body may take.
const SLOWEST_BODY: Duration = Duration::from_secs(10);
/// Ids of the paths in the registry: where links lead, and where those of mails lead that were sent before.
const PATHS: [&str; 3] = ["unsubscribe", "unsubscribe_public", "unsubscribe_team"];

/// What the pages need.
#[derive(Clone)]
pub struct Pages {
    pool: Pool,
    key: Arc<OnceCell<Key>>,
}

impl Pages {
    /// Over a pool; the key is read when it is first asked for.
    #[must_use]
    pub fn new(pool: Pool) -> Pages {
        Pages {
            pool,
            key: Arc::default(),
        }
    }
}

/// Mounts the pages under the path of today and those of before.
pub fn configure(config: &mut ServiceConfig, pages: &Pages) {
    for id in PATHS {
        mount_exempt(config, id, |resource| {
            let (look, act) = (pages.clone(), pages.clone());
            let look = move |request: HttpRequest| {
                let pages = look.clone();
                async move { show(&pages, &request).await }
            };
            resource
                .route(web::get().to(look.clone()))
                .route(web::head().to(look))
                .route(
                    web::post().to(move |request: HttpRequest, payload: Payload| {
                        let pages = act.clone();
                        async move { unsubscribe(&pages, &request, payload).await }
                    }),
                )
        });
    }
}

/// Why there is no subscription to show.
enum No {
    /// The link is none of ours.
    Unknown,
    /// The store cannot be asked.
    Later(String),
}

async fn read(pages: &Pages, request: &HttpRequest) -> Result<Subscription, No> {
    let key = pages
        .key
        .get_or_try_init(async || {
            let client = pages.pool.get().await.map_err(|e| e.to_string())?;
            super::key(&**client).await.map_err(|e| describe(&e))
        })
        .await
        .map_err(No::Later)?;
    let token = request.match_info().get("token").unwrap_or_default();
    key.read(token).ok_or(No::Unknown)
}

async fn show(pages: &Pages, request: &HttpRequest) -> HttpResponse {
    match read(pages, request).await {
        Ok(subscription) => {
            let what = describe_what(&subscription);
            let body = format!(
                "<h1>Unsubscribe</h1><p>You will get no more {what}.</p>\
                 <form method=\"post\"><input type=\"hidden\" name=\"List-Unsubscribe\" value=\"One-Click\">\
                 <button type=\"submit\">Unsubscribe</button></form>"
            );
            page(StatusCode::OK, &body)
        }
        Err(no) => refused(&no),
    }
}

async fn unsubscribe(pages: &Pages, request: &HttpRequest, payload: Payload) -> HttpResponse {
    if tokio::time::timeout(SLOWEST_BODY, drain(payload)).await != Ok(true) {
        let body = "<h1>Not done</h1><p>The request was too large, too slow or broken off.</p>";
        return page(StatusCode::BAD_REQUEST, body);
    }
    let done = async {
        let mut subscription = read(pages, request).await?;
        let client = pages.pool.get().await;
        let client = client.map_err(|e| No::Later(e.to_string()))?;
        let later = |e: tokio_postgres::Error| No::Later(describe(&e));
        if subscription.workspace == 0 {
            let found = super::workspace_of(&**client, &subscription.user).await;
            subscription.workspace = found.map_err(later)?.ok_or(No::Unknown)?;
        }
        // Committed before it is answered: a statement of its own.
        super::turn_off(&**client, &subscription)
            .await
            .map_err(later)?;
        Ok(subscription)
    };
    match done.await {
        Ok(subscription) => {
            metrics::counter!("unsubscribed_total", "channel" => subscription.channel.clone())
                .increment(1);
            let what = describe_what(&subscription);
            let body = format!("<h1>Done</h1><p>You will get no more {what}.</p>");
            page(StatusCode::OK, &body)
        }
        Err(no) => refused(&no),
    }
}

/// Reads a body to its end and forgets it; false: it was too large or broke off.
async fn drain(mut payload: Payload) -> bool {
    let mut seen = 0usize;
    while let Some(chunk) = payload.next().await {
        let Ok(chunk) = chunk else {
            return false;
        };
        seen += chunk.len();
        if seen > BODY_AT_MOST {
            return false;
        }
    }
    true
}

/// The channel and the scope, for whoever reads the page.
fn describe_what(subscription: &Subscription) -> String {
    let channel = match subscription.channel.as_str() {
        "email" => "mail",
        "push" => "push notifications",
        "inapp" => "notifications in your inbox",
        other => other,
    };
    if subscription.scope.is_empty() {
        return format!("{} of any kind from this service", escape(channel));
    }
    format!("{} about {}", escape(channel), escape(&subscription.scope))
}

fn refused(no: &No) -> HttpResponse {
    match no {
        No::Unknown => page(
            StatusCode::NOT_FOUND,
            "<h1>Unknown link</h1><p>This link is incomplete or was made elsewhere.</p>",
        ),
        No::Later(error) => {
            tracing::warn!(%error, "an unsubscription cannot be taken now");
            page(
                StatusCode::SERVICE_UNAVAILABLE,
                "<h1>Not now</h1><p>Please try again in a minute.</p>",
            )
        }
    }
}

fn page(status: StatusCode, body: &str) -> HttpResponse {
    HttpResponse::build(status)
        .insert_header((CONTENT_TYPE, "text/html; charset=utf-8"))
        .insert_header((CACHE_CONTROL, "no-store"))
        // The link is a capability: it goes to no other site, and no script runs beside it.
        .insert_header((REFERRER_POLICY, "no-referrer"))
        .insert_header((
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        ))
        .insert_header((HeaderName::from_static("x-robots-tag"), "noindex, nofollow"))
        .body(format!(
            "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
             <title>Unsubscribe</title><style>body{{font-family:sans-serif;max-width:32rem;margin:4rem auto;padding:0 1rem}}</style>\
             </head><body>{body}</body></html>"
        ))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
