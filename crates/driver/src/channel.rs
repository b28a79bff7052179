//! A channel of jail for tasks: the same messages, waited for without blocking a thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sandcrate_jail::Channel;
use sandcrate_jail::channel::{recv, send};
use sandcrate_sys::reactor::watch;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Our end of a channel. Sends are whole messages, so tasks may share it.
#[derive(Debug)]
pub struct AsyncChannel {
    socket: AsyncFd<OwnedFd>,
}

impl AsyncChannel {
    pub fn new(channel: Channel) -> io::Result<Self> {
        set_nonblocking(channel.as_fd())?;
        Ok(Self { socket: watch(channel.into(), Interest::READABLE)? })
    }

    /// Ends the connection for both sides.
    pub fn close(&self) {
        // One that has ended already is no matter.
        let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Both);
    }

    pub async fn send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        match send(self.socket.get_ref().as_fd(), message, fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent,
        }
        // Watched for only now, which is seldom: a peer that takes a message would wake us every time.
        let room = watch(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?;
        room.async_io(Interest::WRITABLE, |socket| send(socket.as_fd(), message, fds)).await
    }

    /// The next message; `None` when the peer is gone.
    pub async fn recv<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let next = || self.socket.async_io(Interest::READABLE, |socket| recv(socket.as_fd()));
        match next().await {
            // A peer that ends with something unread resets the connection, once; what it said before is still there.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => next().await,
            other => other,
        }
    }
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}
