//! The MCP client of one started server: handshake, tools, calls, and what it says unasked.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    ClientCapabilities, ClientConfig, Implementation, ProgressNotificationParam, ProgressToken,
    ServerPeerInfo, Tool,
};
use rmcp::service::{NotificationContext, Peer, RoleClient, RunningService};
use rmcp::{ClientHandler, ServiceExt};
use tokio::sync::{Notify, mpsc};

use super::library::pages;
use crate::{Phase, PhaseError, Started};

/// Progress of calls that are just being registered; see [`ProgressRoutes::early`].
const MAX_EARLY: usize = 64;
/// Progress is for people: what a slow reader has not taken yet may be dropped.
pub(crate) const PROGRESS_QUEUE: usize = 64;

/// A server that answers.
#[derive(Debug)]
pub struct Live {
    pub peer: Peer<RoleClient>,
    pub(crate) progress: Arc<ProgressRoutes>,
    library: Arc<Library>,
}

impl Live {
    /// What it said of itself.
    pub fn info(&self) -> Option<Arc<ServerPeerInfo>> {
        self.peer.peer_info()
    }

    /// A number that changes with its prompts and resources.
    pub(crate) fn library_version(&self) -> u64 {
        self.library.version.load(Ordering::Relaxed)
    }
}

/// Hears that prompts or resources are others now.
#[derive(Debug, Default)]
pub(crate) struct Library {
    version: AtomicU64,
    pub(crate) changed: Notify,
}

impl Library {
    fn change(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// Where the progress of each call goes.
#[derive(Debug, Default)]
pub(crate) struct ProgressRoutes(Mutex<Routes>);

#[derive(Debug, Default)]
struct Routes {
    known: HashMap<ProgressToken, mpsc::Sender<ProgressNotificationParam>>,
    /// A token is known once its request is on the way, so that a quick server's first words may come before it.
    early: VecDeque<ProgressNotificationParam>,
}

impl ProgressRoutes {
    /// Gives the progress with this token to the receiver until the route is dropped.
    pub(crate) fn route(
        self: &Arc<Self>,
        token: ProgressToken,
    ) -> (ProgressRoute, mpsc::Receiver<ProgressNotificationParam>) {
        let (sender, receiver) = mpsc::channel(PROGRESS_QUEUE);
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, others) = routes.early.drain(..).partition(|early| early.progress_token == token);
        routes.early = others;
        let ours: VecDeque<_> = ours;
        for early in ours {
            let _ = sender.try_send(early);
        }
        routes.known.insert(token.clone(), sender);
        drop(routes);
        (ProgressRoute { routes: Arc::clone(self), token }, receiver)
    }

    fn deliver(&self, params: ProgressNotificationParam) {
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = routes.known.get(&params.progress_token) {
            let _ = sender.try_send(params);
            return;
        }
        if routes.early.len() >= MAX_EARLY {
            routes.early.pop_front();
        }
        routes.early.push_back(params);
    }
}

/// Ends with the call.
#[derive(Debug)]
pub(crate) struct ProgressRoute {
    routes: Arc<ProgressRoutes>,
    token: ProgressToken,
}

impl Drop for ProgressRoute {
    fn drop(&mut self) {
        let mut routes = self.routes.0.lock().unwrap_or_else(PoisonError::into_inner);
        routes.known.remove(&self.token);
    }
}

/// Hears what the server says unasked.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    tools_changed: Arc<Notify>,
    library: Arc<Library>,
    progress: Arc<ProgressRoutes>,
}

impl ClientHandler for Listener {
    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.deliver(params);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools_changed.notify_one();
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.library.change();
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.library.change();
    }

    fn get_info(&self) -> ClientConfig {
        let ours = Implementation::new("sandcrate", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), ours)
    }
}

/// The connection of one attempt. Dropping it detaches.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) service: RunningService<RoleClient, Listener>,
    pub(crate) tools_changed: Arc<Notify>,
    pub(crate) library: Arc<Library>,
    pub(crate) live: Arc<Live>,
}

impl Connection {
    /// The handshake.
    pub(crate) async fn open(started: Started, limit: Duration) -> Result<Self, PhaseError> {
        let tools_changed = Arc::new(Notify::new());
        let progress = Arc::new(ProgressRoutes::default());
        let library = Arc::new(Library::default());
        let listener = Listener {
            tools_changed: tools_changed.clone(),
            library: library.clone(),
            progress: progress.clone(),
        };
        let serving = listener.serve((started.reader, started.writer));
        let service = match tokio::time::timeout(limit, serving).await {
            Ok(served) => served.map_err(|error| failed(&error.to_string()))?,
            Err(_) => {
                return Err(failed(&format!(
                    "initialize was not answered within {} seconds",
                    limit.as_secs()
                )));
            }
        };
        let live = Arc::new(Live { peer: service.peer().clone(), progress, library: library.clone() });
        Ok(Self { service, tools_changed, library, live })
    }
}

impl Live {
    /// All tools, page by page.
    pub(crate) async fn list_tools(&self, limit: Duration) -> Result<Vec<Tool>, PhaseError> {
        if self.info().is_some_and(|info| info.capabilities.tools.is_none()) {
            return Ok(Vec::new());
        }
        let listing = pages("tools", limit, |page| async move {
            let listed = self.peer.list_tools(Some(page)).await?;
            Ok((listed.tools, listed.next_cursor))
        });
        listing.await.map_err(|message| failed(&message))
    }
}

fn failed(message: &str) -> PhaseError {
    PhaseError::new(Phase::McpInit, message)
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;

    use super::*;

    fn token(number: i64) -> ProgressToken {
        ProgressToken(NumberOrString::Number(number))
    }

    #[test]
    fn progress_that_comes_before_its_route_is_not_lost() {
        let routes = Arc::new(ProgressRoutes::default());
        routes.deliver(ProgressNotificationParam::new(token(1), 0.5));
        routes.deliver(ProgressNotificationParam::new(token(2), 0.1));
        let (route, mut receiver) = routes.route(token(1));
        routes.deliver(ProgressNotificationParam::new(token(1), 1.0));
        assert_eq!(receiver.try_recv().unwrap().progress, 0.5);
        assert_eq!(receiver.try_recv().unwrap().progress, 1.0);
        assert!(receiver.try_recv().is_err(), "another call's progress is not ours");
        drop(route);
        assert!(routes.0.lock().unwrap().known.is_empty());
    }

    #[test]
    fn progress_that_nobody_wants_is_bounded() {
        let routes = Arc::new(ProgressRoutes::default());
        for number in 0..1000 {
            routes.deliver(ProgressNotificationParam::new(token(number), 0.0));
        }
        assert_eq!(routes.0.lock().unwrap().early.len(), MAX_EARLY);
    }
}
