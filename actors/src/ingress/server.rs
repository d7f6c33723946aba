//! Mounting the doors and serving them. The one place of the doors that may call actix's own route functions: the doors are
//! `data_plane` operations, exempt from what the registry makes of all others.

use super::batch::{self, Stream};
use super::beacon;
use super::click;
use super::health;
use super::postback;
use super::state::{Door, DoorState};
use crate::settings::Http;
use actix_web::dev::Server;
use actix_web::web::{self, Payload, ServiceConfig};
use actix_web::{App, HttpRequest, HttpServer};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Mounts all doors; called once a worker.
#[expect(
    clippy::disallowed_methods,
    reason = "the doors' mounter; every other route comes from the registry"
)]
pub fn configure(config: &mut ServiceConfig, state: &DoorState) {
    let beacon = Door::new(state, "e");
    let asked = Rc::clone(&beacon);
    config.service(
        web::resource("/e")
            .route(
                web::post().to(move |payload: Payload| beacon::post(Rc::clone(&beacon), payload)),
            )
            .route(
                web::method(actix_web::http::Method::OPTIONS)
                    .to(move || std::future::ready(beacon::preflight(&asked))),
            ),
    );
    let door = Door::new(state, "c");
    let visit = move |request: HttpRequest| click::get(Rc::clone(&door), request);
    config.service(
        web::resource("/c/{campaign}")
            .route(web::get().to(visit.clone()))
            .route(web::head().to(visit)),
    );
    let door = Door::new(state, "pb");
    let take = move |request: HttpRequest, payload: Payload| {
        postback::any(Rc::clone(&door), request, payload)
    };
    config.service(
        web::resource("/pb")
            .route(web::get().to(take.clone()))
            .route(web::post().to(take)),
    );
    for (path, name, stream) in [
        ("/v1/batch/visits", "batch_visits", Stream::Visits),
        ("/v1/batch/clicks", "batch_clicks", Stream::Clicks),
        ("/v1/batch/postbacks", "batch_postbacks", Stream::Postbacks),
    ] {
        let door = Door::new(state, name);
        config.service(web::resource(path).route(web::post().to(
            move |request: HttpRequest, payload: Payload| {
                batch::post(Rc::clone(&door), stream, request, payload)
            },
        )));
    }
    let (a, b, c) = (state.clone(), state.clone(), state.clone());
    config.service(
        web::resource("/metrics")
            .route(web::get().to(move || std::future::ready(health::metrics(&a)))),
    );
    config.service(
        web::resource("/healthz")
            .route(web::get().to(move || std::future::ready(health::health(&b)))),
    );
    config.service(web::resource("/readyz").route(web::get().to(move || {
        let state = c.clone();
        async move { health::ready(&state).await }
    })));
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
