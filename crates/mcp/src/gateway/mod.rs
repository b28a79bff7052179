//! All managed servers behind one address of Streamable HTTP, and each behind one of its own.
//!
//! The transport is the SDK's; here are the bounds around it, and who is told when what is offered has changed. Who may
//! ask at all is the business of whoever routes requests here.

mod denials;
mod handler;
mod library;
mod scope;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use rmcp::service::{Peer, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use denials::{DENIALS_KEY, Refusals};
pub use scope::Scope;

use crate::http_session::{SESSION_HEADER, status_of_end, with_end};
use crate::manager::Manager;
use denials::Told;
use handler::{Desk, Fingerprint};

/// Several changes at once, as when a machine starts, are told as one.
const SETTLE: Duration = Duration::from_millis(50);
/// For a client to take a notice; one that does not is not waited for.
const NOTICE: Duration = Duration::from_secs(5);
/// From this version of the protocol on requests carry no session.
const WITHOUT_SESSIONS: &str = "2026-07-28";
/// A message of a client: arguments of a tool, as large as a file that one writes.
const MAX_BODY_BYTES: usize = 16 << 20;

/// The gateway. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) manager: Manager,
    pub(crate) refusals: Arc<dyn Refusals>,
    pub(crate) told: Told,
    /// By what they stand for; as many as there are servers, and one.
    places: Mutex<HashMap<Scope, Place>>,
    clients: Mutex<Vec<Client>>,
    end: CancellationToken,
}

#[derive(Clone)]
struct Place {
    service: StreamableHttpService<Desk, LocalSessionManager>,
    sessions: Arc<LocalSessionManager>,
    end: CancellationToken,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

/// One that wants to hear of changes.
#[derive(Debug)]
struct Client {
    scope: Scope,
    peer: Peer<RoleServer>,
    /// What it was offered when it last heard of it.
    offered: Fingerprint,
}

impl Gateway {
    /// `end` closes every session.
    pub fn new(manager: Manager, refusals: Arc<dyn Refusals>, end: CancellationToken) -> Self {
        let shared = Shared {
            manager,
            refusals,
            told: Told::default(),
            places: Mutex::default(),
            clients: Mutex::default(),
            end,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Answers one request to an address of the gateway. A server that is not there is `None`.
    pub async fn handle(&self, scope: Scope, request: Request) -> Option<Response> {
        if let Scope::One(name) = &scope
            && !self.shared.manager.has(name)
        {
            return None;
        }
        let most = self.shared.manager.config().max_sessions;
        if opens_session(request.method(), request.headers()) && self.sessions().await >= most {
            return Some(full(most));
        }
        let place = self.place(&scope);
        let end = status_of_end(request.method(), request.headers(), &place.sessions).await;
        Some(with_end(place.service.handle(request).await, end).map(Body::new))
    }

    /// Sessions of clients, idle ones included.
    pub async fn sessions(&self) -> usize {
        let places: Vec<_> = self.shared.places().values().map(|place| place.sessions.clone()).collect();
        let mut count = 0;
        for sessions in places {
            count += sessions.sessions.read().await.len();
        }
        count
    }

    fn place(&self, scope: &Scope) -> Place {
        let shared = &self.shared;
        let mut places = shared.places();
        let make = || {
            let mut sessions = LocalSessionManager::default();
            let idle = Duration::from_secs(shared.manager.config().session_idle_sec);
            sessions.session_config.keep_alive = Some(idle);
            let sessions = Arc::new(sessions);
            let end = shared.end.child_token();
            // Whose Host and Origin are acceptable was decided before a request comes here.
            let mut config = StreamableHttpServerConfig::default().disable_allowed_hosts();
            config.cancellation_token = end.clone();
            config.max_request_body_bytes = MAX_BODY_BYTES;
            let desk = Desk { shared: shared.clone(), scope: scope.clone() };
            let service = StreamableHttpService::new(move || Ok(desk.clone()), sessions.clone(), config);
            Place { service, sessions, end }
        };
        places.entry(scope.clone()).or_insert_with(make).clone()
    }

    /// Closes every session; the end of the gateway.
    pub async fn close(&self) {
        self.shared.end.cancel();
        let places: Vec<_> = self.shared.places().drain().map(|(_, place)| place).collect();
        for place in places {
            place.close().await;
        }
    }

    /// Tells clients when what they are offered has changed, until `end`.
    pub async fn run(&self) {
        let mut changes = self.shared.manager.changes();
        loop {
            tokio::select! {
                () = self.shared.end.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
            }
            tokio::time::sleep(SETTLE).await;
            changes.mark_unchanged();
            self.shared.close_places_of_removed_servers().await;
            self.shared.tell_clients().await;
        }
    }
}

impl Place {
    /// Its streams end, and so do the tasks that the transport has for its sessions.
    async fn close(self) {
        self.end.cancel();
        let sessions: Vec<_> = self.sessions.sessions.read().await.values().cloned().collect();
        for session in sessions {
            let _ = tokio::time::timeout(NOTICE, session.close()).await;
        }
    }
}

impl Shared {
    fn places(&self) -> std::sync::MutexGuard<'_, HashMap<Scope, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, Vec<Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this client hears of changes. Bounded: those that left are forgotten first.
    pub(crate) fn welcome(&self, scope: Scope, peer: Peer<RoleServer>) {
        let offered = self.fingerprint(&scope);
        let mut clients = self.clients();
        clients.retain(|client| !client.peer.is_transport_closed());
        clients.push(Client { scope, peer, offered });
    }

    async fn tell_clients(&self) {
        let mut due = Vec::new();
        {
            let mut clients = self.clients();
            clients.retain(|client| !client.peer.is_transport_closed());
            for client in clients.iter_mut() {
                let now = self.fingerprint(&client.scope);
                if now != client.offered {
                    due.push((client.peer.clone(), client.offered, now));
                    client.offered = now;
                }
            }
        }
        let notices = due.into_iter().map(|(peer, before, now)| async move {
            let all = async {
                if before.tools != now.tools {
                    let _ = peer.notify_tool_list_changed().await;
                }
                if before.library != now.library {
                    let _ = peer.notify_prompt_list_changed().await;
                    let _ = peer.notify_resource_list_changed().await;
                }
            };
            // Who does not listen finds out at the next list.
            let _ = tokio::time::timeout(NOTICE, all).await;
        });
        futures_util::future::join_all(notices).await;
    }

    async fn close_places_of_removed_servers(&self) {
        let gone = |scope: &Scope| matches!(scope, Scope::One(name) if !self.manager.has(name));
        let removed: Vec<_> =
            self.places().extract_if(|scope, _| gone(scope)).map(|(_, place)| place).collect();
        for place in removed {
            place.close().await;
        }
    }
}

/// Whether a request makes the transport keep something for a new client.
fn opens_session(method: &Method, headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
    method == Method::POST
        && text(SESSION_HEADER).is_none()
        && text("mcp-protocol-version").is_none_or(|version| version < WITHOUT_SESSIONS)
}

fn full(most: usize) -> Response {
    let message = format!("{most} MCP clients are connected, the most that are served (mcp.max_sessions)");
    let body = json!({"error": {"code": "capacity_exceeded", "message": message}}).to_string();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let json = axum::http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(axum::http::header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
#[path = "gateway_tests.rs"]
mod tests;
