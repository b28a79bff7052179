//! The E2B backend: sessions by their ids.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Client;
use sandcrate_backend::{
    Backend, BackendError, Capabilities, ExecRequest, Execution, FileReply, FileRequest, Isolation, Network,
    NetworkReport, SessionId, SessionInfo, SessionSpec, SweepReport,
};
use sandcrate_driver::instance::{self, Dead, Instance, remove_if_there};
use sandcrate_driver::{lock, on_disk};
use tokio::sync::{OnceCell, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::config::{Access, E2bConfig, E2bSettings};
use crate::control::Control;
use crate::http::EndpointError;
use crate::network::isolated;
use crate::session::Session;
use crate::start::{OWNER, STATE, Workshop, check};
use crate::tls::{self, Authorities};
use crate::{NAME, exec, files};

/// For an endpoint to say that it is there.
const GREET_LIMIT: Duration = Duration::from_secs(5);
/// How long its word holds: it is asked for every other second, and an endpoint is far away.
const GREETED: Duration = Duration::from_secs(60);
const REFUSED: Duration = Duration::from_secs(10);
/// For what is under way when all is shut down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);
/// The name of this state directory, whoever uses it.
const STATE_FILE: &str = "id";

/// Boxes in sandboxes of another machine.
#[derive(Debug)]
pub struct E2bBackend {
    shared: Arc<Shared>,
    /// Starts and ends that outlive their caller, and the sweep.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    /// With whether it believes anybody.
    http: OnceCell<(Client, bool)>,
    authorities: Authorities,
    config: E2bConfig,
    /// What a client's configuration says, where the environment and the operator are silent.
    client: Mutex<E2bSettings>,
    state_id: String,
    part: PathBuf,
    sessions: Mutex<HashMap<SessionId, Slot>>,
    next_box: AtomicU64,
    greeting: Mutex<Option<Greeting>>,
    /// Last: its directory goes when everything else is gone.
    instance: Instance,
}

#[derive(Debug)]
enum Slot {
    Starting {
        number: u64,
        /// Whether somebody waits for it.
        wanted: bool,
    },
    Live(Arc<Session>),
}

/// What an endpoint said last.
#[derive(Debug, Clone)]
struct Greeting {
    access: Access,
    until: Instant,
    outcome: Result<(), String>,
}

impl Shared {
    fn access(&self) -> Result<Access, BackendError> {
        let client = lock(&self.client).clone();
        let settings = self.config.environment.clone().or(self.config.operator.clone()).or(client);
        let unavailable = |why| BackendError::Unavailable { backend: NAME, why };
        Access::resolve(&settings).map_err(unavailable)
    }

    /// Made when it is first needed: a machine's certificates take a moment to read.
    async fn http(&self, access: &Access) -> Result<Client, BackendError> {
        let make = || async {
            let named = self.authorities.clone();
            let made = tokio::task::spawn_blocking(move || tls::client(named)).await;
            made.unwrap_or_else(|error| Err(error.to_string()))
        };
        let unavailable = |why| BackendError::Unavailable { backend: NAME, why };
        match self.http.get_or_try_init(make).await.map_err(unavailable)? {
            (_, false) if access.needs_tls() => Err(unavailable(
                "this machine knows no authority to vouch for the endpoint; install ca-certificates, or name a file in \
                 SSL_CERT_FILE or e2b_backend.ca_file"
                    .to_owned(),
            )),
            (client, _) => Ok(client.clone()),
        }
    }

    async fn workshop(&self) -> Result<Workshop, BackendError> {
        let access = self.access()?;
        Ok(Workshop {
            control: Control { http: self.http(&access).await?, access: Arc::new(access) },
            state_id: self.state_id.clone(),
            owner: self.instance.name.clone(),
            state_dir: self.config.state_dir.clone(),
            default_image: self.config.default_image.clone(),
        })
    }

    fn session(&self, id: &SessionId) -> Result<Arc<Session>, BackendError> {
        match lock(&self.sessions).get(id) {
            Some(Slot::Live(session)) => Ok(Arc::clone(session)),
            _ => Err(BackendError::SessionNotFound { session: id.clone() }),
        }
    }

    /// Takes an id for a box that is to be made.
    fn reserve(&self, sessions: &mut HashMap<SessionId, Slot>, id: &SessionId) -> (u64, Option<Slot>) {
        let number = self.next_box.fetch_add(1, Ordering::Relaxed);
        (number, sessions.insert(id.clone(), Slot::Starting { number, wanted: true }))
    }

    /// Puts a box in the place that was kept for it, or ends it where nobody wants it any more.
    async fn occupy(
        &self,
        id: &SessionId,
        number: u64,
        made: Result<Arc<Session>, BackendError>,
    ) -> Result<SessionInfo, BackendError> {
        {
            let mut sessions = lock(&self.sessions);
            let wanted = match sessions.get(id) {
                Some(Slot::Starting { number: kept, wanted }) if *kept == number => *wanted,
                _ => false,
            };
            match &made {
                Ok(session) if wanted => {
                    sessions.insert(id.clone(), Slot::Live(Arc::clone(session)));
                    return Ok(session.info.clone());
                }
                _ => {}
            }
        }
        let outcome = match made {
            Ok(session) => {
                end(&session).await;
                Err(session.ended_error())
            }
            Err(error) => Err(error),
        };
        // The id is free when nothing of it is left.
        let mut sessions = lock(&self.sessions);
        if matches!(sessions.get(id), Some(Slot::Starting { number: kept, .. }) if *kept == number) {
            sessions.remove(id);
        }
        outcome
    }

    /// Nobody waits for a start any more.
    fn abandon(&self, id: &SessionId, number: u64) -> Option<Arc<Session>> {
        let mut sessions = lock(&self.sessions);
        match sessions.get_mut(id) {
            Some(Slot::Starting { number: kept, wanted }) if *kept == number => {
                *wanted = false;
                None
            }
            Some(Slot::Live(session)) if session.number == number => {
                let session = Arc::clone(session);
                sessions.remove(id);
                Some(session)
            }
            _ => None,
        }
    }

    /// Ends sandboxes of dead instances of this state directory, and clears what they left here.
    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        let part = self.part.clone();
        let dead = on_disk(move || instance::dead(&part)).await;
        let dead = dead.map_err(|error| BackendError::failed("sweeping the state directory", error))?;
        let mut report = SweepReport::default();
        // Without a key there is nobody to ask: whoever has one later tells them by their owner, who is not there.
        if self.access().is_ok() {
            // The report has no sandboxes; what one is to its kernel is at least one cgroup.
            report.cgroups = self.end_sandboxes_of(&dead).await?;
        }
        for dead in dead {
            report.instances += 1;
            match on_disk(move || dead.clear()).await {
                Ok(there) => report.directories += u32::from(there),
                Err(error) => tracing::warn!(%error, "a dead instance's directory cannot be removed"),
            }
        }
        Ok(report)
    }

    /// How many there were.
    async fn end_sandboxes_of(&self, dead: &[Dead]) -> Result<u32, BackendError> {
        let control = self.workshop().await?.control;
        let ours = BTreeMap::from([(STATE.to_owned(), self.state_id.clone())]);
        let mut ended = 0;
        for sandbox in control.list(&ours).await.map_err(EndpointError::unavailable)? {
            let owner = sandbox.metadata.get(OWNER).map_or("", String::as_str);
            let is_dead =
                dead.iter().any(|dead| dead.name == owner) || !instance::is_alive(&self.part, owner);
            if owner != self.instance.name && is_dead {
                control.kill(&sandbox.sandbox_id).await.map_err(EndpointError::unavailable)?;
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// Whether the endpoint is there, as it said not long ago.
    async fn greet(&self) -> Result<(), String> {
        let workshop = self.workshop().await.map_err(|error| match error {
            BackendError::Unavailable { why, .. } => why,
            other => other.to_string(),
        })?;
        let access = Access::clone(&workshop.control.access);
        if let Some(greeting) = &*lock(&self.greeting)
            && greeting.access == access
            && greeting.until > Instant::now()
        {
            return greeting.outcome.clone();
        }
        let outcome = workshop.control.greet(GREET_LIMIT).await.map_err(|error| match error.unavailable() {
            BackendError::Unavailable { why, .. } => why,
            other => other.to_string(),
        });
        let until = Instant::now() + if outcome.is_ok() { GREETED } else { REFUSED };
        *lock(&self.greeting) = Some(Greeting { access, until, outcome: outcome.clone() });
        outcome
    }
}

/// Ends a session that nobody asks about.
async fn end(session: &Session) {
    if let Err(error) = session.stop().await {
        tracing::warn!(
            session.id = session.id().as_str(),
            error = &error as &dyn std::error::Error,
            "a session did not end cleanly"
        );
    }
}

/// Ends what was started for a caller who has gone.
struct Waiting<'a> {
    backend: &'a E2bBackend,
    id: Option<SessionId>,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        if let Some(session) = self.backend.shared.abandon(&id, self.number) {
            self.backend.spawn(async move { end(&session).await });
        }
    }
}

impl E2bBackend {
    /// Takes a place in the state directory. Whether there is an endpoint is told by [`Backend::probe`]: a client's
    /// configuration may bring it later.
    pub async fn open(config: E2bConfig) -> Result<Self, BackendError> {
        let part = config.state_dir.join(NAME);
        let authorities = config.ca_file.as_deref().map(tls::read).transpose();
        let authorities = authorities
            .map_err(|problem| BackendError::invalid("e2b_backend.ca_file", problem))?
            .unwrap_or_default();
        let place = part.clone();
        let made = on_disk(move || {
            let instance = Instance::create(&place)?;
            Ok((state_id(&place)?, instance))
        });
        let (state_id, instance) = made.await.map_err(|error| {
            BackendError::failed(format!("taking a place in the state directory {}", part.display()), error)
        })?;
        let shared = Arc::new(Shared {
            http: OnceCell::new(),
            authorities,
            config,
            client: Mutex::default(),
            state_id,
            part,
            sessions: Mutex::default(),
            next_box: AtomicU64::new(1),
            greeting: Mutex::default(),
            instance,
        });
        let backend = Self { shared, tasks: Mutex::default() };
        backend.sweep_in_background();
        Ok(backend)
    }

    /// What dead instances left ends by itself, too, a little later.
    fn sweep_in_background(&self) {
        let shared = Arc::clone(&self.shared);
        self.spawn(async move {
            if let Err(error) = shared.sweep().await {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "what dead instances left cannot be looked for"
                );
            }
        });
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Makes a box in a task of its own: an endpoint that was asked for a sandbox makes it, whether or not somebody
    /// still waits, and then it has to be ended again.
    async fn launch(
        &self,
        id: SessionId,
        number: u64,
        making: impl Future<Output = Result<Arc<Session>, BackendError>> + Send + 'static,
    ) -> Result<SessionInfo, BackendError> {
        let mut waiting = Waiting { backend: self, id: Some(id.clone()), number };
        let shared = Arc::clone(&self.shared);
        let (sender, outcome) = oneshot::channel();
        self.spawn(async move {
            let made = making.await;
            drop(sender.send(shared.occupy(&id, number, made).await));
        });
        let outcome = outcome.await;
        waiting.id = None;
        let gone = || BackendError::Unavailable { backend: NAME, why: "it is being shut down".to_owned() };
        outcome.unwrap_or_else(|_| Err(gone()))
    }

    fn unsupported(what: &str, hint: &str) -> BackendError {
        BackendError::Unsupported { backend: NAME, what: what.to_owned(), hint: hint.to_owned() }
    }
}

/// Made once for a state directory, whoever comes first.
fn state_id(part: &Path) -> std::io::Result<String> {
    let path = part.join(STATE_FILE);
    loop {
        match std::fs::read_to_string(&path) {
            Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Whole under its name, or not there.
        let mut file = tempfile(part)?;
        std::io::Write::write_all(&mut file.1, instance::random_name()?.as_bytes())?;
        let linked = std::fs::hard_link(&file.0, &path);
        std::fs::remove_file(&file.0)?;
        match linked {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
}

fn tempfile(part: &Path) -> std::io::Result<(PathBuf, std::fs::File)> {
    let path = part.join(format!("{STATE_FILE}.{}", instance::random_name()?));
    let file = std::fs::File::options().write(true).create_new(true).open(&path)?;
    Ok((path, file))
}

#[async_trait]
impl Backend for E2bBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pty: true,
            files: true,
            // Whether it can be written is the template's to say; nothing is refused for it.
            writable_root: true,
            host_network: false,
            isolated_network: true,
            host_mounts: true,
            hard_disk_quota: false,
            kept_storage: true,
            kill_one_command: true,
        }
    }

    fn configure(&self, section: &BTreeMap<String, String>) {
        let settings = E2bSettings::from_section(section);
        *lock(&self.shared.client) = settings;
    }

    async fn probe(&self) -> Result<(), BackendError> {
        self.shared.greet().await.map_err(|why| BackendError::Unavailable { backend: NAME, why })
    }

    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        check(&spec)?;
        let id = spec.id.clone();
        let workshop = self.shared.workshop().await?;
        let number = {
            let mut sessions = lock(&self.shared.sessions);
            if sessions.contains_key(&id) {
                return Err(BackendError::SessionExists { session: id });
            }
            self.shared.reserve(&mut sessions, &id).0
        };
        self.launch(id, number, async move { workshop.make(spec, number).await }).await
    }

    async fn exec(&self, session: &SessionId, request: ExecRequest) -> Result<Execution, BackendError> {
        exec::exec(&self.shared.session(session)?, request).await
    }

    async fn files(&self, session: &SessionId, request: FileRequest) -> Result<FileReply, BackendError> {
        let session = self.shared.session(session)?;
        files::perform(&session, request).await
    }

    async fn set_network(&self, session: &SessionId, isolation: Isolation) -> Result<(), BackendError> {
        let session = self.shared.session(session)?;
        if !matches!(session.spec.network, Network::Isolated(_)) {
            return Err(Self::unsupported("a network policy", "the session was made without a network"));
        }
        let traffic = isolated(&isolation)?;
        let changed = session.control.set_network(&session.sandbox, &traffic).await;
        changed.map_err(EndpointError::unavailable)
    }

    async fn network(&self, session: &SessionId) -> Result<NetworkReport, BackendError> {
        self.shared.session(session)?;
        Err(Self::unsupported("a network report", "E2B does not tell what a sandbox reached and was refused"))
    }

    async fn forward(
        &self,
        session: &SessionId,
        _port: u16,
        _stream: std::os::fd::OwnedFd,
    ) -> Result<(), BackendError> {
        self.shared.session(session)?;
        Err(Self::unsupported(
            "a port",
            "E2B leads HTTP to a sandbox's ports by names of its own, and no other streams",
        ))
    }

    async fn is_alive(&self, session: &SessionId) -> bool {
        match self.shared.session(session) {
            Ok(session) => session.is_alive().await,
            Err(_) => false,
        }
    }

    async fn stop(&self, session: &SessionId) -> Result<(), BackendError> {
        let live = {
            let mut sessions = lock(&self.shared.sessions);
            match sessions.get(session) {
                Some(Slot::Live(_)) => sessions.remove(session),
                _ => None,
            }
        };
        match live {
            Some(Slot::Live(session)) => session.stop().await,
            _ => Ok(()),
        }
    }

    async fn restart(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        check(&spec)?;
        let id = spec.id.clone();
        let workshop = self.shared.workshop().await?;
        let old = self.shared.session(&id)?;
        if !old.fits(&spec) {
            return Err(Self::unsupported(
                "making a box anew with another image or network, or without a variable that it had",
                "a sandbox keeps what it was made with; end the session and start another",
            ));
        }
        // What can be known to fail fails while the old box still runs.
        let shares = workshop.open_shares(&spec).await?;
        if !old.is_alive().await {
            return Err(old.ended_error());
        }
        let number = {
            let mut sessions = lock(&self.shared.sessions);
            match sessions.get(&id) {
                Some(Slot::Live(live)) if Arc::ptr_eq(live, &old) => {}
                _ => return Err(BackendError::SessionNotFound { session: id }),
            }
            self.shared.reserve(&mut sessions, &id).0
        };
        let making = async move {
            let made = workshop.remake(&old, spec, shares, number).await;
            if made.is_err() {
                // Nothing holds the sandbox any more.
                end(&old).await;
            }
            made
        };
        self.launch(id, number, making).await
    }

    async fn remove_storage(&self, directory: &Path) -> Result<(), BackendError> {
        let directory = directory.to_owned();
        let removed = on_disk(move || remove_if_there(&directory)).await;
        removed.map_err(|error| BackendError::failed("removing kept storage", error))
    }

    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        self.shared.sweep().await
    }

    async fn shutdown(&self) {
        let sessions: Vec<Arc<Session>> = {
            let mut sessions = lock(&self.shared.sessions);
            // What is being started sees that nobody waits.
            for slot in sessions.values_mut() {
                if let Slot::Starting { wanted, .. } = slot {
                    *wanted = false;
                }
            }
            let live = sessions.extract_if(|_, slot| matches!(slot, Slot::Live(_)));
            live.filter_map(|(_, slot)| if let Slot::Live(session) = slot { Some(session) } else { None })
                .collect()
        };
        let mut ends = JoinSet::new();
        for session in sessions {
            ends.spawn(async move { end(&session).await });
        }
        ends.join_all().await;
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        if timeout(SHUTDOWN_LIMIT, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
            tracing::warn!(tasks = tasks.len(), "what did not end in time is given up");
            tasks.shutdown().await;
        }
    }
}
