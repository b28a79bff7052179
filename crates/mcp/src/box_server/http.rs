//! The server over Streamable HTTP: a session of boxes per MCP session, or one that the client names.
//!
//! Who may ask, from where and with which Host and Origin is decided before: requests that come here are admitted.
//! A box that was made for an MCP session goes with it, whether the client deletes the session or leaves it idle. A
//! named one is the client's to end, and ends as any session of the runtime does.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handler::Versions;
use super::{BoxServer, Boxes};
use crate::http_session::{SESSION_HEADER, status_of_end, with_end};

/// For calls under way when we are told to stop: those of a session that is closed have five seconds.
const LAST_CALLS: Duration = Duration::from_secs(8);

/// How much clients can make us hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// MCP sessions at a time.
    pub sessions: usize,
    /// After so long without a message an MCP session ends, and its box with it.
    pub idle: Duration,
    /// Of one message.
    pub body_bytes: usize,
}

/// There are as many MCP sessions as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {limit} MCP sessions already; end one, or wait until an idle one ends")]
pub struct NoPlace {
    pub limit: usize,
}

/// Answers the requests of all clients.
#[derive(Debug)]
pub struct HttpFace {
    boxes: Arc<dyn Boxes>,
    sessions: Arc<LocalSessionManager>,
    limits: HttpLimits,
    places: Arc<Semaphore>,
    /// Ends of boxes.
    tasks: TaskTracker,
    stop: CancellationToken,
    closes: Once,
}

impl HttpFace {
    /// `tasks` owns the ends of boxes; nothing is answered after `stop`.
    pub fn new(
        boxes: Arc<dyn Boxes>,
        limits: HttpLimits,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let mut config = SessionConfig::default();
        config.keep_alive = Some(limits.idle);
        let mut sessions = LocalSessionManager::default();
        sessions.session_config = config;
        let places = Arc::new(Semaphore::new(limits.sessions));
        Self { boxes, sessions: Arc::new(sessions), limits, places, tasks, stop, closes: Once::new() }
    }

    /// Answers one request. `named` is the session of boxes that the client asks for, when it opens an MCP session
    /// or speaks a revision of the protocol that has none.
    ///
    /// # Errors
    /// When it would open one more MCP session than there may be.
    pub async fn answer<B>(
        &self,
        request: Request<B>,
        named: Option<String>,
    ) -> Result<Response<impl Body<Data = Bytes, Error = Infallible> + Send + 'static>, NoPlace>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Display,
    {
        let opens = request.method() == Method::POST && !request.headers().contains_key(SESSION_HEADER);
        let place = match opens {
            true => Some(self.place()?),
            false => None,
        };
        self.closes.call_once(|| drop(self.tasks.spawn(self.close_at_the_end())));
        let boxes = Arc::clone(&self.boxes);
        let (session, versions) = match named {
            Some(name) => (name, Versions::All),
            None => (format!("mcp-{}", uuid::Uuid::now_v7().simple()), Versions::WithSessions),
        };
        let ends_with_client = versions == Versions::WithSessions;
        let lease = place.map(|place| {
            let end =
                ends_with_client.then(|| (session.clone(), Arc::clone(&self.boxes), self.tasks.clone()));
            Arc::new(Lease { end, _place: place })
        });
        let server =
            move || Ok(BoxServer::leased(Arc::clone(&boxes), session.clone(), versions, lease.clone()));
        // Host and Origin are checked by whoever admits.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_max_request_body_bytes(self.limits.body_bytes)
            .with_cancellation_token(self.stop.child_token());
        let service = StreamableHttpService::new(server, Arc::clone(&self.sessions), config);
        let end = status_of_end(request.method(), request.headers(), &self.sessions).await;
        Ok(with_end(service.handle(request).await, end))
    }

    /// Ends every MCP session when we are told to stop: the SDK's own tasks have no other owner.
    fn close_at_the_end(&self) -> impl Future<Output = ()> + Send + use<> {
        let (sessions, stop) = (Arc::clone(&self.sessions), self.stop.clone());
        let (places, all) =
            (Arc::clone(&self.places), u32::try_from(self.limits.sessions).unwrap_or(u32::MAX));
        async move {
            stop.cancelled().await;
            let open: Vec<_> = sessions.sessions.read().await.keys().cloned().collect();
            for session in open {
                if let Err(error) = sessions.close_session(&session).await {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "an MCP session was not closed"
                    );
                }
            }
            if tokio::time::timeout(LAST_CALLS, places.acquire_many(all)).await.is_err() {
                tracing::warn!("calls of MCP clients are left behind at the end");
            }
        }
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, NoPlace> {
        let full = |_| NoPlace { limit: self.limits.sessions };
        Arc::clone(&self.places).try_acquire_owned().map_err(full)
    }
}

/// A client's place among the MCP sessions, and its claim on a box. Both go when its server does.
#[derive(Debug)]
pub(super) struct Lease {
    end: Option<(String, Arc<dyn Boxes>, TaskTracker)>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((session, boxes, tasks)) = self.end.take() else { return };
        // Outside of a runtime there is no box either.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let ending = async move {
            if let Err(error) = boxes.reset(&session).await {
                tracing::warn!(session.id = session, error = %error, "the box of an MCP session was not ended");
            }
        };
        drop(tasks.spawn_on(ending, &runtime));
    }
}
