//! A live session: its container, what its commands go by, and its end.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandcrate_backend::{BackendError, RootAccess, SessionId, SessionInfo, SessionSpec};
use sandcrate_driver::{AsyncChannel, Bound, BoxLink, BoxNetwork, Fittings, LiveBox, PipeMaker, lock};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::storage::Storage;
use crate::usage::Cgroups;

/// From the end of the connection to a dead box.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What a session is while it lives.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) info: SessionInfo,
    pub(crate) root: RootAccess,
    link: BoxLink,
    cgroups: Cgroups,
    engine: Engine,
    container: String,
    /// The box's init, where it is a process of this host.
    pidfd: Option<AsyncFd<OwnedFd>>,
    storage: Mutex<Option<Storage>>,
}

/// What a session is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) info: SessionInfo,
    pub(crate) spec: SessionSpec,
    /// What the image sets for commands.
    pub(crate) image_env: Vec<(String, String)>,
    pub(crate) home: String,
    pub(crate) cgroups: Cgroups,
    pub(crate) accounted: Vec<Bound>,
    pub(crate) engine: Engine,
    pub(crate) container: String,
    pub(crate) control: AsyncChannel,
    pub(crate) pid: i32,
    pub(crate) storage: Option<Storage>,
    pub(crate) network: Option<Arc<BoxNetwork>>,
    /// The box's root on this host, where that is not root.
    pub(crate) host_user: Option<(u32, u32)>,
}

impl LiveBox for Session {
    fn link(&self) -> &BoxLink {
        &self.link
    }

    /// By its init, which has nobody to serve any more, and is killed where we may: it may hang.
    fn end(&self) {
        self.link.close();
        if let Some(pidfd) = &self.pidfd {
            let _ = pidfd_send_signal(pidfd.get_ref(), Signal::KILL);
        }
    }

    /// The command is ended whole without it; another request to the engine would take longer than that.
    async fn freeze(&self, _frozen: bool) {}

    fn ended_error(&self) -> BackendError {
        let why = format!("its container is gone; {} or somebody else has ended it", self.engine.kind);
        BackendError::SessionEnded { session: self.id().clone(), why }
    }
}

impl Session {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            info,
            spec,
            image_env,
            home,
            cgroups,
            accounted,
            engine,
            container,
            control,
            pid,
            storage,
            network,
            host_user,
        } = parts;
        let pidfd = Pid::from_raw(pid)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok())
            .and_then(|pidfd| sandcrate_sys::reactor::watch(pidfd, Interest::READABLE).ok());
        let fittings = Fittings {
            backend: engine.kind.name(),
            id: spec.id,
            // What the session sets comes after what the image brings along.
            env: [image_env, spec.env].concat(),
            workdir: spec.workdir,
            limits: spec.limits,
            home,
            pipes: PipeMaker::new(host_user),
            usage: cgroups.usage(),
            network,
            accounted,
        };
        Arc::new(Self {
            info,
            root: spec.root,
            link: BoxLink::new(control, fittings),
            cgroups,
            engine,
            container,
            pidfd,
            storage: Mutex::new(storage),
        })
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.link.fittings.id
    }

    pub(crate) fn network(&self) -> Option<&Arc<BoxNetwork>> {
        self.link.fittings.network.as_ref()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.link.is_open()
    }

    /// Ends the box and removes its files. Returns when everything is gone.
    pub(crate) async fn stop(&self) -> Result<(), BackendError> {
        match self.end_box().await? {
            Some(storage) => storage
                .remove()
                .await
                .map_err(|error| BackendError::failed("removing the session's files", error)),
            None => Ok(()),
        }
    }

    /// Ends the box and gives its files back.
    pub(crate) async fn end_box(&self) -> Result<Option<Storage>, BackendError> {
        self.end();
        if let Some(network) = self.network() {
            network.leave();
        }
        let removed = self.engine.remove(&self.container).await;
        if let Some(pidfd) = &self.pidfd {
            // Readable when the process has ended: pidfd_open(2).
            let gone = timeout(STOP_LIMIT, pidfd.readable()).await;
            if gone.is_err() {
                return Err(BackendError::Timeout { what: "ending the box".to_owned(), limit: STOP_LIMIT });
            }
        }
        match removed {
            Ok(_) => {}
            // The box is dead; what is left of it goes when the engine is back.
            Err(error) if self.pidfd.is_some() => {
                self.engine.leave(self.container.clone());
                tracing::warn!(
                    session.id = self.id().as_str(),
                    error = &error as &dyn std::error::Error,
                    "a dead container cannot be removed"
                );
            }
            Err(error) => return Err(error),
        }
        self.cgroups.clear(&self.container);
        Ok(lock(&self.storage).take())
    }
}
