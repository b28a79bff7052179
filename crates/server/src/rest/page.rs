//! `/docs`: a page that shows the API document and lets one try it. It is part of the program, loads nothing
//! from elsewhere, and keeps a token in memory alone.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::App;

const HTML: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/docs.js");
const STYLE: &str = include_str!("page/docs.css");

/// Nothing but our own script and style, requests to this server only, and no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/docs", get(async || asset("text/html; charset=utf-8", HTML)))
        .route("/docs/docs.js", get(async || asset("text/javascript; charset=utf-8", SCRIPT)))
        .route("/docs/docs.css", get(async || asset("text/css; charset=utf-8", STYLE)))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Belongs to the version of the program that serves it.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
