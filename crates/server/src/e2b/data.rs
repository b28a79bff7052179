//! The data plane's door: finds the sandbox that a request is for, asks for its secret, and gives the request to
//! whoever serves that port.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::uri::PathAndQuery;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sandcrate_e2b_wire::{ENVD_PORT, INTERPRETER_PORT, header as names};
use sandcrate_protocol::ErrorKind;

use super::envd;
use super::error::Refused;
use super::interpreter;
use super::sandbox::{Sandbox, Secret};
use super::target::{Marked, Target, marked};
use crate::App;
use crate::rest::proxy::{Outgoing, Site, carry};

/// Takes what is for a sandbox; everything else goes on to our own routes.
pub(crate) async fn dispatch(State(app): State<App>, request: Request, next: Next) -> Response {
    let config = &app.config.e2b;
    if !config.enabled {
        return next.run(request).await;
    }
    match marked(request.uri(), request.headers(), config.domain.as_deref()) {
        Marked::Not => match envd::signer(&app, &request) {
            Some(sandbox) => envd::answer(&app, sandbox, request).await,
            None => next.run(request).await,
        },
        Marked::Badly(problem) => Refused::invalid(problem).into_response(),
        Marked::For(target) => {
            answer(&app, target, request).await.unwrap_or_else(IntoResponse::into_response)
        }
    }
}

async fn answer(app: &App, target: Target, request: Request) -> Result<Response, Refused> {
    let found = app.e2b.find(&app.runtime, &target.sandbox);
    let sandbox = found.filter(|sandbox| sandbox.is_running());
    let sandbox = sandbox.ok_or_else(|| Refused::not_running(&target.sandbox))?;
    match target.port {
        ENVD_PORT => Ok(envd::answer(app, sandbox, request).await),
        INTERPRETER_PORT => Ok(interpreter::answer(app, &sandbox, request).await),
        _ => forward(app, &sandbox, &target, request).await,
    }
}

/// To a server in the box.
async fn forward(
    app: &App,
    sandbox: &Arc<Sandbox>,
    target: &Target,
    request: Request,
) -> Result<Response, Refused> {
    if let (true, Some(secret)) = (sandbox.facts.private_ports, &sandbox.facts.traffic) {
        let message = "traffic to this sandbox is not public: send its token as E2b-Traffic-Access-Token";
        check(secret, &request, names::TRAFFIC_TOKEN)
            .map_err(|()| Refused::new(StatusCode::FORBIDDEN, message))?;
    }
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let site = if target.own_host { Site::Own } else { Site::Ours };
    let outgoing = Outgoing { prefix: String::new(), target: path, site };
    let port = target.port;
    carry(app, sandbox.id(), port, outgoing, request).await.map_err(|error| {
        if error.status() == StatusCode::BAD_GATEWAY && error.kind() != Some(ErrorKind::SessionNotFound) {
            let message = format!("the sandbox is running, but its port is not open: {}", error.message());
            return Refused::new(StatusCode::BAD_GATEWAY, message);
        }
        error.into()
    })
}

/// Whether a header carries the secret.
pub(crate) fn check(secret: &Secret, request: &Request, header: &str) -> Result<(), ()> {
    let shown = request.headers().get(header).and_then(|value| value.to_str().ok());
    if shown.is_some_and(|text| secret.matches(text)) { Ok(()) } else { Err(()) }
}
