//! The suite that every backend passes: one fact about a box per case, named as the fact.
//!
//! A backend's integration binary (`harness = false`) implements [`Harness`] and turns [`cases`] into trials. The
//! box needs `sh`, coreutils and `setsid`; three cases on sockets need `python3`, for which `sh` has no
//! substitute. Nothing is skipped inside a case: what a case needs stands in [`Case::needs`], and
//! [`Case::missing`] says before it runs why it cannot.
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     let arguments = libtest_mimic::Arguments::from_args();
//!     let runtime = tokio::runtime::Runtime::new().expect("a runtime");
//!     let harness: Arc<dyn Harness> = Arc::new(runtime.block_on(NativeHarness::new()));
//!     let trials = conformance::cases().into_iter().map(|case| {
//!         let (harness, handle) = (Arc::clone(&harness), runtime.handle().clone());
//!         let missing = case.missing(&*harness);
//!         if let Some(why) = &missing {
//!             eprintln!("SKIP: {}: {why}", case.name);
//!         }
//!         Trial::test(case.name, move || handle.block_on((case.run)(harness)).map_err(Failed::from))
//!             .with_ignored_flag(missing.is_some())
//!     });
//!     let conclusion = libtest_mimic::run(&arguments, trials.collect());
//!     runtime.block_on(harness.backend().shutdown());
//!     conclusion.exit_code()
//! }
//! ```

#[macro_use]
mod bench;
mod background;
mod commands;
mod concurrency;
mod confinement;
mod control;
mod environment;
mod exits;
mod file_errors;
mod files;
mod flood;
mod keeping;
mod limits;
mod live;
mod mounts;
mod network;
mod pty;
mod session;
mod stdin;
mod streams;
mod timeouts;
mod usage;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use network::Internet;
use sandcrate_protocol::Control;

use crate::{Backend, Capabilities, SessionId};

/// What a case comes to; the text says what was expected and what was seen.
pub type Check = Result<(), String>;

pub type CaseFuture = Pin<Box<dyn Future<Output = Check> + Send>>;

/// What the suite needs to know about the backend under test and the machine it runs on.
pub trait Harness: Send + Sync {
    /// The same backend at every call.
    fn backend(&self) -> Arc<dyn Backend>;

    fn capabilities(&self) -> Capabilities {
        self.backend().capabilities()
    }

    /// False for a control that this machine is known not to give the backend.
    fn enforces(&self, _control: Control) -> bool {
        true
    }

    /// False for a backend whose writable roots go with their session, wherever its files are kept.
    fn keeps_root(&self) -> bool {
        true
    }

    /// False for a backend whose boxes can read in their mount table where on the host a directory lies.
    fn hides_host_paths(&self) -> bool {
        true
    }

    /// A fresh, empty directory of the host that may be mounted. The harness removes it in the end.
    fn host_dir(&self) -> Result<PathBuf, String>;

    /// How many processes on the host belong to the session, live or stopped; `None` where that is not known.
    /// After every case the answer must come down to zero.
    fn host_processes_of(&self, _session: &SessionId) -> Option<usize> {
        None
    }

    /// Servers to reach from boxes, in namespaces that no packet can leave. `None`: cases that would need them do
    /// not run.
    fn internet(&self) -> Option<Internet> {
        None
    }

    /// A session id that was never used before.
    fn fresh_session(&self) -> Result<SessionId, String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        SessionId::new(format!("conformance-{}-{count}", std::process::id()))
            .map_err(|error| error.to_string())
    }
}

/// What a case relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    Pty,
    Files,
    WritableRoot,
    HostMounts,
    HardDiskQuota,
    KeptStorage,
    KillOneCommand,
    HostNetwork,
    IsolatedNetwork,
    /// [`Harness::internet`].
    Internet,
    KeptRoot,
    HiddenHostPaths,
    /// The control is enforced in full for a session with the defaults.
    Enforced(Control),
}

impl Need {
    fn is_met(self, harness: &dyn Harness) -> bool {
        let able = harness.capabilities();
        match self {
            Self::Pty => able.pty,
            Self::Files => able.files,
            Self::WritableRoot => able.writable_root,
            Self::HostMounts => able.host_mounts,
            Self::HardDiskQuota => able.hard_disk_quota,
            Self::KeptStorage => able.kept_storage,
            Self::KillOneCommand => able.kill_one_command,
            Self::HostNetwork => able.host_network,
            Self::IsolatedNetwork => able.isolated_network,
            Self::Internet => harness.internet().is_some(),
            Self::KeptRoot => harness.keeps_root(),
            Self::HiddenHostPaths => harness.hides_host_paths(),
            Self::Enforced(control) => harness.enforces(control),
        }
    }
}

/// One fact, and how to check it. A case starts its own sessions and leaves none behind.
#[derive(Clone, Copy)]
pub struct Case {
    /// `family::fact`.
    pub name: &'static str,
    pub needs: &'static [Need],
    pub run: fn(Arc<dyn Harness>) -> CaseFuture,
}

impl Case {
    /// Why the case cannot run here; `None` when it can.
    pub fn missing(&self, harness: &dyn Harness) -> Option<String> {
        let need = self.needs.iter().find(|need| !need.is_met(harness))?;
        Some(format!("the backend does not give {need:?}"))
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// Every case, family by family.
pub fn cases() -> Vec<Case> {
    [
        session::cases(),
        commands::cases(),
        streams::cases(),
        exits::cases(),
        stdin::cases(),
        environment::cases(),
        timeouts::cases(),
        flood::cases(),
        background::cases(),
        control::cases(),
        keeping::cases(),
        limits::cases(),
        usage::cases(),
        files::cases(),
        file_errors::cases(),
        pty::cases(),
        mounts::cases(),
        confinement::cases(),
        concurrency::cases(),
        network::cases(),
    ]
    .concat()
}
