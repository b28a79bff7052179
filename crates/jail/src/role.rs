//! The hidden roles of the binary: the same program, started to be a launcher or the init of a container.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::channel::Channel;
use crate::message::{Filters, LauncherConfig};
use crate::plan::NetworkMode;
use crate::seccomp::{Instruction, Network, PolicyError, command_filter, init_filter};
use crate::{guest, launcher};

/// Not a word a person types; the whole argument list of a launcher.
const LAUNCHER: &str = "sandcrate-launcher";

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
        launcher::run();
    }
    if role.as_deref() == Some(OsStr::new(guest::PROGRAM)) {
        guest::run();
    }
}

/// Starts a launcher from `program` (a binary that calls [`dispatch_role`]) and returns our end of its channel.
pub fn spawn_launcher(program: &Path, config: &LauncherConfig) -> io::Result<(Child, Channel)> {
    use std::os::unix::process::CommandExt;
    let (ours, theirs) = Channel::pair()?;
    // The configuration waits in the socket.
    ours.send(config, &[])?;
    let child = Command::new(program)
        .arg0(LAUNCHER)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .current_dir("/")
        .spawn()?;
    Ok((child, ours))
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
    Ok(Filters { init: plain(init_filter(network)?), command: plain(command_filter(network)?) })
}
