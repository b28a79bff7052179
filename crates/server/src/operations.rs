//! What an operator's machinery asks: alive, ready, counted.
//!
//! Liveness and readiness are open, as Kubernetes asks them without credentials, and say little more than that.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::App;

pub(crate) fn open_routes() -> Router<App> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

pub(crate) fn metrics_route() -> Router<App> {
    Router::new().route("/metrics", get(metrics))
}

/// `live` and `resources` are what LangBot's own runtime has there since 4.10.7.
async fn healthz(State(app): State<App>) -> Response {
    Json(json!({"status": "ok", "live": true, "resources": resources(&app)})).into_response()
}

fn resources(app: &App) -> Value {
    let (sessions, processes) = app.runtime.counts();
    json!({"sessions": sessions, "managed_processes": processes})
}

async fn readyz(State(app): State<App>) -> Response {
    let found = app.runtime.readiness().await;
    let error = found.error.as_deref();
    let (status, word, error) = if app.shutdown.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping", Some("the server is stopping"))
    } else if found.ready {
        (StatusCode::OK, "ready", None)
    } else if app.runtime.admission_policy().is_some() {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready", error)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no backend", error)
    };
    let body = json!({
        "status": word,
        "ready": status == StatusCode::OK,
        "mode": found.mode,
        "backend": found.backend,
        "checks": found.checks,
        "unsafe_soft_storage_limits": found.unsafe_soft_storage_limits,
        "error": error,
        "resources": resources(&app),
    });
    (status, Json(body)).into_response()
}

async fn metrics(State(app): State<App>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    app.runtime.refresh_metrics().await;
    ([(header::CONTENT_TYPE, kind)], app.runtime.metrics().render()).into_response()
}
