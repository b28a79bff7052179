//! `filesystem.Filesystem`: watching directories, by asking or as a stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Request};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use sandcrate_e2b_wire::connect::{self, CallError, Code};
use sandcrate_e2b_wire::filesystem::{WatchDirResponse, WatchRequest, Watcher, WatcherEventsResponse};
use sandcrate_e2b_wire::process::Empty;
use tokio::time::Instant;

use super::super::error::Failed;
use super::Here;
use super::call::{self, Unary};
use super::paths::user_of;
use super::watchers::Watch;

/// Between two looks of a stream: soon enough for a person, seldom enough for a box that has other things to do.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) async fn create_watcher(
    Extension(here): Extension<Here>,
    headers: HeaderMap,
    Unary(request): Unary<WatchRequest>,
) -> Result<Json<Watcher>, Failed> {
    here.check_user(user_of(&headers).as_deref())?;
    let watch = Watch::begin(&here, &request).await?;
    Ok(Json(Watcher { watcher_id: here.sandbox.watchers.add(watch)? }))
}

pub(super) async fn get_watcher_events(
    Extension(here): Extension<Here>,
    Unary(Watcher { watcher_id }): Unary<Watcher>,
) -> Result<Json<WatcherEventsResponse>, Failed> {
    let watch = here.sandbox.watchers.get(&watcher_id)?;
    let events = watch.lock().await.look(&here).await?;
    Ok(Json(WatcherEventsResponse { events }))
}

pub(super) async fn remove_watcher(
    Extension(here): Extension<Here>,
    Unary(Watcher { watcher_id }): Unary<Watcher>,
) -> Result<Json<Empty>, Failed> {
    here.sandbox.watchers.remove(&watcher_id)?;
    Ok(Json(Empty {}))
}

/// Until the client leaves, the time is over, or the directory is gone.
pub(super) async fn watch_dir(Extension(here): Extension<Here>, request: Request) -> Response {
    let headers = request.headers().clone();
    let watching = async {
        here.check_user(user_of(&headers).as_deref())?;
        let request: WatchRequest = call::first_message(request).await?;
        let (keepalive, limit) = (call::keepalive(&headers), call::deadline(&headers)?);
        let watch = Watch::begin(&here, &request).await?;
        let deadline = limit.map(|limit| Instant::now() + limit);
        let start = WatchDirResponse::Start(Empty {});
        let due = VecDeque::from([start]);
        Ok(Watching {
            here: here.clone(),
            watch,
            due,
            keepalive,
            deadline,
            told: Instant::now(),
            ended: false,
        })
    };
    match watching.await {
        Ok(watching) => watching.into_response(),
        Err(failed) => Failed::into_stream(failed),
    }
}

struct Watching {
    here: Here,
    watch: Watch,
    due: VecDeque<WatchDirResponse>,
    keepalive: Duration,
    deadline: Option<Instant>,
    /// When something was sent last.
    told: Instant,
    ended: bool,
}

impl Watching {
    fn into_response(self) -> Response {
        let frames = futures_util::stream::unfold(self, |mut watching| async move {
            let frame = watching.next().await?;
            watching.told = Instant::now();
            Some((Ok::<_, Infallible>(frame), watching))
        });
        ([(header::CONTENT_TYPE, connect::STREAM)], Body::from_stream(frames)).into_response()
    }

    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        loop {
            if let Some(event) = self.due.pop_front() {
                return connect::message(&event).ok();
            }
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Some(
                    self.end(CallError::new(Code::DeadlineExceeded, "the time for this watch is over")),
                );
            }
            if self.told.elapsed() >= self.keepalive {
                return connect::message(&WatchDirResponse::Keepalive(Empty {})).ok();
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.here.app.shutdown.cancelled() => {
                    return Some(self.end(CallError::new(Code::Unavailable, "the server is stopping")));
                }
            }
            // A look would wake a box that was put to sleep.
            if !self.here.sandbox.is_running() {
                let message = format!("the sandbox {} was not found: it is paused", self.here.id());
                return Some(self.end(CallError::new(Code::Unavailable, message)));
            }
            match self.watch.look(&self.here).await {
                Ok(events) => self
                    .due
                    .extend(events.into_iter().map(|event| WatchDirResponse::Filesystem(Box::new(event)))),
                Err(Failed(error)) => return Some(self.end(error)),
            }
        }
    }

    fn end(&mut self, error: CallError) -> Bytes {
        self.ended = true;
        connect::end(Some(error))
    }
}
