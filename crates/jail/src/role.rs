//! The hidden role of the binary: the same program, started to be a launcher.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::channel::Channel;
use crate::launcher;
use crate::message::LauncherConfig;

/// Not a word a person types; the whole argument list of a launcher.
const LAUNCHER: &str = "sandcrate-launcher";

/// Must be the first call of `main`, before any thread exists: in a process that was started as a launcher it
/// does not return.
pub fn dispatch_role() {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() == Some(OsStr::new(LAUNCHER)) && arguments.next().is_none() {
        launcher::run();
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
