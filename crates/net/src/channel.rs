//! Messages with file descriptors between the daemon and the helper: one SEQPACKET socket, postcard inside.
//!
//! No message here is longer than a packet.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};

use sandcrate_sys::packet;
use serde::{Serialize, de::DeserializeOwned};

/// A policy of the most rules with long names fits.
const MAX_BYTES: usize = 128 << 10;
const MAX_FDS: usize = 2;

/// Sends one message. A full socket is `WouldBlock` when the socket is non-blocking.
pub fn send<M: Serialize>(socket: BorrowedFd<'_>, message: &M, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if body.len() > MAX_BYTES || fds.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message does not fit into a packet"));
    }
    packet::send(socket, &[IoSlice::new(&body)], fds)
}

/// Receives one message; `None` when the peer is gone.
pub fn recv<M: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_BYTES];
    let (length, fds) = packet::recv(socket, &mut buffer)?;
    if length == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..length])
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a message that does not decode"))?;
    Ok(Some((message, fds)))
}
