//! What the manager's calls share: the table of servers, their tasks, and how one is started and ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cleaner::Cleaner;
use super::error::ManagerError;
use super::identity::Sharing;
use super::lifecycle::Keeper;
use super::machine::Status;
use super::server::{Running, Server};
use super::view::{ServerView, TestReport};
use crate::config::{McpConfig, Origin, Policy, Registration, Store};
use crate::{Identity, PhaseError, Start};

/// For a server's task to end after it was told to; then it is ended.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Each has a box of its own; more askers than this wait for nothing good.
const TESTS_AT_ONCE: usize = 8;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) start: Arc<dyn Start>,
    pub(super) cleaner: Arc<Cleaner>,
    pub(super) config: McpConfig,
    pub(super) policy: Policy,
    pub(super) store: Option<Store>,
    pub(super) servers: RwLock<BTreeMap<String, Arc<Server>>>,
    /// Held while the stored servers are written.
    pub(super) writing: Mutex<()>,
    /// One permit for each transient test.
    pub(super) tests: Arc<Semaphore>,
    pub(super) changes: watch::Sender<u64>,
    pub(super) tasks: TaskTracker,
    pub(super) end: CancellationToken,
}

impl Inner {
    pub(super) fn new(start: Arc<dyn Start>, config: McpConfig, store: Option<Store>) -> Self {
        Self {
            cleaner: Arc::new(Cleaner::new(start.clone())),
            start,
            policy: Policy::from(&config),
            config,
            store,
            servers: RwLock::default(),
            writing: Mutex::default(),
            tests: Arc::new(Semaphore::new(TESTS_AT_ONCE)),
            changes: watch::Sender::new(0),
            tasks: TaskTracker::new(),
            end: CancellationToken::new(),
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Server>> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn find(&self, name: &str) -> Result<Arc<Server>, ManagerError> {
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
        servers.get(name).cloned().ok_or_else(|| ManagerError::NotFound { name: name.to_owned() })
    }

    pub(super) fn put(&self, name: &str, registration: Registration, origin: Origin) -> Arc<Server> {
        let sharing = if self.config.shared_session { Sharing::Shared } else { Sharing::Own };
        let identity = Identity::of_server(name, &registration.settings, sharing);
        let server = Arc::new(Server::new(name, registration, origin, identity, self.changes.clone()));
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        servers.insert(name.to_owned(), server.clone());
        server
    }

    pub(super) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Starts the task of a server that has none; the number of the start.
    pub(super) fn launch(&self, server: &Arc<Server>) -> u64 {
        let number = server.begin();
        let stop = self.end.child_token();
        let keeper =
            Keeper { start: self.start.clone(), cleaner: self.cleaner.clone(), server: server.clone() };
        let task = self.tasks.spawn(keeper.run(stop.clone()));
        server.set_running(Running { stop, task });
        number
    }

    /// Ends a server's task and leaves it stopped.
    pub(super) async fn stop(&self, server: &Arc<Server>) {
        let _control = server.control.lock().await;
        self.end_task(server).await;
    }

    async fn end_task(&self, server: &Server) {
        if let Some(mut running) = server.running() {
            running.stop.cancel();
            if tokio::time::timeout(STOP_PATIENCE, &mut running.task).await.is_err() {
                running.task.abort();
                let _ = running.task.await;
                server.disconnect();
                self.cleaner.clean(&server.identity).await;
            }
        }
        if server.status() != Status::Disabled {
            server.stopped();
        }
    }

    pub(super) async fn restart(&self, server: &Arc<Server>) -> Result<u64, ManagerError> {
        if !server.registration.enabled {
            let problem = "is false: enable it to start it".to_owned();
            return Err(ManagerError::Invalid { field: "enabled".to_owned(), problem });
        }
        let _control = server.control.lock().await;
        if self.end.is_cancelled() {
            return Err(ManagerError::Ending);
        }
        self.end_task(server).await;
        Ok(self.launch(server))
    }

    pub(super) fn view(&self, server: &Server) -> ServerView {
        let registration = &server.registration;
        ServerView {
            name: server.name().to_owned(),
            origin: server.origin,
            enabled: registration.enabled,
            command: registration.command.clone(),
            args: registration.args.clone(),
            env: registration.env.keys().cloned().collect(),
            settings: crate::BoxSettings { env: BTreeMap::new(), ..registration.settings.clone() },
            allow: registration.allow.clone(),
            deny: registration.deny.clone(),
            call_timeout_sec: registration.call_timeout_sec.unwrap_or(self.config.call_timeout_sec),
            doing: server.doing(),
            notes: server.notes(),
            runtime_info: server.info(),
        }
    }

    pub(super) async fn log(&self, server: &Server) -> String {
        let log = match self.start.log(&server.identity).await {
            Ok(log) if !log.is_empty() => log,
            _ => server.last_log().unwrap_or_default(),
        };
        let notes = server.notes().into_iter().map(|note| format!("sandcrate: note: {note}\n"));
        notes.collect::<String>() + &log
    }

    pub(super) async fn report(&self, server: &Server, tested: Result<(), PhaseError>) -> TestReport {
        let mut runtime_info = server.info();
        let mut log = String::new();
        if let Err(error) = &tested {
            log = self.log(server).await;
            runtime_info.error_message.get_or_insert_with(|| error.message.clone());
            runtime_info.error_phase.get_or_insert(error.phase);
        }
        TestReport { ok: tested.is_ok(), runtime_info, log }
    }
}
