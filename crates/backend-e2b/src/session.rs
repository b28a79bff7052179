//! A live session: its sandbox, what runs in it, what keeps it, and its end.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::{BackendError, SessionId, SessionInfo, SessionSpec};
use sandcrate_driver::lock;
use sandcrate_e2b_wire::connect::Code;
use sandcrate_e2b_wire::filesystem::{self, EntryResponse, PathRequest};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::control::Control;
use crate::envd::{Envd, Health};
use crate::http::EndpointError;
use crate::places::Places;
use crate::sync::Shares;

/// What a sandbox may live after its owner: it is told so again and again.
pub(crate) const LIFETIME_SECONDS: u64 = 300;
/// Three missed tellings end it.
const KEEP_INTERVAL: Duration = Duration::from_secs(75);
/// For what runs to hear that the session ends.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// What a session is while it lives.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) info: SessionInfo,
    /// Tells it from another of the same id.
    pub(crate) number: u64,
    pub(crate) spec: SessionSpec,
    pub(crate) sandbox: String,
    /// What the sandbox gives every command of itself.
    pub(crate) given: Arc<BTreeMap<String, String>>,
    pub(crate) control: Control,
    pub(crate) envd: Envd,
    pub(crate) places: Places,
    pub(crate) shares: Shares,
    /// Directories that were made, by their names in the sandbox.
    made: Mutex<HashSet<String>>,
    next_name: AtomicU64,
    /// Why it ended, once it has.
    ended: watch::Sender<Option<String>>,
    /// Commands, and the keeper.
    tasks: Mutex<JoinSet<()>>,
}

/// What a session is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) info: SessionInfo,
    pub(crate) number: u64,
    pub(crate) spec: SessionSpec,
    pub(crate) sandbox: String,
    pub(crate) given: Arc<BTreeMap<String, String>>,
    pub(crate) control: Control,
    pub(crate) envd: Envd,
    pub(crate) places: Places,
    pub(crate) shares: Shares,
}

impl Session {
    /// Its sandbox is kept from now on.
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts { info, number, spec, sandbox, given, control, envd, places, shares } = parts;
        let session = Arc::new(Self {
            info,
            number,
            spec,
            sandbox,
            given,
            control,
            envd,
            places,
            shares,
            made: Mutex::default(),
            next_name: AtomicU64::new(1),
            ended: watch::Sender::new(None),
            tasks: Mutex::default(),
        });
        let keeper = Arc::downgrade(&session);
        let mut ended = session.ended.subscribe();
        session.spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(KEEP_INTERVAL) => {}
                    _ = ended.wait_for(Option::is_some) => return,
                }
                let Some(session) = keeper.upgrade() else { return };
                session.keep().await;
            }
        });
        session
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.info.id
    }

    /// Once: a sandbox that is gone ends the session.
    async fn keep(&self) {
        match self.control.keep(&self.sandbox, LIFETIME_SECONDS).await {
            Ok(()) => {}
            Err(error) if error.status() == Some(404) => self.lose("its sandbox is gone"),
            Err(error) => tracing::warn!(
                session.id = self.id().as_str(),
                error = &error as &dyn std::error::Error,
                "a sandbox cannot be kept; it is tried again"
            ),
        }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// The box is no more: whoever waits for it is told.
    pub(crate) fn lose(&self, why: &str) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert_with(|| why.to_owned());
            first
        });
    }

    /// Returns when the session has ended.
    pub(crate) async fn end(&self) {
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
    }

    pub(crate) fn ended_error(&self) -> BackendError {
        let why = self.ended.borrow().clone().unwrap_or_else(|| "its sandbox is gone".to_owned());
        BackendError::SessionEnded { session: self.id().clone(), why }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// As far as can be known: an endpoint that does not answer says nothing of its sandboxes.
    pub(crate) async fn is_alive(&self) -> bool {
        if !self.is_open() {
            return false;
        }
        let (detail, health) = tokio::join!(self.control.detail(&self.sandbox), self.envd.health());
        let gone = detail.as_ref().is_err_and(|error| error.status() == Some(404));
        if gone || (health == Health::Gone && detail.is_ok()) {
            self.lose("its sandbox is gone; the endpoint or somebody else has ended it");
        }
        self.is_open()
    }

    /// What a failed request to the sandbox means: perhaps that there is none any more.
    pub(crate) async fn judge(&self, error: EndpointError) -> BackendError {
        let doubtful = !matches!(error, EndpointError::Refused { .. })
            || matches!(error.code(), Some(Code::Unavailable | Code::Unauthenticated));
        if doubtful && !self.is_alive().await {
            return self.ended_error();
        }
        error.unavailable()
    }

    /// A name that nothing else in the sandbox has.
    pub(crate) fn fresh_name(&self) -> String {
        format!("{}-{}", self.number, self.next_name.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a directory of the sandbox where it is not known to be.
    pub(crate) async fn make_directory(&self, path: &str) -> Result<(), EndpointError> {
        if lock(&self.made).contains(path) {
            return Ok(());
        }
        make_directory(&self.envd, path).await?;
        lock(&self.made).insert(path.to_owned());
        Ok(())
    }

    /// Somebody may have removed what was made.
    pub(crate) fn forget_directory(&self, path: &str) {
        lock(&self.made).remove(path);
    }

    /// Whether another box of the session can have this sandbox.
    pub(crate) fn fits(&self, spec: &SessionSpec) -> bool {
        let kept = |(key, _): &&(String, String)| spec.env.iter().any(|(other, _)| other == key);
        self.spec.image == spec.image
            && self.spec.network == spec.network
            && self.spec.env.iter().filter(|pair| !kept(pair)).count() == 0
    }

    /// Ends what runs here, and returns when it has heard so.
    pub(crate) async fn leave(&self, why: &str) {
        self.lose(why);
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        if timeout(STOP_LIMIT, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
            tasks.shutdown().await;
        }
    }

    /// Ends the sandbox.
    pub(crate) async fn stop(&self) -> Result<(), BackendError> {
        self.lose("it was stopped");
        let killed = self.control.kill(&self.sandbox).await;
        self.leave("it was stopped").await;
        killed.map(drop).map_err(EndpointError::unavailable)
    }
}

/// One that is there is as good as a new one.
pub(crate) async fn make_directory(envd: &Envd, path: &str) -> Result<(), EndpointError> {
    const WHAT: &str = "making a directory";
    let message = PathRequest { path: path.to_owned() };
    let made =
        envd.call::<_, EntryResponse>(WHAT, &format!("{}MakeDir", filesystem::SERVICE), &message).await;
    match made {
        Err(error) if error.code() == Some(Code::AlreadyExists) => Ok(()),
        made => made.map(drop),
    }
}
