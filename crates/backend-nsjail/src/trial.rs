//! Whether the nsjail of this machine can be used: tried once, before any session needs it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::{BackendError, SessionId, SessionSpec};
use sandcrate_driver::lock;
use sandcrate_jail::Channel;
use sandcrate_jail::identity::HOST_BASE;
use sandcrate_jail::nsjail::{TRIAL, TrialOrder};
use sandcrate_protocol::Enforcement;

use crate::config::{Surroundings, write_command};
use crate::log::Log;
use crate::runner::spawn_role;
use crate::session::Tools;
use crate::start::{in_memory, plan};

/// An nsjail that has nothing to do takes milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
const REMEDY: &str = "it does not tell its version; 3.4, 3.6 and later work, built with kafel and execveat as its \
                      Makefile does: install one of these, or name it in the configuration";

/// What came of trying a program, until there is another at its path.
#[derive(Debug, Default)]
pub(crate) struct Trial(Mutex<Option<(Identity, Result<(), String>)>>);

/// Device, inode, size and time of the last change.
type Identity = (u64, u64, u64, i64, i64);

impl Trial {
    /// Why the nsjail cannot be used, if it cannot. Runs it when it is another than the last time.
    pub(crate) async fn check(&self, tools: Arc<Tools>, path: &Path) -> Result<(), String> {
        let identity = identity(&tools.nsjail).map_err(|error| format!("{}: {error}", path.display()))?;
        if let Some((known, outcome)) = &*lock(&self.0)
            && *known == identity
        {
            return outcome.clone();
        }
        let outcome = attempt(&tools).await;
        let outcome = outcome.map_err(|why| format!("{} cannot be used: {why} ({REMEDY})", path.display()));
        *lock(&self.0) = Some((identity, outcome.clone()));
        outcome
    }
}

fn identity(file: &File) -> io::Result<Identity> {
    let facts = file.metadata()?;
    Ok((facts.dev(), facts.ino(), facts.size(), facts.ctime(), facts.ctime_nsec()))
}

/// As a command's nsjail is run, but in no box: as an id that is nobody's on the host.
async fn attempt(tools: &Tools) -> Result<(), String> {
    let told = |error: BackendError| match std::error::Error::source(&error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    };
    let failed = |error: io::Error| error.to_string();
    let id = SessionId::new("trial").map_err(|error| error.to_string())?;
    let plan = plan(&SessionSpec::new(id), &[], &Enforcement::new()).map_err(told)?;
    let around = Surroundings::look().map_err(|error| error.to_string())?;
    let configuration = in_memory(&write_command(&plan, HOST_BASE + plan.user, &around)).map_err(failed)?;
    let (log, log_end) = Log::new().map_err(told)?;
    let (ours, theirs) = Channel::pair().map_err(failed)?;
    let (control, mut child) = spawn_role(tools, TRIAL).map_err(failed)?;
    let fds =
        [tools.nsjail.as_fd(), tools.program.as_fd(), configuration.as_fd(), log_end.as_fd(), theirs.as_fd()];
    control.send(&TrialOrder, &fds).await.map_err(failed)?;
    // The stage finds that nobody wants anything of it, and ends.
    drop((ours, theirs, log_end));
    match tokio::time::timeout(LIMIT, child.wait()).await {
        Err(_) => Err(format!("it did not end within {} s", LIMIT.as_secs())),
        Ok(Err(error)) => Err(failed(error)),
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(_)) => Err(told(log.failure("trying it"))),
    }
}
