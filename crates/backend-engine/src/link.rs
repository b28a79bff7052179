//! The place where a box's init connects.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, chmod, open};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use sandcrate_driver::AsyncChannel;
use sandcrate_jail::{Channel, guest};
use sandcrate_sys::reactor::watch;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket on which one guest is expected: the first that comes, which is before any command runs.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: AsyncFd<OwnedFd>,
}

impl Listener {
    pub(crate) fn bind(directory: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // An address holds 107 bytes; a state directory may have a longer path.
        let place = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let short = format!("/proc/self/fd/{}/{}", place.as_raw_fd(), guest::SOCKET);
        bind(&socket, &SocketAddrUnix::new(&short)?)?;
        // The guest may be another user of the host; the directory keeps everybody else out.
        chmod(&short, Mode::from_raw_mode(0o666))?;
        listen(&socket, 1)?;
        Ok(Self { socket: watch(socket, Interest::READABLE)? })
    }

    /// The guest's channel, and its process as this host knows it; 0 where it lies in another PID namespace.
    pub(crate) async fn accept(&self) -> io::Result<(AsyncChannel, i32)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = |socket: &OwnedFd| accept_with(socket, flags).map_err(io::Error::from);
        let socket = self.socket.async_io(Interest::READABLE, accept).await?;
        let peer = socket_peercred(socket.as_fd()).map_or(0, |peer| peer.pid.as_raw_pid());
        Ok((AsyncChannel::new(Channel::from(socket))?, peer))
    }
}
