//! Messages with file descriptors between the daemon, the launcher and a box's init.
//!
//! One SEQPACKET socket per pair of roles; a message is one packet, so it arrives whole or not at all, and the
//! end of the peer is an end of file. What is too long for a packet (a command with thousands of variables)
//! travels in a memfd beside it.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandcrate_sys::packet;
use serde::{Serialize, de::DeserializeOwned};

/// What fits comfortably into one packet; the socket's default buffer holds several.
const INLINE_BYTES: usize = 8 << 10;
/// Argument lists and listings of directories beyond this are refused before they get here.
const SPILLED_BYTES: u64 = 64 << 20;
const INLINE: u8 = 0;
const SPILLED: u8 = 1;

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.socket
    }
}

impl Channel {
    /// Two connected ends.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: a }, Self { socket: b }))
    }

    pub fn send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.as_fd(), message, fds)
    }

    /// `None` when the peer is gone.
    pub fn recv<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        recv(self.as_fd())
    }
}

/// Sends one message over a channel's socket.
#[inline(never)]
pub fn send<M: Serialize>(socket: BorrowedFd<'_>, message: &M, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if body.len() < INLINE_BYTES {
        return packet::send(socket, &[IoSlice::new(&[INLINE]), IoSlice::new(&body)], fds);
    }
    if body.len() as u64 > SPILLED_BYTES {
        return Err(invalid("a message that is longer than 64 MiB"));
    }
    let mut spill = File::from(rustix::fs::memfd_create("message", MemfdFlags::CLOEXEC)?);
    spill.write_all(&body)?;
    let mut all = fds.to_vec();
    all.push(spill.as_fd());
    packet::send(socket, &[IoSlice::new(&[SPILLED])], &all)
}

/// Receives one message from a channel's socket; `None` when the peer is gone.
///
/// Not inlined: its buffer would be part of the caller's frame, and callers are the loops in which boxes wait.
#[inline(never)]
pub fn recv<M: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    // On the stack: every message of a warm command passes here.
    let mut buffer = [0; INLINE_BYTES + 1];
    let (length, mut fds) = packet::recv(socket, &mut buffer)?;
    let Some((kind, inline)) = buffer[..length].split_first() else { return Ok(None) };
    let message = if *kind == SPILLED {
        let spill = File::from(fds.pop().ok_or_else(|| invalid("a spilled message without its body"))?);
        postcard::from_bytes(&read_from_start(&spill)?)
    } else {
        postcard::from_bytes(inline)
    };
    Ok(Some((message.map_err(|_| invalid("a message that does not decode"))?, fds)))
}

fn read_from_start(mut spill: &File) -> io::Result<Vec<u8>> {
    use std::io::Seek;
    // A peer in a container is no more trusted than its image: only a file can be read without waiting.
    if !spill.metadata()?.is_file() {
        return Err(invalid("a spilled message whose body is no file"));
    }
    spill.rewind()?;
    let mut body = Vec::new();
    spill.take(SPILLED_BYTES).read_to_end(&mut body)?;
    Ok(body)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (a, b) = Channel::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        a.send(&("hello".to_owned(), 7_u32), &[file.as_fd(), file.as_fd()]).unwrap();
        let ((text, number), fds): ((String, u32), _) = b.recv().unwrap().unwrap();
        assert_eq!((text.as_str(), number, fds.len()), ("hello", 7, 2));
    }

    #[test]
    fn a_message_longer_than_a_packet_is_spilled() {
        let (a, b) = Channel::pair().unwrap();
        let long = vec![7_u8; 5 << 20];
        let file = tempfile::tempfile().unwrap();
        a.send(&long, &[file.as_fd()]).unwrap();
        let (received, fds): (Vec<u8>, _) = b.recv().unwrap().unwrap();
        assert!(received == long, "5 MiB arrive unchanged");
        assert_eq!(fds.len(), 1, "the body's own descriptor is not handed on");
    }

    #[test]
    fn a_message_that_would_be_cut_is_not_sent() {
        let (a, b) = Channel::pair().unwrap();
        let long = vec![7_u8; SPILLED_BYTES as usize];
        assert_eq!(a.send(&long, &[]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        a.send(&7_u32, &[]).unwrap();
        assert_eq!(b.recv::<u32>().unwrap().unwrap().0, 7, "and the channel is as good as before");
    }

    /// An event descriptor can be rewound, and a read of it waits for ever.
    #[test]
    fn a_body_that_would_never_come_is_an_error() {
        let (a, b) = Channel::pair().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        packet::send(a.as_fd(), &[IoSlice::new(&[SPILLED])], &[event.as_fd()]).unwrap();
        assert_eq!(b.recv::<u32>().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_end_of_the_peer_is_the_end_of_the_stream() {
        let (a, b) = Channel::pair().unwrap();
        drop(a);
        assert!(b.recv::<u32>().unwrap().is_none());
    }

    #[test]
    fn a_packet_that_is_not_a_message_is_an_error() {
        let (a, b) = Channel::pair().unwrap();
        rustix::net::send(&a, &[INLINE, 0xff, 0xff], rustix::net::SendFlags::empty()).unwrap();
        assert_eq!(b.recv::<String>().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
