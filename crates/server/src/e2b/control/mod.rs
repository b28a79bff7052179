//! The control plane: sandboxes made, listed, kept, paused, ended. Admitted like REST, refused in E2B's words.

mod create;
mod figures;
mod idempotency;
mod list;
mod manage;
mod network;
mod show;

use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{any, get, post, put};
use axum::{Router, body::Bytes};
use serde::de::DeserializeOwned;

use super::error::Refused;
use crate::App;
use crate::auth::{Face, Guard};

pub(crate) use idempotency::Keys;

/// The largest thing in a body is an environment.
const MAX_BODY_BYTES: usize = 2 << 20;

/// What this server does not have, each with what to do instead.
const ABSENT: [(&str, &str); 12] = [
    ("/templates", TEMPLATES),
    ("/templates/{*rest}", TEMPLATES),
    ("/v2/templates", TEMPLATES),
    ("/v2/templates/{*rest}", TEMPLATES),
    ("/v3/templates", TEMPLATES),
    ("/v3/templates/{*rest}", TEMPLATES),
    ("/sandboxes/{id}/snapshots", SNAPSHOTS),
    ("/snapshots", SNAPSHOTS),
    ("/sandboxes/{id}/fork", SNAPSHOTS),
    ("/volumes", VOLUMES),
    ("/volumes/{*rest}", VOLUMES),
    ("/secrets", "secrets are not kept on this server: pass what a sandbox needs as `envs`"),
];
const TEMPLATES: &str = "templates are not built on this server: its operator names images for them in \
                         [e2b.templates] of sandcrate.toml";
const SNAPSHOTS: &str = "this server takes no snapshots and forks no sandboxes: it keeps the files of a paused one, \
                         and not its memory";
const VOLUMES: &str =
    "this server has no volumes: the files of a sandbox are its own, and are kept while it is paused";

pub(crate) fn routes(app: &App) -> Router<App> {
    if !app.config.e2b.enabled {
        return Router::new();
    }
    let guard = Guard { admission: app.admission.clone(), face: Face::Api };
    let absent = ABSENT.into_iter().fold(Router::new(), |routes, (path, why)| {
        routes.route(path, any(move || async move { Refused::unsupported(why) }))
    });
    absent
        .route("/sandboxes", post(create::create).get(list::list))
        .route("/v2/sandboxes", post(create::create_secured).get(list::list))
        .route("/sandboxes/metrics", get(figures::metrics_of_all))
        .route("/sandboxes/{id}", get(manage::get).delete(manage::kill))
        .route("/sandboxes/{id}/connect", post(manage::connect))
        .route("/v2/sandboxes/{id}/connect", post(manage::connect))
        .route("/sandboxes/{id}/resume", post(manage::resume))
        .route("/sandboxes/{id}/pause", post(manage::pause))
        .route("/sandboxes/{id}/timeout", post(manage::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(manage::refresh))
        .route("/sandboxes/{id}/network", put(network::change))
        .route("/sandboxes/{id}/metrics", get(figures::metrics))
        .route("/sandboxes/{id}/logs", get(figures::logs))
        .route("/v2/sandboxes/{id}/logs", get(figures::logs_v2))
        .method_not_allowed_fallback(nothing)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn_with_state(guard, admit))
}

async fn admit(State(guard): State<Guard>, mut request: Request, next: Next) -> Result<Response, Refused> {
    guard.pass(&mut request).await?;
    Ok(next.run(request).await)
}

async fn nothing(method: Method, uri: Uri) -> Refused {
    let path: String = uri.path().chars().take(200).collect();
    Refused::new(axum::http::StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not served at {path}"))
}

/// Does what must not be left half done by a client that leaves.
async fn to_the_end<T: Send + 'static>(
    app: &App,
    work: impl Future<Output = Result<T, Refused>> + Send + 'static,
) -> Result<T, Refused> {
    let done = app.tasks.spawn(work).await;
    done.unwrap_or_else(|_| {
        let message = "the request ended without a result";
        Err(Refused::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, message))
    })
}

/// A JSON body; an empty one is an empty object.
#[derive(Debug)]
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let body = Bytes::from_request(request, state).await.map_err(|rejection: BytesRejection| {
            Refused::new(rejection.status(), format!("the body is not acceptable: {}", rejection.body_text()))
        })?;
        let text: &[u8] = if body.trim_ascii().is_empty() { b"{}" } else { &body };
        let mut json = serde_json::Deserializer::from_slice(text);
        serde_path_to_error::deserialize(&mut json).map(Self).map_err(|error| {
            Refused::invalid(format!("{} is not acceptable: {}", error.path(), error.inner()))
        })
    }
}

#[derive(Debug)]
struct Params<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let query = Query::try_from_uri(&parts.uri);
        query
            .map(|Query(value)| Self(value))
            .map_err(|rejection: QueryRejection| Refused::invalid(rejection.body_text()))
    }
}
