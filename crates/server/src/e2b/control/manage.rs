//! One sandbox: looked at, connected to, given time, paused, resumed, ended.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandcrate_e2b_wire::control::{
    Connect, DEFAULT_TIMEOUT_SEC, Pause, Refresh, Sandbox as Handle, SandboxDetail, Timeout,
};

use super::super::error::Refused;
use super::super::life::Found;
use super::super::sandbox::Sandbox;
use super::create::time;
use super::show::{detail, handle};
use super::{Body, to_the_end};
use crate::App;

pub(super) async fn get(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<SandboxDetail>, Refused> {
    let sandbox = app.e2b.expect(&app.runtime, &id)?;
    let session = app.runtime.session(&id).map_err(|_| Refused::no_sandbox(&id))?;
    Ok(Json(detail(&app, &sandbox, &session)))
}

pub(super) async fn kill(State(app): State<App>, Path(id): Path<String>) -> Result<StatusCode, Refused> {
    let sandbox = app.e2b.expect(&app.runtime, &id)?;
    let work = {
        let app = app.clone();
        async move { app.e2b.kill(&app.runtime, &sandbox).await }
    };
    to_the_end(&app, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn found(app: &App, sandbox: &Arc<Sandbox>, time: Duration) -> Result<Found, Refused> {
    let (app_too, sandbox) = (app.clone(), Arc::clone(sandbox));
    to_the_end(app, async move { app_too.e2b.connect(&app_too.runtime, &sandbox, time).await }).await
}

/// Finds a running one, which gets at least so much time, or resumes a paused one.
pub(super) async fn connect(
    State(app): State<App>,
    Path(id): Path<String>,
    Body(wanted): Body<Connect>,
) -> Result<(StatusCode, Json<Handle>), Refused> {
    let sandbox = app.e2b.expect(&app.runtime, &id)?;
    let time = time(&app.config.e2b, wanted.timeout.unwrap_or(DEFAULT_TIMEOUT_SEC), "timeout")?;
    let status = match found(&app, &sandbox, time).await? {
        Found::Running => StatusCode::OK,
        Found::Resumed => StatusCode::CREATED,
    };
    Ok((status, Json(handle(&app, &sandbox))))
}

/// The older way, which takes a paused one alone.
pub(super) async fn resume(
    State(app): State<App>,
    Path(id): Path<String>,
    Body(wanted): Body<Connect>,
) -> Result<(StatusCode, Json<Handle>), Refused> {
    let sandbox = app.e2b.expect(&app.runtime, &id)?;
    if wanted.auto_pause.is_some() {
        return Err(Refused::unsupported(
            "autoPause: what happens at a sandbox's end is said when it is made",
        ));
    }
    let time = time(&app.config.e2b, wanted.timeout.unwrap_or(DEFAULT_TIMEOUT_SEC), "timeout")?;
    if found(&app, &sandbox, time).await? == Found::Running {
        return Err(Refused::new(StatusCode::CONFLICT, format!("sandbox {id} is running already")));
    }
    Ok((StatusCode::CREATED, Json(handle(&app, &sandbox))))
}

pub(super) async fn pause(
    State(app): State<App>,
    Path(id): Path<String>,
    Body(wanted): Body<Pause>,
) -> Result<StatusCode, Refused> {
    let sandbox = app.e2b.expect(&app.runtime, &id)?;
    if wanted.memory == Some(true) {
        return Err(Refused::unsupported(
            "memory: a pause keeps the files of a sandbox here, and not its memory; pause with mode `filesystem`, or \
             leave the mode out",
        ));
    }
    let work = {
        let app = app.clone();
        async move { app.e2b.pause(&app.runtime, &sandbox).await }
    };
    to_the_end(&app, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn set_timeout(
    State(app): State<App>,
    Path(id): Path<String>,
    Body(wanted): Body<Timeout>,
) -> Result<StatusCode, Refused> {
    let sandbox = app.e2b.expect(&app.runtime, &id)?;
    app.e2b.set_time(&sandbox, time(&app.config.e2b, wanted.timeout, "timeout")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// At least so much time from now on.
pub(super) async fn refresh(
    State(app): State<App>,
    Path(id): Path<String>,
    Body(wanted): Body<Refresh>,
) -> Result<StatusCode, Refused> {
    let sandbox = app.e2b.expect(&app.runtime, &id)?;
    let time = time(&app.config.e2b, wanted.duration.unwrap_or(DEFAULT_TIMEOUT_SEC), "duration")?;
    if !sandbox.is_running() {
        return Err(Refused::no_sandbox(&id));
    }
    found(&app, &sandbox, time).await?;
    Ok(StatusCode::NO_CONTENT)
}
