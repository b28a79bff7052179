//! Many MCP servers in boxes: who they are, and that those who should run do.
//!
//! Each enabled server has a task (`lifecycle`) that drives its state machine (`machine`). Everything the tasks started
//! is cleaned up by [`Manager::shutdown`]; nothing of it depends on a server's good will.

mod call;
mod cleaner;
mod connection;
mod error;
#[cfg(test)]
pub(crate) mod fake;
mod identity;
mod info;
mod inner;
mod library;
mod lifecycle;
mod machine;
mod server;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rmcp::model::Tool;
use tokio::sync::watch;

pub use call::{CallOptions, Part, parts};
pub use connection::Live;
pub use error::{CallError, ManagerError};
pub use identity::SHARED_SESSION;
pub use info::{RuntimeInfo, ToolInfo};
pub use machine::Status;
pub use view::{ServerView, TestReport};

use crate::config::{McpConfig, Origin, Policy, Registration, Store, name_problem};
use crate::{Identity, Start};
use inner::{Inner, STOP_PATIENCE};
use server::Server;

/// Each has a box and a process; more than this is not one machine's work.
const MAX_SERVERS: usize = 256;

/// The servers. Clones share them.
#[derive(Debug, Clone)]
pub struct Manager {
    inner: Arc<Inner>,
}

impl Manager {
    /// The operator's servers and the stored ones; where both name one, the operator's counts. Nothing runs before
    /// [`Manager::begin`].
    pub fn new(
        start: Arc<dyn Start>,
        config: McpConfig,
        store: Option<Store>,
        stored: BTreeMap<String, Registration>,
    ) -> Self {
        let inner = Inner::new(start, config, store);
        for (name, registration) in stored {
            if inner.config.servers.contains_key(&name) {
                tracing::warn!(server = name, "a stored MCP server is hidden by one of the operator's file");
                continue;
            }
            inner.put(&name, registration, Origin::Stored);
        }
        for (name, registration) in inner.config.servers.clone() {
            inner.put(&name, registration, Origin::File);
        }
        Self { inner: Arc::new(inner) }
    }

    pub fn config(&self) -> &McpConfig {
        &self.inner.config
    }

    pub fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    /// Starts every enabled server, and what is owed to those that are gone.
    pub fn begin(&self) {
        let (cleaner, end) = (self.inner.cleaner.clone(), self.inner.end.clone());
        self.inner.tasks.spawn(async move { cleaner.run(end).await });
        for server in self.inner.all() {
            if server.registration.enabled {
                self.inner.launch(&server);
            }
        }
    }

    /// All servers by name.
    pub fn list(&self) -> Vec<ServerView> {
        self.inner.all().iter().map(|server| self.inner.view(server)).collect()
    }

    /// # Errors
    /// When there is none of that name.
    pub fn show(&self, name: &str) -> Result<ServerView, ManagerError> {
        Ok(self.inner.view(&*self.inner.find(name)?))
    }

    /// Adds a server, keeps it across restarts, and starts it if it is enabled. `replace`: also one that is there.
    ///
    /// # Errors
    /// When it is not acceptable, the name is taken, or it cannot be kept.
    pub async fn add(
        &self,
        name: &str,
        registration: Registration,
        replace: bool,
    ) -> Result<ServerView, ManagerError> {
        let invalid = |field: &str, problem| Err(ManagerError::Invalid { field: field.to_owned(), problem });
        if let Some(problem) = name_problem(name) {
            return invalid("name", problem);
        }
        if let Some((field, problem)) = registration.problem() {
            return invalid(&field, problem);
        }
        if self.inner.end.is_cancelled() {
            return Err(ManagerError::Ending);
        }
        let earlier = self.inner.find(name).ok();
        match &earlier {
            Some(server) if server.origin == Origin::File => {
                return Err(ManagerError::OperatorOwned { name: name.to_owned() });
            }
            Some(_) if !replace => return Err(ManagerError::Exists { name: name.to_owned() }),
            None if self.inner.all().len() >= MAX_SERVERS => {
                return Err(ManagerError::TooMany { most: MAX_SERVERS });
            }
            _ => {}
        }
        self.write(name.to_owned(), Some(registration.clone())).await?;
        if let Some(earlier) = earlier {
            self.inner.stop(&earlier).await;
        }
        let server = self.inner.put(name, registration, Origin::Stored);
        self.inner.changed();
        if server.registration.enabled {
            self.inner.launch(&server);
        }
        Ok(self.inner.view(&server))
    }

