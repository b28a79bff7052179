//! The hidden role of the binary: the same program, started to be a helper.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::helper::run_helper;

/// Not a word a person types; the whole argument list of a helper.
const HELPER: &str = "sandcrate-net";

/// Must be called first thing in `main`, before any thread exists: in a process that was started as a helper it
/// serves and returns the exit code, in any other it returns `None`.
///
/// `confine` gives up everything that the helper does not need. It runs before the first message is read; when
/// it fails, nothing is served, so a box that asks for this network does not start.
pub fn dispatch_role(confine: impl FnOnce() -> io::Result<()>) -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() != Some(OsStr::new(HELPER)) || arguments.next().is_some() {
        return None;
    }
    let served = rustix::io::dup(rustix::stdio::stdin()).map_err(io::Error::from).and_then(|control| {
        confine()?;
        run_helper(&control)
    });
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandcrate: network helper: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Starts a helper from `program` (a binary that calls [`dispatch_role`]) and returns our end of its channel.
/// Its sockets are in the network namespace of the caller.
pub fn spawn_helper(program: &Path) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let child = Command::new(program)
        .arg0(HELPER)
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .current_dir("/")
        .spawn()?;
    Ok((child, ours))
}
