//! The REST face: `/v1/…`, the document of it at `/openapi.json`, and a page for people at `/docs`.
//!
//! Handlers are documented where they are written; a route that is not in the document cannot be added here,
//! as both come from the same list. Bodies are read strictly: a field that is not known is refused.

mod command;
mod commands;
pub(crate) mod error;
mod events;
mod exec;
mod extract;
pub(crate) mod files;
mod images;
mod mcp;
mod network;
mod openapi;
mod outcome;
mod page;
mod ports;
mod processes;
pub(crate) mod proxy;
mod schema;
mod sessions;
mod signal;
mod skills;
mod spec;
mod start_events;
mod status;
mod terminal;
mod tools;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header;
use axum::routing::get;
use utoipa_axum::router::OpenApiRouter;

use crate::App;

/// What needs to be admitted.
pub(crate) fn routes() -> Router<App> {
    api().split_for_parts().0.layer(DefaultBodyLimit::max(extract::MAX_JSON_BYTES))
}

/// The description of the above, which is no secret: a browser that opens the page has no token to show yet.
pub(crate) fn open_routes() -> Router<App> {
    let document = bytes::Bytes::from(document());
    let answer = move || async move { ([(header::CONTENT_TYPE, "application/json")], document) };
    page::routes().route("/openapi.json", get(answer))
}

fn api() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base())
        .merge(sessions::routes())
        .merge(exec::routes())
        .merge(commands::routes())
        .merge(terminal::routes())
        .merge(processes::routes())
        .merge(files::routes())
        .merge(images::routes())
        .merge(mcp::routes())
        .merge(network::routes())
        .merge(ports::routes())
        .merge(proxy::routes())
        .merge(skills::routes())
        .merge(status::routes())
        .merge(tools::routes())
}

fn document() -> String {
    // Made of our own constants; a failure would be seen by every test of it.
    openapi::finish(api().into_openapi()).to_json().unwrap_or_default()
}