    /// Stops a server and forgets it.
    ///
    /// # Errors
    /// When there is none, it is the operator's, or that cannot be written.
    pub async fn remove(&self, name: &str) -> Result<(), ManagerError> {
        let server = self.inner.find(name)?;
        if server.origin == Origin::File {
            return Err(ManagerError::OperatorOwned { name: name.to_owned() });
        }
        self.write(name.to_owned(), None).await?;
        self.inner.stop(&server).await;
        let mut servers = self.inner.servers.write().unwrap_or_else(PoisonError::into_inner);
        if servers.get(name).is_some_and(|known| Arc::ptr_eq(known, &server)) {
            servers.remove(name);
        }
        drop(servers);
        self.inner.changed();
        Ok(())
    }

    /// Ends a server and starts it with everything fresh. Does not wait for it to be ready.
    ///
    /// # Errors
    /// When there is none, or it is disabled.
    pub async fn restart(&self, name: &str) -> Result<ServerView, ManagerError> {
        let server = self.inner.find(name)?;
        self.inner.restart(&server).await?;
        Ok(self.inner.view(&server))
    }

    /// Whether a server works: one that is connected lists its tools again, any other is started afresh and waited
    /// for.
    ///
    /// # Errors
    /// When there is none, or it is disabled.
    pub async fn test(&self, name: &str) -> Result<TestReport, ManagerError> {
        let server = self.inner.find(name)?;
        let tested = match server.live() {
            Some(live) => live.list_tools(server.startup_limit()).await.map(|tools| server.set_tools(tools)),
            None => {
                let start = self.inner.restart(&server).await?;
                server.outcome(start).await
            }
        };
        Ok(self.inner.report(&server, tested).await)
    }

    /// Whether a configuration works, in a box of its own that is gone afterwards.
    ///
    /// # Errors
    /// When it is not acceptable.
    pub async fn test_transient(&self, mut registration: Registration) -> Result<TestReport, ManagerError> {
        if let Some((field, problem)) = registration.problem() {
            return Err(ManagerError::Invalid { field, problem });
        }
        if self.inner.end.is_cancelled() {
            return Err(ManagerError::Ending);
        }
        let Ok(_permit) = self.inner.tests.clone().try_acquire_owned() else {
            return Err(ManagerError::TooManyTests);
        };
        registration.enabled = true;
        let quiet = watch::Sender::new(0);
        let server = Server::new("_", registration, Origin::Stored, Identity::of_test(), quiet);
        let server = Arc::new(server);
        let start = self.inner.launch(&server);
        // Whoever asked may leave: then this future is dropped, and the guard tells the task to clean up and end.
        let guard = StopOnDrop(server.clone());
        let tested = server.outcome(start).await;
        let report = self.inner.report(&server, tested).await;
        self.inner.stop(&server).await;
        drop(guard);
        Ok(report)
    }

    /// The last lines of a server's stderr.
    ///
    /// # Errors
    /// When there is no such server.
    pub async fn log(&self, name: &str) -> Result<String, ManagerError> {
        Ok(self.inner.log(&*self.inner.find(name)?).await)
    }

    /// Ticks when servers come, go or change what they offer.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    /// What connected servers offer and the lists allow, by server.
    pub fn offers(&self) -> Vec<(String, Vec<Tool>)> {
        let offer = |server: Arc<Server>| {
            server.live()?;
            let allowed = |tool: &&Tool| self.allows(&server, &tool.name).is_ok();
            let tools = server.tools().iter().filter(allowed).cloned().collect();
            Some((server.name().to_owned(), tools))
        };
        self.inner.all().into_iter().filter_map(offer).collect()
    }

