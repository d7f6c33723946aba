//! One request, from its headers to its answer: the order of the checks is the order of this file.

use super::ApiState;
use super::call::{Answer, Call};
use super::faults::Faults;
use super::idempotency::Use;
use super::keys::{AuthError, KeyActor};
use super::page::PageRequest;
use super::problem::Problem;
use super::registry::{Method, Place, Registered};
use super::request::{self, Plumbing};
use super::schema::{Sight, query_to_json, redact};
use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, ETAG, LOCATION};
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};
use std::sync::Arc;

/// A checked request on its way to its handler.
struct Ready {
    actor: Arc<KeyActor>,
    params: Vec<(String, String)>,
    query: Value,
    body: Value,
    page: PageRequest,
    if_match: Option<super::call::IfMatch>,
    idempotency: Option<Use>,
    dry_run: bool,
}

/// A success.
struct Done {
    answer: Answer,
    replayed: bool,
    sight: Sight,
    dry_run: bool,
}

/// Serves one operation.
pub async fn serve(
    registered: &'static Registered,
    state: web::Data<ApiState>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    let request_id =
        request::request_id(request.headers()).unwrap_or_else(|| state.mint_request_id());
    let outcome = run(registered, &state, &request, payload).await;
    match outcome {
        Ok(done) => respond(registered, done, &request_id),
        Err(problem) => {
            tracing::debug!(
                operation = registered.operation.id,
                request_id,
                code = problem.code(),
                "refused"
            );
            problem.respond(&request_id)
        }
    }
}

