//! The helper as a process: started, spoken to, ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandcrate_net::channel;
use sandcrate_net::message::{HelperReply, HelperRequest};
use sandcrate_sys::reactor::watch;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::channel::set_nonblocking;

/// From the start to a confined helper.
const START_LIMIT: Duration = Duration::from_secs(10);
/// A helper that takes nothing for so long is stuck.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// A helper that serves. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Helper {
    socket: AsyncFd<OwnedFd>,
    process: OwnedFd,
    /// What it says holds it.
    pub(super) confined: String,
}

impl Helper {
    /// Starts one and waits until it is confined.
    pub(super) async fn start(program: &Path) -> Result<Self, String> {
        let (process, socket) = spawn(program).await.map_err(|error| format!("starting it: {error}"))?;
        let set_up = set_nonblocking(socket.as_fd())
            .and_then(|()| watch(socket, Interest::READABLE | Interest::WRITABLE));
        let socket = set_up.map_err(|error| format!("watching it: {error}"))?;
        let mut helper = Self { socket, process, confined: String::new() };
        match tokio::time::timeout(START_LIMIT, helper.recv()).await {
            Ok(Ok(Some(HelperReply::Ready { confined }))) => {
                helper.confined = confined;
                Ok(helper)
            }
            Ok(Ok(Some(HelperReply::Unusable { reason }))) => Err(reason),
            Ok(Ok(Some(_))) => Err("it spoke before it was ready".to_owned()),
            Ok(Ok(None)) => Err("it ended at once".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it was not ready within {} s", START_LIMIT.as_secs())),
        }
    }

    pub(super) async fn send(&self, request: &HelperRequest, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent =
            self.socket.async_io(Interest::WRITABLE, |socket| channel::send(socket.as_fd(), request, fds));
        tokio::time::timeout(SEND_LIMIT, sent).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// The next message; `None` when the helper is gone. Cancelling it loses nothing.
    pub(super) async fn recv(&self) -> io::Result<Option<HelperReply>> {
        let received =
            self.socket.async_io(Interest::READABLE, |socket| channel::recv(socket.as_fd())).await?;
        Ok(received.map(|(reply, _)| reply))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It would see the end of its channel; one that is stuck would not.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }
}

/// Starts the process from a thread that lives as long as it does: the helper is tied to the thread that made it,
/// and somebody has to take leave of it.
async fn spawn(program: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    let program = program.to_owned();
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new().name("network-helper".to_owned()).stack_size(128 << 10).spawn(move || {
        let started = sandcrate_net::spawn_helper(&program).and_then(|(child, socket)| {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| io::Error::other("a process without an id"))?;
            Ok((child, pidfd_open(pid, PidfdFlags::empty())?, socket))
        });
        match started {
            Ok((mut child, process, socket)) => {
                // Nobody waits any more: both ends close, and with them the helper.
                let _ = tell.send(Ok((process, socket)));
                let _ = child.wait();
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        }
    })?;
    told.await.unwrap_or_else(|_| Err(io::Error::other("the thread that starts it has ended")))
}