    fn allows(&self, server: &Server, tool: &str) -> Result<(), CallError> {
        Ok(self.inner.policy.check(server.name(), &server.registration, tool)?)
    }

    /// A connected server that may be asked for this tool, its session, and the limit of a call.
    ///
    /// # Errors
    /// When it is not there, not connected, does not have the tool, or the lists forbid it.
    pub fn route(&self, name: &str, tool: &str) -> Result<Route, CallError> {
        let server = self.connected(name)?;
        self.allows(&server, tool)?;
        let route = self.route_to(&server)?;
        if !server.tools().iter().any(|known| known.name == tool) {
            return Err(CallError::ToolNotFound { name: tool.to_owned() });
        }
        Ok(route)
    }

    /// A connected server whose prompts and resources may be asked for.
    ///
    /// # Errors
    /// When it is not there, not connected, or the lists forbid it.
    pub fn library(&self, name: &str) -> Result<Route, CallError> {
        let server = self.connected(name)?;
        self.inner.policy.check_library(name)?;
        self.route_to(&server)
    }

    fn route_to(&self, server: &Server) -> Result<Route, CallError> {
        let live = server.live().ok_or_else(|| CallError::NotConnected { error: server.error() })?;
        let limit = server.registration.call_timeout_sec.unwrap_or(self.inner.config.call_timeout_sec);
        let session_id = server.identity.session_id.clone();
        Ok(Route { live, session_id, limit: Duration::from_secs(limit) })
    }

    /// Connected servers whose prompts and resources may be asked for.
    pub fn libraries(&self) -> Vec<(String, Arc<Live>)> {
        let allowed = |(name, _): &(String, Arc<Live>)| self.inner.policy.check_library(name).is_ok();
        self.live().into_iter().filter(allowed).collect()
    }

    fn connected(&self, name: &str) -> Result<Arc<Server>, CallError> {
        self.inner.find(name).map_err(|_| CallError::ServerNotFound { name: name.to_owned() })
    }

    pub fn has(&self, name: &str) -> bool {
        self.inner.find(name).is_ok()
    }

    /// Connected servers by name.
    pub fn live(&self) -> Vec<(String, Arc<Live>)> {
        let live = |server: Arc<Server>| server.live().map(|live| (server.name().to_owned(), live));
        self.inner.all().into_iter().filter_map(live).collect()
    }

    /// Ends every server: processes first, then what was made for them. What a task does not do in time is done here.
    pub async fn shutdown(&self) {
        self.inner.end.cancel();
        self.inner.tasks.close();
        let mut ends = tokio::task::JoinSet::new();
        for server in self.inner.all() {
            let inner = self.inner.clone();
            ends.spawn(async move { inner.stop(&server).await });
        }
        ends.join_all().await;
        if tokio::time::timeout(STOP_PATIENCE, self.inner.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.inner.tasks.len(), "tasks of MCP servers are left behind");
        }
        self.inner.cleaner.settle().await;
    }

    async fn write(&self, name: String, entry: Option<Registration>) -> Result<(), ManagerError> {
        let Some(store) = self.inner.store.clone() else { return Ok(()) };
        let inner = self.inner.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _guard = inner.writing.lock().unwrap_or_else(PoisonError::into_inner);
            let mut stored = store.load()?;
            match entry {
                Some(entry) => drop(stored.insert(name, entry)),
                None => drop(stored.remove(&name)),
            }
            store.save(&stored)
        });
        Ok(written.await.unwrap_or_else(|error| {
            let path = self.inner.store.as_ref().map(|store| store.path().to_owned()).unwrap_or_default();
            Err(crate::config::StoreError::Write { path, source: std::io::Error::other(error) })
        })?)
    }
}

/// Where a call goes.
#[derive(Debug)]
pub struct Route {
    pub live: Arc<Live>,
    /// Of its box.
    pub session_id: String,
    pub limit: Duration,
}

struct StopOnDrop(Arc<Server>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(running) = self.0.running() {
            running.stop.cancel();
        }
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