async fn run(
    registered: &'static Registered,
    state: &ApiState,
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<Done, Problem> {
    let actor = actor(registered, state, request).await?;
    let ready = check(registered, state, request, payload, actor).await?;
    transact(registered, state, &ready).await
}

/// Who asks, and whether it may ask this.
async fn actor(
    registered: &Registered,
    state: &ApiState,
    request: &HttpRequest,
) -> Result<Arc<KeyActor>, Problem> {
    let operation = &registered.operation;
    request::refuse_credential_in_url(&request::query_pairs(request.query_string()))?;
    let bearer = request::bearer(request.headers())?;
    let peer = (state.client_address)(request);
    let actor = state
        .keys
        .authenticate(&state.pool, bearer, peer)
        .await
        .map_err(|e| match e {
            AuthError::Unauthenticated => {
                Problem::new("unauthenticated", "the credential is not valid")
            }
            AuthError::AddressRefused => Problem::new(
                "address_refused",
                "the key may not be used from this address",
            ),
            AuthError::WorkspaceArchived => {
                Problem::new("workspace_archived", "the workspace is archived")
            }
            AuthError::Unavailable(error) => {
                tracing::warn!(error, "a key could not be looked up");
                Problem::unavailable()
            }
        })?;
    if let Some(wanted) = request.headers().get("X-Workspace") {
        let pinned = actor.workspace.as_ref().map(|w| w.slug.as_bytes());
        if pinned != Some(wanted.as_bytes()) {
            return Err(Problem::new(
                "workspace_pinned",
                "the key belongs to another workspace than `X-Workspace` names",
            ));
        }
    }
    if let Some(scope) = operation.scope.filter(|s| !actor.scopes.holds(s)) {
        return Err(Problem::scope(scope));
    }
    if operation.place == Place::Workspace && actor.workspace.is_none() {
        return Err(Problem::new(
            "deployment_key",
            "a key of the deployment sees no workspace's data",
        ));
    }
    Ok(actor)
}

/// Headers, path, query and body, each fault of query and body at once.
async fn check(
    registered: &Registered,
    state: &ApiState,
    request: &HttpRequest,
    payload: web::Payload,
    actor: Arc<KeyActor>,
) -> Result<Ready, Problem> {
    let operation = &registered.operation;
    let if_match = request::if_match(request.headers(), operation)?;
    let key = request::idempotency_key(request.headers(), operation)?;
    let params = params(registered, request)?;
    let reading = request::body(request, payload, operation);
    let bytes = tokio::time::timeout(request::SLOWEST_BODY, reading)
        .await
        .map_err(|_| Problem::new("body_timeout", "the body did not come in time"))??;

    let mut faults = Faults::new();
    let pairs = request::query_pairs(request.query_string());
    let Plumbing {
        own,
        dry_run,
        mut page,
        cursor,
    } = request::plumbing(pairs, operation, &mut faults);
    let query = query_to_json(&own, &registered.query.schema, &mut faults);
    registered.query.faults(&query, "?", &mut faults);
    let body = match &registered.body {
        None => Value::Null,
        Some(schema) => {
            let body = request::parse_body(&bytes)?;
            if operation.method == Method::Patch {
                if !body.is_object() {
                    faults.add("", "wrong_type", "a merge patch is an object");
                }
            } else {
                schema.faults(&body, "", &mut faults);
            }
            body
        }
    };
    if !faults.is_empty() {
        return Err(faults.into());
    }
    if operation.list {
        let workspace = actor.workspace.as_ref().map_or(0, |w| w.id);
        let path: String = params.iter().map(|(_, v)| format!("/{v}")).collect();
        page.sealed_over = format!("{}|{workspace}|{path}|{query}", operation.id);
        let cursors = state.cursor_key().await?;
        if let Some(cursor) = cursor {
            page.after = Some(cursors.open(&page.sealed_over, &cursor).ok_or_else(|| {
                Problem::new(
                    "cursor_mismatch",
                    "the cursor belongs to another list, filter or workspace",
                )
            })?);
        }
    }
    let idempotency = key.filter(|_| !dry_run).map(|key| {
        Use::new(
            &actor.key_id,
            operation.id,
            key,
            &request.uri().to_string(),
            &bytes,
        )
    });
    Ok(Ready {
        actor,
        params,
        query,
        body,
        page,
        if_match,
        idempotency,
        dry_run,
    })
}

/// Parameters of the path. What no id can be is not there.
fn params(
    registered: &Registered,
    request: &HttpRequest,
) -> Result<Vec<(String, String)>, Problem> {
    let mut params = Vec::new();
    for p in registered.operation.params {
        let text = request
            .match_info()
            .get(p.name)
            .filter(|t| !t.is_empty() && t.len() <= 300 && !t.chars().any(char::is_control))
            .ok_or_else(Problem::not_found)?;
        params.push((p.name.to_owned(), text.to_owned()));
    }
    Ok(params)
}

/// Runs the handler in its transaction.
async fn transact(
    registered: &Registered,
    state: &ApiState,
    ready: &Ready,
) -> Result<Done, Problem> {
    let operation = &registered.operation;
    let mut client = state.pool.get().await.map_err(|e| {
        tracing::warn!(error = %e, "no connection to the store");
        Problem::unavailable()
    })?;
    let tx = client
        .build_transaction()
        .read_only(!operation.writes())
        .start()
        .await?;
    tx.batch_execute("SET LOCAL statement_timeout = '15s'; SET LOCAL lock_timeout = '3s'")
        .await?;
    let identity = ready.actor.scopes.holds("reports:identity");
    let mut done = Done {
        answer: Answer::default(),
        replayed: false,
        sight: Sight {
            identity,
            secrets: false,
        },
        dry_run: ready.dry_run,
    };
    if let Some(used) = &ready.idempotency
        && let Some(answer) = used.begin(&tx).await?
    {
        done.answer = answer;
        done.replayed = true;
        return Ok(done);
    }
    let modules = state.modules.now();
    let call = Call {
        state,
        modules: &modules,
        actor: &ready.actor,
        tx: &tx,
        params: &ready.params,
        query: &ready.query,
        body: &ready.body,
        body_schema: registered.body.as_ref(),
        page: &ready.page,
        if_match: ready.if_match.as_ref(),
    };
    done.answer = (operation.handler)(&call).await?;
    if ready.dry_run {
        tx.rollback().await?;
        return Ok(done);
    }
    if let Some(used) = &ready.idempotency {
        // What is kept holds no secret; who may see identities is asked again when it is answered again.
        let mut body = done.answer.body.clone();
        redact(
            &mut body,
            &registered.output,
            Sight {
                identity: true,
                secrets: false,
            },
        );
        used.finish(&tx, operation.status, &done.answer, &body)
            .await?;
    }
    tx.commit().await?;
    done.sight.secrets = operation.reveals;
    Ok(done)
}

fn respond(registered: &Registered, done: Done, request_id: &str) -> HttpResponse {
    let operation = &registered.operation;
    let Answer {
        mut body,
        version,
        location,
        before,
        warnings,
    } = done.answer;
    redact(&mut body, &registered.output, done.sight);
    if done.dry_run {
        let before = before.map(|mut before| {
            redact(&mut before, &registered.output, done.sight);
            before
        });
        let would = json!({"would": {"status": operation.status, "before": before, "after": body, "counts": {}, "warnings": warnings}});
        return HttpResponse::Ok()
            .insert_header(("X-Request-Id", request_id))
            .insert_header((CACHE_CONTROL, "no-store"))
            .json(would);
    }
    let status = StatusCode::from_u16(operation.status).unwrap_or(StatusCode::OK);
    let mut answer = HttpResponse::build(status);
    answer
        .insert_header(("X-Request-Id", request_id))
        .insert_header((CACHE_CONTROL, "no-store"));
    if let Some(version) = version {
        answer.insert_header((ETAG, format!("\"{version}\"")));
    }
    if let Some(location) = location {
        answer.insert_header((LOCATION, location));
    }
    if done.replayed {
        answer.insert_header(("Idempotent-Replayed", "true"));
    }
    answer.json(body)
}
