//! What an operator's machinery asks: alive, ready, counted.
//!
//! Liveness and readiness are open, as Kubernetes asks them without credentials, and say nothing but that.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use crate::App;

pub(crate) fn open_routes() -> Router<App> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

pub(crate) fn metrics_route() -> Router<App> {
    Router::new().route("/metrics", get(metrics))
}

async fn healthz() -> Response {
    Json(json!({"status": "ok"})).into_response()
}

async fn readyz(State(app): State<App>) -> Response {
    let (status, word) = if app.shutdown.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if app.runtime.backend_status().await.available {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no backend")
    };
    (status, Json(json!({"status": word}))).into_response()
}

async fn metrics(State(app): State<App>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    app.runtime.refresh_metrics().await;
    ([(header::CONTENT_TYPE, kind)], app.runtime.metrics().render()).into_response()
}
