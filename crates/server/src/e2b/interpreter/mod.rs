//! E2B's code interpreter, port 49999 of a sandbox: contexts, and code that runs in them.
//!
//! A context is a process in the box: our kernel (`kernel/`) on the box's own Python, spoken with by lines of JSON over
//! its standard streams, so that a box without a network has it too. It starts when it is first needed, and again after
//! it ended, with nothing of what it knew: a crash, an endless loop or an interrupt of one harms no other.

mod contexts;
mod execution;
mod kernel;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use sandcrate_e2b_wire::header;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub(crate) use contexts::Contexts;
use contexts::{Context, Language};

use super::error::Refused;
use super::sandbox::{Sandbox, Secret};
use crate::App;

/// A request is held in memory whole; the largest thing in one is code.
const MAX_BODY_BYTES: usize = 4 << 20;

#[derive(Debug, Deserialize)]
struct ExecuteBody {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct ContextBody {
    language: Option<String>,
    cwd: Option<String>,
}

/// Answers a request to the interpreter's port of a sandbox.
pub(crate) async fn answer(app: &App, sandbox: &Arc<Sandbox>, request: Request) -> Response {
    route(app, sandbox, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn route(app: &App, sandbox: &Arc<Sandbox>, request: Request) -> Result<Response, Refused> {
    let path = request.uri().path().trim_matches('/').to_owned();
    let method = request.method().clone();
    let parts: Vec<_> = path.split('/').collect();
    match (&method, parts.as_slice()) {
        (&Method::GET, ["health"]) => Ok("OK".into_response()),
        (&Method::POST, ["execute"]) => {
            // The SDKs send the sandbox's own token with code, and only with code.
            admit(sandbox.facts.access.as_ref(), request.headers(), header::ACCESS_TOKEN)?;
            let body: ExecuteBody = read(request).await?;
            execution::execute(app, sandbox, body).await
        }
        (_, ["contexts", rest @ ..]) => {
            admit(sandbox.facts.traffic.as_ref(), request.headers(), header::TRAFFIC_TOKEN)?;
            let rest: Vec<_> = rest.iter().map(|&part| part.to_owned()).collect();
            contexts(app, sandbox, &method, &rest, request).await
        }
        _ => {
            let shown: String = path.chars().take(200).collect();
            let message = format!("the code interpreter has no {method} /{shown}");
            Err(Refused::new(StatusCode::NOT_FOUND, message))
        }
    }
}

async fn contexts(
    app: &App,
    sandbox: &Arc<Sandbox>,
    method: &Method,
    rest: &[String],
    request: Request,
) -> Result<Response, Refused> {
    let known = &sandbox.contexts;
    match (method, rest) {
        (&Method::GET, []) => {
            known.default_of(Language::Python)?;
            Ok(Json(known.all().iter().map(|context| context.view()).collect::<Vec<_>>()).into_response())
        }
        (&Method::POST, []) => {
            let body: ContextBody = read(request).await?;
            let language = Language::named(body.language.as_deref())?;
            let context = known.create(language, body.cwd)?;
            if let Err(refused) = context.begin(app, sandbox).await {
                known.remove(&context.id);
                return Err(refused);
            }
            Ok(Json(context.view()).into_response())
        }
        (&Method::DELETE, [id]) => {
            let context = known.remove(id).ok_or_else(|| Context::unknown(id))?;
            context.stop(app, sandbox).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        (&Method::POST, [id, restart]) if restart == "restart" => {
            let context = known.get(id).ok_or_else(|| Context::unknown(id))?;
            context.stop(app, sandbox).await?;
            context.begin(app, sandbox).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        _ => Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not served here"))),
    }
}

/// A secret that is asked for must be there.
fn admit(secret: Option<&Secret>, headers: &HeaderMap, name: &str) -> Result<(), Refused> {
    let given = headers.get(name).and_then(|given| given.to_str().ok());
    match secret {
        Some(secret) if !given.is_some_and(|given| secret.matches(given)) => {
            let message = format!("the header {name} is missing or is not this sandbox's token");
            Err(Refused::new(StatusCode::UNAUTHORIZED, message))
        }
        _ => Ok(()),
    }
}

async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Refused> {
    let body = to_bytes(request.into_body(), MAX_BODY_BYTES).await;
    let body = body.map_err(|_| {
        let message = format!("the body did not arrive whole, or has more than {MAX_BODY_BYTES} bytes");
        Refused::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    })?;
    serde_json::from_slice(&body)
        .map_err(|error| Refused::invalid(format!("the body is not acceptable: {error}")))
}
