//! The hidden role of the binary: the same program, started to be a helper.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::channel;
use crate::helper::run_helper;
use crate::message::HelperReply;

/// Not a word a person types; the whole argument list of a helper.
const HELPER: &str = "sandcrate-net";

/// Must be called first thing in `main`, before any thread exists: in a process that was started as a helper it
/// serves and returns the exit code, in any other it returns `None`.
///
/// `confine` gives up everything that the helper does not need but its channel, and says what holds it. It runs
/// before the first message is read; when it fails, nothing is served, so a box that asks for this network does
/// not start.
pub fn dispatch_role(confine: impl FnOnce(BorrowedFd<'_>) -> io::Result<String>) -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() != Some(OsStr::new(HELPER)) || arguments.next().is_some() {
        return None;
    }
    let Ok(control) = sandcrate_sys::fd::take_stdin().map(Arc::new) else { return Some(ExitCode::FAILURE) };
    // It has no log of its own: what goes wrong is told to the daemon.
    let reporter = Arc::clone(&control);
    std::panic::set_hook(Box::new(move |panic| tell(reporter.as_fd(), &panic.to_string())));
    let served = confine(control.as_fd()).and_then(|confined| {
        channel::send(control.as_fd(), &HelperReply::Ready { confined }, &[])?;
        run_helper(&control)
    });
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(control.as_fd(), &error.to_string());
            ExitCode::FAILURE
        }
    })
}

fn tell(control: BorrowedFd<'_>, reason: &str) {
    // A daemon that does not read learns of the end by the end.
    let _ = channel::send(control, &HelperReply::Unusable { reason: reason.to_owned() }, &[]);
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
