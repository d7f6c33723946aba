//! Mounting the doors and serving them. Their paths come from the registry, which lists them as exempt from what it makes of
//! all other operations.

use super::batch::{self, Stream};
use super::beacon;
use super::click;
use super::feed;
use super::health;
use super::postback;
use super::state::{Door, DoorState};
use crate::api::mounter::mount_exempt;
use crate::settings::Http;
use actix_web::dev::Server;
use actix_web::http::Method;
use actix_web::web::{self, Payload, ServiceConfig};
use actix_web::{App, HttpRequest, HttpServer};
use std::future::ready;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Mounts all doors, each under its id in the registry; called once a worker.
pub fn configure(config: &mut ServiceConfig, state: &DoorState) {
    let beacon = Door::new(state, "e");
    mount_exempt(config, "click_door", |resource| {
        let asked = Rc::clone(&beacon);
        resource
            .route(
                web::post().to(move |payload: Payload| beacon::post(Rc::clone(&beacon), payload)),
            )
            .route(web::method(Method::OPTIONS).to(move || ready(beacon::preflight(&asked))))
    });
    let door = Door::new(state, "c");
    mount_exempt(config, "visit_door", |resource| {
        let visit = move |request: HttpRequest| click::get(Rc::clone(&door), request);
        resource
            .route(web::get().to(visit.clone()))
            .route(web::head().to(visit))
    });
    let door = Door::new(state, "pb");
    mount_exempt(config, "postback_door", |resource| {
        let take = move |request: HttpRequest, payload: Payload| {
            postback::any(Rc::clone(&door), request, payload)
        };
        resource
            .route(web::get().to(take.clone()))
            .route(web::post().to(take))
    });
    for (id, stream) in [
        ("batch_visits", Stream::Visits),
        ("batch_clicks", Stream::Clicks),
        ("batch_postbacks", Stream::Postbacks),
    ] {
        let door = Door::new(state, id);
        mount_exempt(config, id, |resource| {
            resource.route(
                web::post().to(move |request: HttpRequest, payload: Payload| {
                    batch::post(Rc::clone(&door), stream, request, payload)
                }),
            )
        });
    }
    let door = Door::new(state, "feed");
    mount_exempt(config, "feed_door", |resource| {
        let lines = Rc::clone(&door);
        resource
            .route(
                web::get().to(move |request: HttpRequest, payload: Payload| {
                    feed::get(Rc::clone(&door), request, payload)
                }),
            )
            .route(
                web::post().to(move |request: HttpRequest, payload: Payload| {
                    feed::post(Rc::clone(&lines), request, payload)
                }),
            )
    });
    let of = || state.clone();
    let (metrics, healthz, readyz) = (of(), of(), of());
    mount_exempt(config, "metrics", |resource| {
        resource.route(web::get().to(move || ready(health::metrics(&metrics))))
    });
    mount_exempt(config, "healthz", |resource| {
        resource.route(web::get().to(move || ready(health::health(&healthz))))
    });
    mount_exempt(config, "readyz", |resource| {
        resource.route(web::get().to(move || {
            let state = readyz.clone();
            async move { health::ready(&state).await }
        }))
    });
}

/// Binds `http.doors` and serves the doors, with `also` mounted behind them (the admin API, where both share a listener).
/// Answers the server, which is to be awaited, and the addresses it listens on (a port 0 is then a real one). Signals are the
/// caller's; stop it by its handle.
///
/// # Errors
/// The address cannot be bound.
pub fn serve<F>(
    http: &Http,
    state: DoorState,
    also: F,
) -> std::io::Result<(Server, Vec<SocketAddr>)>
where
    F: Fn(&mut ServiceConfig) + Clone + Send + 'static,
{
    let server = HttpServer::new(move || {
        let (state, also) = (state.clone(), also.clone());
        App::new()
            .configure(move |config| configure(config, &state))
            .configure(also)
    })
    .workers(http.workers.max(1))
    .keep_alive(Duration::from_secs(75))
    .client_request_timeout(Duration::from_secs(10))
    .disable_signals()
    .shutdown_timeout(15)
    .bind(http.doors)?;
    let addresses = server.addrs();
    Ok((server.run(), addresses))
}
