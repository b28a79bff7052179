//! The host's end of a connection: a non-blocking socket, and what is known of it.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use smoltcp::socket::tcp;

use super::sockets;

/// A socket whose events are told once (edge-triggered), so what they said is kept here.
pub(super) struct HostEnd {
    pub(super) socket: OwnedFd,
    readable: bool,
    writable: bool,
    /// The peer has sent everything.
    pub(super) ended: bool,
    /// The peer knows that the box has sent everything.
    told_end: bool,
}

/// The socket is of no use any more.
#[derive(Debug)]
pub(super) struct Broken;

impl HostEnd {
    /// A socket of which nothing is known yet.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, readable: false, writable: false, ended: false, told_end: false }
    }

    pub(super) fn note(&mut self, flags: EventFlags) {
        self.readable |=
            flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.writable |= flags.intersects(EventFlags::OUT | EventFlags::ERR);
    }

    /// Moves what the box has sent; the box's window is the back-pressure.
    pub(super) fn take_from(&mut self, inside: &mut tcp::Socket<'_>, budget: usize) -> Result<usize, Broken> {
        let mut moved = 0;
        while self.writable && moved < budget && inside.can_recv() {
            let sent = inside.recv(|bytes| {
                let bytes = &bytes[..bytes.len().min(budget - moved)];
                match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                    Ok(count) => (count, Ok(count)),
                    Err(error) => (0, Err(error)),
                }
            });
            match sent {
                Ok(Ok(count)) => moved += count,
                Ok(Err(Errno::AGAIN)) => self.writable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(_)) => return Err(Broken),
                Err(_) => break,
            }
        }
        Ok(moved)
    }

    /// Moves what the peer has sent, straight into the box's send buffer.
    pub(super) fn give_to(&mut self, inside: &mut tcp::Socket<'_>, budget: usize) -> Result<usize, Broken> {
        let mut moved = 0;
        while self.readable && !self.ended && moved < budget && inside.can_send() {
            let read = inside.send(|space| {
                let length = space.len().min(budget - moved);
                match rustix::io::read(&self.socket, &mut space[..length]) {
                    Ok(count) => (count, Ok(count)),
                    Err(error) => (0, Err(error)),
                }
            });
            match read {
                Ok(Ok(0)) => {
                    self.ended = true;
                    inside.close();
                }
                Ok(Ok(count)) => moved += count,
                Ok(Err(Errno::AGAIN)) => self.readable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(_)) => return Err(Broken),
                Err(_) => break,
            }
        }
        Ok(moved)
    }

    /// Tells the peer that nothing more comes, once.
    pub(super) fn tell_end(&mut self) {
        if !std::mem::replace(&mut self.told_end, true) {
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
    }

    /// Closing will then tell the peer that something went wrong.
    pub(super) fn reset_on_close(&self) {
        sockets::reset_on_close(&self.socket);
    }
}
