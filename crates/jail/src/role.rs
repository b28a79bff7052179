//! The hidden roles of the binary: the same program, started to be a launcher or the init of a container.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};
use sandcrate_sys::process::{SingleThreaded, exit_now};

use crate::channel::Channel;
use crate::message::{Filters, LauncherConfig};
use crate::plan::NetworkMode;
use crate::seccomp::{Instruction, Network, PolicyError, box_filters};
use crate::{guest, launcher};

/// Not a word a person types; the whole argument list of a launcher.
const LAUNCHER: &str = "sandcrate-launcher";

/// Of the C library: what is freed is free, and not kept for the next in a cache that no box ever uses again.
const ALLOCATOR: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");

/// Must be the first call of `main`, before any thread exists: in a process that was started in a role it does not
/// return.
pub fn dispatch_role() {
    crate::nsjail::dispatch();
    let mut arguments = std::env::args_os();
    let role = arguments.next();
    if arguments.next().is_some() {
        return;
    }
    if role.as_deref() == Some(OsStr::new(LAUNCHER)) {
        // Standard input is the channel to the daemon.
        match (SingleThreaded::prove(), sandcrate_sys::fd::take_stdin()) {
            (Ok(proof), Ok(control)) => launcher::run(proof, control.into()),
            _ => exit_now(1),
        }
    }
    if role.as_deref() == Some(OsStr::new(guest::PROGRAM)) {
        guest::run();
    }
}

/// A launcher that waits for its configuration. Dropping it ends it.
#[derive(Debug)]
pub struct NewLauncher {
    /// Its end of the file is the launcher's.
    channel: Option<Channel>,
    process: LauncherProcess,
}

/// The process of a launcher, to be waited for when its channel has been closed.
#[derive(Debug, Clone, Copy)]
pub struct LauncherProcess(Pid);

impl NewLauncher {
    /// From `program`, a binary that calls [`dispatch_role`].
    pub fn spawn(program: &Path) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let child = Command::new(program)
            .arg0(LAUNCHER)
            .env_clear()
            .env(ALLOCATOR.0, ALLOCATOR.1)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .current_dir("/")
            .spawn()?;
        Self::new(child.id().cast_signed(), ours)
    }

    fn new(pid: i32, channel: Channel) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { channel: Some(channel), process: LauncherProcess(pid) })
    }

    /// Tells it what it needs to know; it answers on the channel when it is up.
    pub fn configure(mut self, config: &LauncherConfig) -> io::Result<(LauncherProcess, Channel)> {
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        channel.send(config, &[])?;
        let channel = self.channel.take().ok_or(io::ErrorKind::NotConnected)?;
        Ok((self.process, channel))
    }
}

impl Drop for NewLauncher {
    fn drop(&mut self) {
        // Nobody else has the process yet, and at the end of the channel it ends.
        if self.channel.take().is_some() {
            self.process.wait();
        }
    }
}

impl LauncherProcess {
    /// Waits until it has ended; once.
    pub fn wait(self) {
        while waitpid(Some(self.0), WaitOptions::empty()).is_err_and(|error| error == Errno::INTR) {}
    }
}

/// The filters of boxes with this network, for [`LauncherRequest::Policy`](crate::message::LauncherRequest::Policy).
pub fn compile_policy(network: NetworkMode) -> Result<Filters, PolicyError> {
    let network = match network {
        NetworkMode::Off => Network::Off,
        NetworkMode::Isolated | NetworkMode::Host => Network::On,
    };
    let plain = |program: Vec<Instruction>| {
        program.iter().map(|step| (step.code, step.jt, step.jf, step.k)).collect()
    };
    let filters = box_filters(network)?;
    Ok(Filters { init: plain(filters.init), command: plain(filters.command) })
}
