//! Turns the registry into routes: the only file that may call actix's route functions.

use super::ApiState;
use super::openapi;
use super::problem::Problem;
use super::registry::{Exempt, Method, find_exempt, registry};
use super::request;
use super::serve::serve;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::{HttpRequest, HttpResponse, Resource, web};
use std::collections::BTreeMap;

/// Mounts every operation and the interface's own document. `state` is made once and shared by all workers.
pub fn configure(config: &mut web::ServiceConfig, state: web::Data<ApiState>) {
    config.app_data(state);
    config.default_service(web::to(not_found));
    let mut paths: BTreeMap<&'static str, Vec<&'static super::registry::Registered>> =
        BTreeMap::new();
    for registered in registry() {
        paths
            .entry(registered.operation.path)
            .or_default()
            .push(registered);
    }
    for (path, operations) in paths {
        let mut resource = web::resource(path);
        let mut allow = Vec::new();
        for registered in operations {
            let handler =
                move |state: web::Data<ApiState>, request: HttpRequest, payload: web::Payload| {
                    serve(registered, state, request, payload)
                };
            let method = registered.operation.method;
            allow.push(method.name());
            if method == Method::Get {
                allow.push("HEAD");
                resource = resource.route(web::head().to(handler));
            }
            resource = resource.route(route_of(method).to(handler));
        }
        mount(config, with_405(resource, &allow));
    }
    mount_exempt(config, "openapi", |resource| {
        let document = || async {
            HttpResponse::Ok()
                .insert_header((CONTENT_TYPE, "application/json"))
                .insert_header((CACHE_CONTROL, "public, max-age=300"))
                .body(openapi::text())
        };
        resource
            .route(web::get().to(document))
            .route(web::head().to(document))
    });
}

/// Mounts a door, page or protocol that the registry lists as exempt: its path comes from there, `build` adds the handlers.
/// What the registry does not list is not mounted.
pub fn mount_exempt(
    config: &mut web::ServiceConfig,
    id: &'static str,
    build: impl FnOnce(Resource) -> Resource,
) {
    let Some(Exempt { path, methods, .. }) = find_exempt(id) else {
        tracing::error!(id, "not in the registry, not mounted");
        return;
    };
    let names: Vec<&str> = methods.iter().map(|m| m.name()).collect();
    mount(config, with_405(build(web::resource(*path)), &names));
}

/// The answer of every path that nothing is mounted at.
pub async fn not_found(request: HttpRequest) -> HttpResponse {
    let id = request::request_id(request.headers()).unwrap_or_else(|| "unmatched".to_owned());
    Problem::not_found().respond(&id)
}

fn route_of(method: Method) -> actix_web::Route {
    match method {
        Method::Get => web::get(),
        Method::Post => web::post(),
        Method::Put => web::put(),
        Method::Patch => web::patch(),
        Method::Delete => web::delete(),
    }
}

fn with_405(resource: Resource, allow: &[&'static str]) -> Resource {
    let allow = allow.join(", ");
    resource.default_service(web::to(move |request: HttpRequest| {
        let id = request::request_id(request.headers()).unwrap_or_else(|| "unmatched".to_owned());
        let answer = Problem::method_not_allowed(&allow).respond(&id);
        async move { answer }
    }))
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the mounter: every route of the product passes here"
)]
fn mount(config: &mut web::ServiceConfig, resource: Resource) {
    config.service(resource);
}
